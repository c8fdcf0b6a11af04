/* Memory that is counted and runs out; see scarce.h. */
#include "../support/scarce.h"
#include <stdlib.h>

long long mallocs_left = -1, mallocs_done, mallocs_live, mallocs_bytes;

void* scarce_malloc(size_t size_bytes) {
    void* address;
    __atomic_fetch_add(&mallocs_done, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&mallocs_bytes, (long long)size_bytes, __ATOMIC_RELAXED);
    if (__atomic_load_n(&mallocs_left, __ATOMIC_RELAXED) >= 0 &&
        __atomic_fetch_sub(&mallocs_left, 1, __ATOMIC_RELAXED) == 0)
        return NULL;
    address = malloc(size_bytes);
    if (address) __atomic_fetch_add(&mallocs_live, 1, __ATOMIC_RELAXED);
    return address;
}

void scarce_free(void* address) {
    if (address) __atomic_fetch_sub(&mallocs_live, 1, __ATOMIC_RELAXED);
    free(address);
}
