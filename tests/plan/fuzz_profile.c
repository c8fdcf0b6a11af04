/* fuzz_profile.c - gives any bytes to the parser of profiles: they are refused with a message, or are
 * a profile that is written as it was read, and by which rows are planned or refused.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; tests/memo/test_corpus.c replays the inputs that were
 * found. */
#ifndef FUZZ_REPLAY
#define FUZZ_WORDS
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#endif
#include "memo_plan.h"
#include "fuzz.h"

#ifndef FUZZ_REPLAY
/* Three layers of a profile with few tensors: the device holds half, the host some.  A search for
 * rows takes as long as a thousand inputs, so most get the times of given rows. */
static void fuzz_plan_rows(const memo_profile* profile, int searches) {
    static memo_item items[MEMO_PROFILE_TENSORS_MAX];
    static int64_t rows[3 * 4];
    memo_swap_desc swap = MEMO_ZERO(memo_swap_desc);
    memo_swap_plan_desc desc = MEMO_ZERO(memo_swap_plan_desc);
    memo_swap_plan* plan = NULL;
    memo_status status;
    if (profile->n_rows > 1 << 20 || !profile->n_tensors || profile->n_tensors > 4) return;

    memset(items, 0, sizeof items);
    for (int32_t i = 0; i < profile->n_tensors; i++) {
        items[i].name = profile->tensors[i].name;
        items[i].row_bytes = 16 << i % 3;
        items[i].away = i ? MEMO_ROWS : MEMO_MOVE;
    }
    swap.tensors = items;
    swap.n_tensors = profile->n_tensors;
    swap.n_layers = 3;
    swap.n_rows = profile->n_rows;
    swap.tile_rows = (profile->n_rows - 1) / 4 + 1;
    for (int32_t i = 0; i < 3 * profile->n_tensors; i++)
        rows[i] = i % profile->n_tensors ? swap.tile_rows * (i % 2) : MEMO_ROWS_KEPT;
    if (!searches) swap.rows = rows;
    desc.swap = &swap;
    desc.profile = profile;
    desc.device_bytes = profile->n_rows * 16 * 3 * profile->n_tensors;
    desc.host_bytes = desc.device_bytes / 4;
    status = memo_plan_swap(&desc, &plan, &fuzz_error);
    FUZZ_CHECK(!status == (plan != NULL));
    if (status) FUZZ_CHECK(fuzz_error.status == status && fuzz_error.message[0]);
    if (plan)
        FUZZ_CHECK(plan->step_s >= 0 && (!searches || plan->device_bytes <= desc.device_bytes));
    memo_swap_plan_destroy(plan);
}
#endif

static void fuzz_profile_text(const char* text, int64_t n_bytes) {
    static memo_profile profile, other;
    memob_reader reader;
    memob_lines lines = {NULL, &reader, 0, &fuzz_error};
    memo_status status = memob_reader_init(&reader, text, n_bytes, "input", &fuzz_error);
    memset(&profile, 0, sizeof profile);
    if (!status) status = memob_read_frame(&reader, "profile", 1, 0, &fuzz_error);
    if (!status) status = memoi_profile_lines(&lines, &profile);
    if (!status) status = memob_check_count(&reader, lines.n, &fuzz_error);
    if (status) {
        fuzz_refused(status);
        return;
    }
    fuzz_n_accepted++;
    FUZZ_CHECK(memo_profile_write(&profile, fuzz_path(), &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(memo_profile_read(fuzz_path(), &other, &fuzz_error) == MEMO_STATUS_OK);
    unlink(fuzz_path());
    FUZZ_CHECK(memcmp(&profile, &other, sizeof profile) == 0);
#ifndef FUZZ_REPLAY /* which changes every byte */
    /* By the last digits of the checksum. */
    fuzz_plan_rows(&profile, !memcmp(text + n_bytes - 3, "00", 2));
#endif
}

static void fuzz_profile(const uint8_t* data, size_t size) {
    fuzz_text("memo profile 1\n", 0, fuzz_profile_text, data, size);
}

FUZZ_TARGET(fuzz_profile)
