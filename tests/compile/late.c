/* A system header before the implementation, which then cannot ask for POSIX any more. */
#include <stdio.h>
#include "implementation.c"
