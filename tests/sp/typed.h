/* typed.h - elements of f32, bf16 and f16 arrays as numbers.  The conversions are memo_sp.h's;
 * test_row_kernels.c compares them with an obvious rounding for every number of 16 bits.
 *
 * Include after memo_sp.h. */
#ifndef TYPED_H
#define TYPED_H

static MEMO_UNUSED float typed_at(const void* array, int64_t i, memo_type type) {
    if (type == MEMO_TYPE_F32) return ((const float*)array)[i];
    if (type == MEMO_TYPE_BF16) return memo_f32_from_bf16(((const uint16_t*)array)[i]);
    return memo_f32_from_f16(((const uint16_t*)array)[i]);
}

static MEMO_UNUSED void typed_set(void* array, int64_t i, memo_type type, double x) {
    const float value = (float)x;
    if (type == MEMO_TYPE_F32)
        ((float*)array)[i] = value;
    else
        ((uint16_t*)array)[i] =
            type == MEMO_TYPE_BF16 ? memo_bf16_from_f32(value) : memo_f16_from_f32(value);
}

#endif
