/* trainer_words.h - hashes of states, for trainers in tests whose numbers are whole. */
#ifndef TRAINER_WORDS_H
#define TRAINER_WORDS_H

static inline uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}
static inline uint64_t* words_of(memo_session* s, const memo_session_desc* d, int32_t layer,
                                 int32_t state, int64_t* n) {
    *n = d->states[state].size_bytes / 8;
    return (uint64_t*)memo_session_get_state(s, layer, state);
}

/* A state that is left out changes nothing. */
static inline uint64_t mix_state(uint64_t h, memo_session* s, const memo_session_desc* d,
                                 int32_t layer, int32_t state) {
    int64_t n;
    const uint64_t* words = words_of(s, d, layer, state, &n);
    for (int64_t i = 0; words && i < n; i++) h = mix(h, words[i]);
    return h;
}
static inline void add_words(memo_session* s, const memo_session_desc* d, int32_t layer,
                             int32_t state, uint64_t h) {
    int64_t n;
    uint64_t* words = words_of(s, d, layer, state, &n);
    for (int64_t i = 0; words && i < n; i++) words[i] += h * (uint64_t)(2 * i + 1);
}
static inline void change_words(memo_session* s, const memo_session_desc* d, int32_t layer,
                                int32_t state, uint64_t h) {
    int64_t n;
    uint64_t* words = words_of(s, d, layer, state, &n);
    for (int64_t i = 0; words && i < n; i++) words[i] = mix(words[i], h);
}

#endif
