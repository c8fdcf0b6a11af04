/* With MEMO_STATIC each translation unit has its own: this one is compiled twice, -DSECOND the
 * second time. */
#define MEMO_STATIC
#include "implementation.c"

int other(void);

#ifdef SECOND
int other(void) { return memo_status_name(MEMO_STATUS_OK)[0]; }
#else
int main(void) { return other() == memo_status_name(MEMO_STATUS_OK)[0] ? 0 : 1; }
#endif
