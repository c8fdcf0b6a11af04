/* threads.h - helper threads that share the work of one operation.
 *
 * The compute stream is one thread.  If an operation can be done in pieces, it calls gpt_over, and
 * the helpers take pieces too.  Pieces depend only on the sizes, never on the number of threads,
 * and no two pieces write the same element.  The bits are therefore the same with and without
 * helpers.
 *
 * There is one pool.  While one stream uses it, other streams (ranks are threads) work alone. */
#ifndef GPT_THREADS_H
#define GPT_THREADS_H

#include <stdint.h>

/* Computes [begin, end) of an operation. */
typedef void (*gpt_work)(const void* args, int64_t begin, int64_t end);

/* Ends the helpers.  No operation may be under way. */
void gpt_helpers_end(void);

/* Sets the number of computing threads, the stream's own thread included.  It is smaller if the
 * system provides fewer. */
void gpt_helpers_begin(int n_threads);

/* Runs work on [begin, end).  Returns when all pieces are done. */
void gpt_over(gpt_work work, const void* args, int64_t begin, int64_t end, int64_t unit);

#endif
