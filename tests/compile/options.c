/* Options of the implementation: the user's allocator and assert, no threads. */
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
void* user_malloc(size_t size_bytes);
void user_free(void* address);
void user_assert(int condition);
#ifdef __cplusplus
}
#endif
#define MEMO_MALLOC(size_bytes) user_malloc(size_bytes)
#define MEMO_FREE(address)      user_free(address)
#define MEMO_ASSERT(condition)  user_assert((condition) != 0)
#define MEMO_NO_HOST_DEVICE
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1
#include "implementation.c"
