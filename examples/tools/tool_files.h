/* tool_files.h - what every tool does with its command line: it reads options from a table, refuses
 * wrong options in one form of words, and no output overwrites an input, another output or a
 * standard stream.
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

/* ---- tables of options ---- */

typedef struct tool_option tool_option;
struct tool_option {
    const char* name;
    /* Sets what `to` points to; returns 0 if the value is wrong.  NULL: a flag, an int to set. */
    int (*read)(const tool_option* option, const char* value);
    void* to;
    const char* fault;  /* what a wrong value is; NULL: it is outside of the range */
    double least, most; /* of a number */
    double unit;        /* of a number that may have a fraction; 0: a whole number */
};

#define TOOL_FLAG(name, to)                                                                        \
    { name, NULL, to, NULL, 0, 0, 0 }
#define TOOL_OUTPUT(name, to)                                                                      \
    { name, tool_read_output, to, NULL, 0, 0, 0 }
#define TOOL_VALUE(name, read, to, fault)                                                          \
    { name, read, to, fault, 0, 0, 0 }
#define TOOL_NUMBER(name, read, to, least, most, unit)                                             \
    { name, read, to, NULL, least, most, unit }

/* The path of an output. */
static MEMO_UNUSED int tool_read_output(const tool_option* option, const char* value) {
    *(const char**)option->to = value;
    return 1;
}

/* Outputs of the table against each other, against the file, and against standard input. */
static MEMO_UNUSED memo_status tool_check_outputs(const tool_option* options, int n_options,
                                                  const char* file, memo_error* error) {
    tool_file files[32];
    int n = 0;
    memset(files, 0, sizeof files);
    for (int k = 0; k < n_options && n < 31; k++) {
        if (options[k].read != tool_read_output) continue;
        files[n].option = options[k].name;
        files[n].path = *(const char**)options[k].to;
        files[n++].is_output = 1;
    }
    files[n].option = "FILE";
    files[n++].path = file;
    return tool_check_files(files, n, error);
}

enum { TOOL_HELP = -1, TOOL_VERSION = -2 };

static MEMO_UNUSED void tool_print_version(FILE* out, const char* tool) {
    fprintf(out, "%s of memo %d.%d.%d\n", tool, MEMO_VERSION_MAJOR, MEMO_VERSION_MINOR,
            MEMO_VERSION_PATCH);
}

/* Reads the command line.  *file: gets the argument that is no option; NULL: there is none.
 * Returns 0, or the exit status; TOOL_HELP or TOOL_VERSION, which are negative. */
static MEMO_UNUSED int tool_read_options(FILE* err, const char* tool, int argc, char** argv,
                                         const tool_option* options, int n_options,
                                         const char** file) {
    memo_error error;
    for (int i = 1; i < argc; i++) {
        const char* name = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : NULL;
        char range[100];
        int k = 0;
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) return TOOL_HELP;
        if (!strcmp(name, "--version")) return TOOL_VERSION;
        if (file && (name[0] != '-' || !name[1])) {
            if (*file) return tool_refuse(err, tool, "FILE", "more than one", name);
            *file = name;
            continue;
        }

        while (k < n_options && strcmp(name, options[k].name)) k++;
        if (k == n_options) return tool_refuse(err, tool, name, "unknown option", NULL);
        if (!options[k].read) {
            *(int*)options[k].to = 1;
            continue;
        }
        if (!value || !strncmp(value, "--", 2))
            return tool_refuse(err, tool, name, "no value", NULL);
        i++;
        if (options[k].read(&options[k], value)) continue;
        snprintf(range, sizeof range, "not a %snumber from %.15g to %.15g",
                 options[k].unit > 0 ? "" : "whole ", options[k].least, options[k].most);
        return tool_refuse(err, tool, name, options[k].fault ? options[k].fault : range, value);
    }

    if (file && !*file) return tool_refuse(err, tool, "FILE", "missing", NULL);
    return tool_check_outputs(options, n_options, file ? *file : NULL, &error)
               ? tool_refuse(err, tool, error.message, NULL, NULL)
               : 0;
}

#endif
