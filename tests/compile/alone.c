/* One header and nothing else: -DHEADER='"memo.h"', with or without the implementation macros. */
#include HEADER
