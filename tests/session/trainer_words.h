/* trainer_words.h - hashes and changes of words, for trainers in tests whose numbers are whole.  words
 * NULL: a state that a layer lacks, or a step leaves out, which changes nothing. */
#ifndef TRAINER_WORDS_H
#define TRAINER_WORDS_H

static inline uint64_t t_mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}
static inline uint64_t t_mix_words(uint64_t h, const uint64_t* words, int64_t n) {
    for (int64_t i = 0; words && i < n; i++) h = t_mix(h, words[i]);
    return h;
}

/* Linear in h, so that slices and micro-batches add up. */
static inline void t_add_words(uint64_t* words, int64_t n, uint64_t h) {
    for (int64_t i = 0; words && i < n; i++) words[i] += h * (uint64_t)(2 * i + 1);
}
static inline void t_change_words(uint64_t* words, int64_t n, uint64_t h) {
    for (int64_t i = 0; words && i < n; i++) words[i] = t_mix(words[i], h);
}

#endif
