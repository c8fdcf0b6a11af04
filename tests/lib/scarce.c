/* Memory that is counted and runs out; see scarce.h. */
#include "../support/scarce.h"
#include <stdlib.h>

long long mallocs_left = -1, mallocs_done, mallocs_live, mallocs_bytes;

long long fault_calls;
const char* fault_struck;

static long long fault_at;
__attribute__((constructor)) static void fault_find(void) {
    const char* k = getenv("MEMO_FAULT");
    fault_at = k ? atoll(k) : 0;
}
int fault_strikes(const char* what) {
    if (__atomic_add_fetch(&fault_calls, 1, __ATOMIC_RELAXED) != fault_at) return 0;
    __atomic_store_n(&fault_struck, what, __ATOMIC_RELAXED);
    return 1;
}

void* scarce_malloc(size_t size_bytes) {
    void* address;
    if (fault_strikes("malloc")) return NULL;
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
