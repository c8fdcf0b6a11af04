#include "gpt/run/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool_files.h"

void train_text_free(train_text* text) {
    free(text->bytes);
    gpt_unmap(&text->tokens);
    if (text->is_own) globfree(&text->found);
    memset(text, 0, sizeof *text);
}

void train_text_find(train_text* text, char** files, int64_t n_files) {
    static const char* const patterns[] = {"memo*.h", "memo*.cuh", "README.md", "examples/*.[ch]",
                                           "examples/*/*.[ch]"};
    text->files = files;
    text->n_files = n_files;
    if (n_files) return;
    text->is_own = 1;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        (void)glob(patterns[i], i ? GLOB_APPEND : 0, NULL, &text->found);
    text->files = text->found.gl_pathv;
    text->n_files = (int64_t)text->found.gl_pathc;
}

static memo_status train_text_read(train_text* text, memo_error* error) {
    char* bytes = NULL;
    memo_error fault;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < text->n_files && !status; i++) {
        const int64_t n_before = text->n_bytes;
        status = tool_append_file(text->files[i], &bytes, &text->n_bytes, &fault);
        if (!status && text->n_bytes == n_before)
            status = memo_error_set(&fault, MEMO_STATUS_IO,
                                    "%.200s: the file is empty; leave it out or give another",
                                    text->files[i]);
    }
    text->bytes = (uint8_t*)bytes;
    return status ? memo_error_set(error, status, "--text %s", fault.message) : status;
}

static double entropy_term(int64_t count, int64_t total) {
    double p = (double)count / (double)total;
    return count ? -p * log(p) : 0;
}

static uint64_t digest_bytes(const uint8_t* bytes, int64_t n_bytes) {
    uint64_t digest = (uint64_t)n_bytes, word;
    for (int64_t at = 0; at < n_bytes; at += (int64_t)sizeof word) {
        word = 0;
        memcpy(&word, bytes + at, (size_t)gpt_min(sizeof word, n_bytes - at));
        digest = gpt_mix(digest ^ word);
    }
    return digest;
}

/* H(byte) and H(byte | previous byte) = H(pair) - H(first of a pair), in nats. */
static memo_status train_text_measure(train_text* text, memo_error* error) {
    int64_t* pairs = (int64_t*)calloc(65536, sizeof *pairs);
    int64_t singles[256] = {0}, firsts[256] = {0}, i;
    if (!pairs) return gpt_no_memory("the text", error);
    for (i = 0; i < text->n_bytes; i++) singles[text->bytes[i]]++;
    for (i = 0; i + 1 < text->n_bytes; i++) {
        firsts[text->bytes[i]]++;
        pairs[text->bytes[i] * 256 + text->bytes[i + 1]]++;
    }
    text->unigram_nats = text->bigram_nats = 0;
    for (i = 0; i < 256; i++) {
        text->unigram_nats += entropy_term(singles[i], text->n_bytes);
        text->bigram_nats -= entropy_term(firsts[i], text->n_bytes - 1);
    }
    for (i = 0; i < 65536; i++) text->bigram_nats += entropy_term(pairs[i], text->n_bytes - 1);
    free(pairs);
    text->digest = digest_bytes(text->bytes, text->n_bytes);
    text->n_tokens = text->n_bytes;
    return MEMO_STATUS_OK;
}

/* ---- a file of tokens ---- */

static int32_t train_text_at(const train_text* text, int64_t i) {
    const uint8_t* at;
    uint32_t token = 0;
    if (!text->tokens.bytes) return text->bytes[i];
    at = text->tokens.bytes + i * text->token_bytes;
    for (int k = 0; k < text->token_bytes; k++) token |= (uint32_t)at[k] << 8 * k;
    return token > INT32_MAX ? INT32_MAX : (int32_t)token;
}

/* Their entropy; each must be below the vocabulary. */
static memo_status train_text_count(train_text* text, const char* path, int64_t vocabulary,
                                    memo_error* error) {
    int64_t* counts = (int64_t*)calloc((size_t)vocabulary, sizeof *counts);
    memo_status status = counts ? MEMO_STATUS_OK : gpt_no_memory("the tokens", error);
    for (int64_t i = 0; i < text->n_tokens && !status; i++) {
        const int32_t token = train_text_at(text, i);
        if (token < vocabulary)
            counts[token]++;
        else
            status = gpt_invalid(error,
                                 "--tokens %.300s: token %lld is %d, not below the vocabulary of "
                                 "%lld; tokens of this model would work",
                                 path, (long long)i, token, (long long)vocabulary);
    }
    for (int64_t i = 0; i < vocabulary && !status; i++)
        text->unigram_nats += entropy_term(counts[i], text->n_tokens);
    text->bigram_nats = text->unigram_nats;
    free(counts);
    return status;
}

memo_status train_text_map(train_text* text, const char* path, int64_t vocabulary, int64_t sequence,
                           memo_error* error) {
    const char* end = strrchr(path, '.');
    int64_t n_bytes;
    const char* why;
    text->token_bytes = 0;
    if (end && !strcmp(end, ".u16")) text->token_bytes = 2;
    if (end && !strcmp(end, ".u32")) text->token_bytes = 4;
    if (!text->token_bytes)
        return gpt_invalid(error,
                           "--tokens %.300s: a name that ends in .u16 or .u32, the size of its "
                           "tokens, would work",
                           path);

    why = gpt_map(path, &text->tokens);
    if (!why && !text->tokens.bytes) why = "the file is empty";
    if (why)
        return memo_error_set(error, MEMO_STATUS_IO, "--tokens %.300s: cannot be read: %s", path,
                              why);
    n_bytes = text->tokens.n_bytes;
    text->n_tokens = n_bytes / text->token_bytes;
    if (n_bytes % text->token_bytes)
        return gpt_invalid(error, "--tokens %.300s: %lld bytes are no whole tokens of %lld bytes",
                           path, (long long)n_bytes, (long long)text->token_bytes);
    if (text->n_tokens < sequence + 1)
        return gpt_invalid(error,
                           "--tokens %.300s: %lld tokens, and a sequence of --seq %lld needs one "
                           "more than its length: %lld; try more or a shorter --seq",
                           path, (long long)text->n_tokens, (long long)sequence,
                           (long long)sequence + 1);
    text->digest = digest_bytes(text->tokens.bytes, n_bytes);
    return train_text_count(text, path, vocabulary, error);
}

void train_text_random(train_text* text, int64_t vocabulary) {
    text->vocabulary = vocabulary;
    text->unigram_nats = text->bigram_nats = log((double)vocabulary);
}

memo_status train_text_load(train_text* text, int64_t sequence, memo_error* error) {
    if (!text->n_files)
        return gpt_invalid(error, "no text: the project's own sources are not in this directory; "
                                  "give --text FILE, or start in the directory of memo.h");
    memo_status status = train_text_read(text, error);
    if (!status && text->n_bytes < sequence + 1)
        status =
            gpt_invalid(error,
                        "the text has %lld bytes, and a sequence of --seq %lld needs one more "
                        "than its length: %lld; try a longer text or a shorter --seq",
                        (long long)text->n_bytes, (long long)sequence, (long long)sequence + 1);
    return status ? status : train_text_measure(text, error);
}

/* A number of window b of a micro-batch.  It depends only on these four, so that every policy
 * learns from the same tokens. */
static uint64_t train_text_window(int64_t seed, int64_t step, int64_t micro_batch, int64_t b) {
    const uint64_t key = gpt_mix(gpt_mix((uint64_t)seed) ^ (uint64_t)step);
    return gpt_mix(gpt_mix(key ^ (uint64_t)micro_batch) ^ (uint64_t)b);
}

void train_text_windows(const train_text* text, int64_t seed, int64_t step, int64_t micro_batch,
                        int64_t batch, int64_t sequence, int32_t* tokens /* (batch, sequence) */,
                        int32_t* targets /* (batch, sequence) */) {
    const uint64_t vocabulary = (uint64_t)text->vocabulary;
    for (int64_t b = 0; b < batch; b++) {
        const uint64_t of_window = train_text_window(seed, step, micro_batch, b);
        const uint64_t n_starts = (uint64_t)(text->n_tokens - sequence);
        int32_t token = 0;
        for (int64_t i = 0; i <= sequence; i++) {
            if (i > 0) tokens[b * sequence + i - 1] = token;
            token = vocabulary ? (int32_t)(gpt_mix(of_window + (uint64_t)i) % vocabulary)
                               : train_text_at(text, (int64_t)(of_window % n_starts) + i);
            if (i > 0) targets[b * sequence + i - 1] = token;
        }
    }
}

memo_status train_text_check_documents(const train_text* text, const train_options* o,
                                       int64_t n_steps, memo_error* error) {
    const uint64_t n_starts = (uint64_t)(text->n_tokens - o->sequence);
    int64_t most = 0, its_step = 0;
    for (int64_t step = 0; step < n_steps; step++)
        for (int64_t m = 0; m < o->accumulate; m++)
            for (int64_t b = 0; b < o->batch; b++) {
                const int64_t at = (int64_t)(train_text_window(o->seed, step, m, b) % n_starts);
                int64_t n = 1; /* a separator ends a document, but for the last token */
                for (int64_t i = 0; i < o->sequence - 1; i++)
                    n += train_text_at(text, at + i) == o->separator;
                if (n <= most) continue;
                most = n;
                its_step = step + 1;
            }
    if (most <= o->documents) return MEMO_STATUS_OK;
    return gpt_invalid(error,
                       "--documents %lld: step %lld has a sequence of %lld documents, the most of "
                       "the run; --documents %lld would work",
                       o->documents, (long long)its_step, (long long)most, (long long)most);
}
