/* same_file.h - do two paths lead to one file?  For programs that must not write over what they read.
 *
 * Include after the implementation of memo.h. */
#ifndef SAME_FILE_H
#define SAME_FILE_H

#include <string.h>
#include <sys/stat.h>

/* The same file: by what they lead to where both exist, else by name. */
static int is_same_file(const char* a, const char* b) {
    struct stat x, y;
    int has_a = stat(a, &x) == 0, has_b = stat(b, &y) == 0;
    if (has_a && has_b) return x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
    return has_a == has_b && !strcmp(a, b) && strcmp(a, "-") != 0;
}

#endif
