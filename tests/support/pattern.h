/* pattern.h - an operation that writes bytes of a pattern, or counts bytes that differ from it, so
 * that every misplaced byte is found.  Include after memo.h. */
#ifndef PATTERN_H
#define PATTERN_H

typedef struct pattern {
    void* bytes;
    int64_t begin, end; /* of the bytes */
    uint64_t key;
    int64_t* n_wrong; /* NULL: write */
} pattern;

static memo_status run_pattern(void* arguments, MEMO_UNUSED memo_error* e) {
    const pattern* p = (const pattern*)arguments;
    for (int64_t i = p->begin; i < p->end; i++) {
        const uint64_t hash = (p->key ^ (uint64_t)i) * 0x9e3779b97f4a7c15u;
        unsigned char* byte = (unsigned char*)p->bytes + i;
        if (!p->n_wrong)
            *byte = (unsigned char)(hash >> 40);
        else
            *p->n_wrong += *byte != (unsigned char)(hash >> 40);
    }
    return MEMO_STATUS_OK;
}

#endif
