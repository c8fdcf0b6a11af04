/* fetched.h - states of trainer.h that the trainer itself keeps, in a mapped file.
 *
 * The file can only be read; each state of each layer lies at an odd offset, layers from the last
 * to the first.  Include after trainer.h. */
#ifndef FETCHED_H
#define FETCHED_H

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    F_STATE_BYTES = 8 * T_STATE_WORDS_MAX,
    F_HEAD = 4099,
    F_BYTES = F_HEAD + (T_LAYERS_MAX + 2) * T_N_STATES * F_STATE_BYTES
};

static struct {
    const char* bytes;  /* (F_BYTES) */
    int64_t n_calls;    /* of all trainers */
    int64_t fails_at;   /* this call fails; 0: none does */
    int64_t changes_at; /* from this call on the first byte is another one */
    uint32_t kinds;     /* bit s: state s was asked for */
} fetched;

static int64_t f_offset(int32_t layer, int32_t state) {
    return F_HEAD + (int64_t)((T_LAYERS_MAX - layer) * T_N_STATES + state) * F_STATE_BYTES;
}

/* Makes the file, once, and forgets its name. */
static void f_map(void) {
    char path[256];
    uint64_t word;
    FILE* file;
    int fd;
    if (fetched.bytes) return;
    file = fopen(memo_test_path(path, "fetched"), "wb");
    for (int64_t k = 0; file && k < F_BYTES; k += 8) {
        word = t_mix((uint64_t)k, 77);
        fwrite(&word, 1, 8, file);
    }
    CHECK(file && !fclose(file));
    fd = open(path, O_RDONLY);
    unlink(path);
    fetched.bytes = (const char*)mmap(NULL, F_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && fetched.bytes != MAP_FAILED);
    close(fd);
}

static MEMO_UNUSED memo_status t_fetch(void* user, int32_t layer, int32_t state, int64_t at,
                                       void* to, int64_t n_bytes, memo_error* e) {
    const trainer* t = (const trainer*)user;
    const int64_t call = __atomic_add_fetch(&fetched.n_calls, 1, __ATOMIC_RELAXED);
    if (!t_has(t, layer, state) || !(t->states[state].uses & MEMO_STATE_FETCHED) || at % 4096 ||
        at < 0 || n_bytes <= 0 || at + n_bytes > t->states[state].size_bytes)
        return memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT, "not bytes of a fetched state");
    if (call == fetched.fails_at)
        return memo_error_set(e, MEMO_STATUS_IO, "call %lld is lost", (long long)call);
    memcpy(to, fetched.bytes + f_offset(layer, state) + at, (size_t)n_bytes);
    if (fetched.changes_at && call >= fetched.changes_at) ++*(char*)to;
    __atomic_fetch_or(&fetched.kinds, 1u << state, __ATOMIC_RELAXED);
    return MEMO_STATUS_OK;
}

/* The frozen state, which may have two pages, and some other weights become FETCHED. */
static MEMO_UNUSED void t_take_fetched(trainer* t) {
    static const int32_t weights[] = {S_FROZEN, S_FIRST, S_LAST, S_WEIGHTS};
    f_map();
    t->states[S_FROZEN].size_bytes = memo_test_int(1, F_STATE_BYTES);
    for (int k = 0; k < 4; k++) {
        memo_state* state = &t->states[weights[k]];
        if (k && memo_test_int(0, 1)) continue;
        state->uses = MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD | MEMO_STATE_FETCHED;
    }
    t->desc.fetch = t_fetch;
}

/* The same bytes in plain arrays. */
static MEMO_UNUSED void t_fetch_plain(const trainer* t, t_plain* plain) {
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < T_N_STATES; i++)
            if (t->states[i].uses & MEMO_STATE_FETCHED)
                memcpy(plain->states[layer + 1][i], fetched.bytes + f_offset(layer, i),
                       (size_t)t->states[i].size_bytes);
}

#endif
