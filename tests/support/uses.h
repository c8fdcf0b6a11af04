/* uses.h - the bytes that an operation of a trainer reads and writes, for a recorder.
 *
 * Include after owned.h. */
#ifndef USES_H
#define USES_H

typedef struct op_uses {
    memo_range ranges[2][32]; /* read; written */
    int64_t n[2];
} op_uses;

/* Nothing if there are no bytes. */
static void add_use(op_uses* u, int is_written, const void* bytes, int64_t n_bytes) {
    memo_range* range = &u->ranges[is_written != 0][u->n[is_written != 0]];
    if (!bytes || n_bytes <= 0) return;
    range->begin = (uint64_t)(uintptr_t)bytes;
    range->end = range->begin + (uint64_t)n_bytes;
    u->n[is_written != 0]++;
}

static memo_status announce(const memo_device* device, memo_stream stream, const char* name,
                            const op_uses* u) {
    const memo_op_desc op = {.name = name,
                             .reads = u->ranges[0],
                             .n_reads = u->n[0],
                             .writes = u->ranges[1],
                             .n_writes = u->n[1]};
    return device->annotate ? memo_annotate(device, stream, &op, &error) : MEMO_STATUS_OK;
}

#endif
