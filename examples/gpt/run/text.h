/* text.h - the text that a trainer learns from: files, random windows and entropies. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include <glob.h>

#include "gpt/model/mapped.h"
#include "gpt/run/options.h"

typedef struct train_text {
    char** files;
    int64_t n_files;
    glob_t found; /* the project's own sources, if is_own */
    int is_own;
    uint8_t* bytes;
    int64_t n_bytes;
    uint64_t digest;                  /* of the bytes; 0: random tokens */
    double unigram_nats, bigram_nats; /* entropy of a byte; of a byte given the previous byte */
    int64_t vocabulary;               /* random tokens below it instead of bytes; 0: bytes */
    gpt_mapped tokens;                /* a file instead of bytes; without bytes: none */
    int64_t n_tokens, token_bytes;    /* of the bytes, or of that file */
} train_text;

void train_text_free(train_text* text);

/* n_files 0: the project's own sources, in the current directory. */
void train_text_find(train_text* text, char** files, int64_t n_files);

/* Tokens below vocabulary, all equally likely. */
void train_text_random(train_text* text, int64_t vocabulary);

/* Maps a file of tokens, FILE.u16 or FILE.u32, and looks at each: they are below vocabulary. */
memo_status train_text_map(train_text* text, const char* path, int64_t vocabulary, int64_t sequence,
                           memo_error* error);

/* The text must hold a sequence and the byte after it. */
memo_status train_text_load(train_text* text, int64_t sequence, memo_error* error);

/* Writes batch windows of the text: tokens, and for each token the next one. */
void train_text_windows(const train_text* text, int64_t seed, int64_t step, int64_t micro_batch,
                        int64_t batch, int64_t sequence, int32_t* tokens /* (batch, sequence) */,
                        int32_t* targets /* (batch, sequence) */);

/* Before a run: no window of its steps may have more documents than it packs. */
memo_status train_text_check_documents(const train_text* text, const train_options* o,
                                       int64_t n_steps, memo_error* error);

#endif
