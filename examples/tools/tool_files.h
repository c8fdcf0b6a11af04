/* tool_files.h - what every tool does with its command line: it refuses wrong options in one form
 * of words, and no output overwrites an input, another output or a standard stream.
 *
 * Single translation unit: everything is static. */
#ifndef TOOL_FILES_H
#define TOOL_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memo.h"

typedef struct tool_file {
    const char* option; /* its name in messages */
    const char* path;   /* NULL: not given; "-": a standard stream */
    int is_output;
} tool_file;

/* Prints what is wrong with an option.  Returns the exit status of wrong options, 2.  what and
 * value may be NULL. */
static MEMO_UNUSED int tool_refuse(FILE* err, const char* tool, const char* option,
                                   const char* what, const char* value) {
    fprintf(err, "%s: %s%s%s%s%s%s; --help lists the options\n", tool, option, what ? ": " : "",
            what ? what : "", value ? " (" : "", value ? value : "", value ? ")" : "");
    return 2;
}

/* Replaces a closed standard stream by one that fails.  Otherwise the next file would take its
 * descriptor and receive the printed lines. */
static MEMO_UNUSED void tool_keep_standard_streams(void) {
    for (int k = 0; k < 3; k++)
        if (fcntl(k, F_GETFD) < 0) (void)!open("/dev/null", k ? O_RDONLY : O_WRONLY);
}

/* Returns whether all output has been written. */
static MEMO_UNUSED memo_status tool_flush(memo_error* error) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_IO, "standard output cannot be written");
}

/* Appends a file ("-": standard input) to *bytes; free it with free, also after a failure.  A zero
 * byte follows.  A file that is too long, or endless, fails. */
static MEMO_UNUSED memo_status tool_append_file(const char* path, char** bytes, int64_t* n_bytes,
                                                memo_error* error) {
    const int64_t most = (int64_t)1 << 30, step = 1 << 20;
    FILE* file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    memo_status status = MEMO_STATUS_OK;
    size_t n = 1;
    if (!file)
        return memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be read: %s", path,
                              strerror(errno));

    while (n > 0 && !status) {
        char* larger = (char*)realloc(*bytes, (size_t)(*n_bytes + step + 1));
        if (!larger) {
            status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                    "%.300s: no host memory for its bytes", path);
            break;
        }
        *bytes = larger;
        n = fread(larger + *n_bytes, 1, (size_t)step, file);
        *n_bytes += (int64_t)n;
        larger[*n_bytes] = 0;

        if (ferror(file))
            status = memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be read: %s", path,
                                    strerror(errno));
        else if (*n_bytes > most)
            status = memo_error_set(error, MEMO_STATUS_IO, "%.300s: larger than %lld MiB", path,
                                    (long long)(most >> 20));
    }

    if (file != stdin) fclose(file);
    return status;
}

#define TOOL_PATH_BYTES 4096

/* For a file, sets its numbers and an empty name.  For a new file, sets the numbers of the nearest
 * existing folder, and the name below that folder. */
static MEMO_UNUSED void tool_find_place(const char* path, struct stat* place,
                                        char* name /* TOOL_PATH_BYTES */) {
    char at[TOOL_PATH_BYTES], link[TOOL_PATH_BYTES];
    int n_links = 0;
    *name = 0;
    snprintf(at, sizeof at, "%s", path);
    while (stat(at, place)) {
        char* slash = strrchr(at, '/');
        const char* base = slash ? slash + 1 : at;
        size_t n_base = strlen(base);
        ssize_t n = n_links++ < 40 ? readlink(at, link, sizeof link - 1) : -1;

        /* A link to a new file. */
        if (n >= 0) {
            link[n] = 0;
            if (*link == '/' || !slash) slash = at - 1;
            snprintf(slash + 1, sizeof at - (size_t)(slash + 1 - at), "%s", link);
            continue;
        }

        /* Moves the missing last part of the path to name. */
        if (*base && strcmp(base, ".") && strlen(name) + n_base + 2 < TOOL_PATH_BYTES) {
            memmove(name + n_base + 1, name, strlen(name) + 1);
            memcpy(name, base, n_base);
            name[n_base] = '/';
        }
        snprintf(link, sizeof link, "%s", slash == at ? "/" : ".");
        if (slash && slash != at)
            *slash = 0;
        else if (!strcmp(at, link))
            break;
        else
            snprintf(at, sizeof at, "%s", link);
    }
}

/* Returns whether both names are one file, or one is a file and the other below it.  A device or a
 * pipe can be several files. */
static MEMO_UNUSED int tool_is_same_file(const char* a, const char* b) {
    struct stat x, y;
    char x_name[TOOL_PATH_BYTES], y_name[TOOL_PATH_BYTES];
    size_t n_x, n_y, n;
    memset(&x, 0, sizeof x);
    memset(&y, 0, sizeof y);
    tool_find_place(a, &x, x_name);
    tool_find_place(b, &y, y_name);
    n_x = strlen(x_name), n_y = strlen(y_name);
    n = n_x < n_y ? n_x : n_y;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino && !strncmp(x_name, y_name, n) &&
           (n || S_ISREG(x.st_mode));
}

/* An output with the name of an input would destroy the input.  Of two outputs in one file, the
 * first would be lost. */
static MEMO_UNUSED memo_status tool_check_files(const tool_file* files, int n_files,
                                                memo_error* error) {
    for (int i = 0; i < n_files; i++) {
        if (!files[i].is_output || !files[i].path || !strcmp(files[i].path, "-")) continue;
        for (int j = 0; j < n_files; j++) {
            const char* other = files[j].path;
            if (j == i || !other || (files[j].is_output && j > i)) continue;
            if (!strcmp(other, "-")) {
                if (files[j].is_output) continue;
                other = "/dev/stdin";
            }
            if (tool_is_same_file(files[i].path, other))
                return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                      "%s %.300s: is also the file of %s; another name would work",
                                      files[i].option, files[i].path, files[j].option);
        }
    }
    return MEMO_STATUS_OK;
}

#endif
