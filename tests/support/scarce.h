/* scarce.h - counts memo's requests of host memory, on any thread, and lets one of them fail.
 * Include it before the implementation; the functions are in tests/lib. */
#ifndef SCARCE_H
#define SCARCE_H

#include <stddef.h>

#define MEMO_MALLOC(size_bytes) scarce_malloc(size_bytes)
#define MEMO_FREE(address)      scarce_free(address)

extern long long mallocs_left;  /* the request after so many fails, once; below 0: none fails */
extern long long mallocs_done;  /* requests so far, refused ones too */
extern long long mallocs_live;  /* blocks not freed yet */
extern long long mallocs_bytes; /* requested so far */

/* MEMO_FAULT=K of the environment: see faults.h. */
extern long long fault_calls;    /* so far */
extern const char* fault_struck; /* what failed; NULL: nothing yet */
int fault_strikes(const char* what);

void* scarce_malloc(size_t size_bytes);
void scarce_free(void* address);

#endif
