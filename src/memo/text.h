#pragma once
#include "memo/base.h"
/* ---- >>text -------------------------------------------------------------------------------------
 * Knows: memo_text, escapes of XML and JSON, files that are replaced whole.  Knows nothing of what
 * the text says.
 *
 * 1. A text that did not fail ends with a 0 byte behind its n_bytes, inside its capacity.
 * 2. Escaping ends where the characters do: no character is cut, and none behind them is read.
 * 3. No file that is written has a descriptor of the standard streams, unless it is one of them. */

void memo_text_free(memo_text* text) {
    if (!text) return;
    MEMO_FREE(text->data);
    memset(text, 0, sizeof *text);
}

void memo_text_put(memo_text* text, const char* format, ...) {
    int64_t room, length = 0;
    va_list arguments;
    if (!text || !format) return;
    room = text->capacity - text->n_bytes;
    /* Again after it has grown, if there was too little room. */
    while (!text->failed) {
        va_start(arguments, format);
        length =
            vsnprintf(room ? text->data + text->n_bytes : NULL, (size_t)room, format, arguments);
        va_end(arguments);
        if (length >= 0 && length < room) break;
        text->failed = length < 0 ||
                       !memob_reserve(&text->data, &text->capacity, text->n_bytes + length + 1, 1);
        room = text->capacity - text->n_bytes;
    }
    if (!text->failed) text->n_bytes += length;
    MEMO_ASSERT(text->failed || text->n_bytes < text->capacity); /* 1 */
    MEMO_ASSERT(text->failed || !text->data[text->n_bytes]);     /* 1 */
}

/* Bytes of the character at s, if it is UTF-8 that XML allows, apart from controls; else 0. */
MEMOI int memoi_text_character(const char* s) {
    static const uint32_t least[] = {UINT32_MAX, 32, 0x80, 0x800, 0x10000};
    /* By the first four bits; five ones begin a code that is too large. */
    static const char lengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4};
    const unsigned char* p = (const unsigned char*)s;
    const int n = lengths[*p >> 4];
    uint32_t code = n < 2 ? *p : *p & (255u >> n);
    for (int i = 1; i < n; i++) {
        if (p[i] >> 6 != 2) return 0;
        code = code << 6 | (p[i] & 63);
    }
    return code < least[n] || code >> 11 == 27 || code >> 1 == 0x7fff || code > 0x10ffff ? 0 : n;
}

/* What XML writes between & and ; for a character; NULL: the character itself will do. */
MEMOI const char* memoi_text_entity(char character) {
    static const char* const names[] = {"amp", "lt", "gt", "quot"};
    static const char characters[] = "&<>\"";
    const char* at = (const char*)memchr(characters, character, 4);
    return at ? names[at - characters] : NULL;
}

MEMOI void memob_text_put_escaped(memo_text* text, const char* s, int64_t n_bytes, int is_json) {
    const char* const stop = s + n_bytes;
    while (s < stop) {
        const int n = *s == '\n' && !is_json ? 1 : memoi_text_character(s);
        if (is_json && (*s == '"' || *s == '\\'))
            memo_text_put(text, "\\%c", *s);
        else if (!is_json && memoi_text_entity(*s))
            memo_text_put(text, "&%s;", memoi_text_entity(*s));
        else if (n || (unsigned char)*s >= 32)
            memo_text_put(text, "%.*s", n ? n : 3, n ? s : "\xef\xbf\xbd");
        s += n ? n : 1;
    }
    MEMO_ASSERT(s == stop); /* 2 */
}
void memo_text_put_xml(memo_text* text, const char* s) {
    if (text && s) memob_text_put_escaped(text, s, (int64_t)strlen(s), 0);
}
void memo_text_put_json(memo_text* text, const char* s) {
    if (text && s) memob_text_put_escaped(text, s, (int64_t)strlen(s), 1);
}

#ifdef PATH_MAX
#define MEMOI_PATH_BYTES PATH_MAX
#else
#define MEMOI_PATH_BYTES 4096
#endif

/* memoi_text_store writes a text to a file; "-": standard output.  Returns an errno. */
#if defined(_WIN32)
MEMOI int memoi_text_store(const memo_text* text, const char* path) {
    const int is_output = strcmp(path, "-") == 0;
    char name[MEMOI_PATH_BYTES + 8]; /* its first name */
    FILE* file;
    int code;
    snprintf(name, sizeof name, "%s.memo", path);
    file = is_output ? stdout : fopen(name, "wb");
    errno = EIO; /* where the C library sets none */
    code = file && fwrite(text->data, 1, (size_t)text->n_bytes, file) == (size_t)text->n_bytes &&
                   fflush(file) == 0
               ? 0
               : errno;
    if (file && !is_output && fclose(file) && !code) code = errno;
    if (!code && !is_output) remove(path); /* rename replaces nothing there */
    if (!code && !is_output && rename(name, path)) code = errno;
    if (code && !is_output) remove(name);
    return code;
}
#else
/* Moves a descriptor to 3 or above.  If standard output is closed, a file would get descriptor 1,
 * and lines that the program prints would go into the file.  Returns -1 on failure, like open. */
MEMOI int memoi_file_descriptor_from_3(int descriptor) {
    int higher, code;
    if (descriptor < 0 || descriptor > 2) return descriptor;
    higher = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    code = errno;
    close(descriptor);
    errno = code;
    return higher;
}

/* The limit on file sizes: exceeding it ends the process. */
MEMOI int memoi_file_is_too_large(int64_t n_bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           limit.rlim_cur < (rlim_t)n_bytes;
}

/* Returns an errno. */
MEMOI int memoi_file_write_all(int descriptor, const char* data, int64_t n_bytes) {
    struct stat info;
    if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
        memoi_file_is_too_large(n_bytes + (fcntl(descriptor, F_GETFL) & O_APPEND
                                               ? (int64_t)info.st_size
                                               : (int64_t)lseek(descriptor, 0, SEEK_CUR))))
        return EFBIG;
    while (n_bytes > 0) {
        ssize_t n = write(descriptor, data, (size_t)n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        data += n;
        n_bytes -= n;
    }
    return 0;
}

/* memoi_file_write_all, then close.  A negative descriptor: opening failed, with errno. */
MEMOI int memoi_file_write_and_close(int descriptor, const char* data, int64_t n_bytes) {
    int code = descriptor < 0 ? errno : memoi_file_write_all(descriptor, data, n_bytes);
    MEMO_ASSERT(descriptor < 0 || descriptor > STDERR_FILENO); /* 3 */
    if (descriptor >= 0 && close(descriptor) && !code) code = errno;
    return code;
}

/* Writes a new file and renames it to target, so that no reader sees half of it; owner and mode of
 * an existing target are kept.  Signals are blocked, so that none leaves a temporary file.  Returns
 * an errno. */
MEMOI int memoi_file_replace(const char* target, const struct stat* old, const char* data,
                             int64_t n_bytes) {
    const char* slash = strrchr(target, '/');
    const int folder_bytes = slash ? (int)(slash - target) + 1 : 0;
    char name[MEMOI_PATH_BYTES + 48]; /* of the new file: short, unused, in the same folder */
    sigset_t before;
    int descriptor = -1, code;
    memoi_signals_block(&before);
    for (int k = 0; k < 1000 && descriptor < 0 && (k == 0 || errno == EEXIST); k++) {
        snprintf(name, sizeof name, "%.*s.memo-%ld-%d", folder_bytes, target, (long)getpid(), k);
        descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    descriptor = memoi_file_descriptor_from_3(descriptor);
    if (descriptor >= 0 && old) (void)!fchown(descriptor, old->st_uid, old->st_gid);
    code = descriptor >= 0 && old && fchmod(descriptor, old->st_mode & 07777) ? errno : 0;
    if (code)
        close(descriptor);
    else
        code = memoi_file_write_and_close(descriptor, data, n_bytes);
    if (!code && rename(name, target)) code = errno;
    if (code && descriptor >= 0) unlink(name);
    memoi_signals_restore(&before);
    return code;
}

MEMOI int memoi_text_store(const memo_text* text, const char* path) {
    struct stat info, output, link;
    char linked[MEMOI_PATH_BYTES];
    const char* target = path;
    int exists = stat(path, &info) == 0, replaces;
    int open_file = strcmp(path, "-") == 0 ? STDOUT_FILENO : -1;
    for (int k = STDOUT_FILENO; exists && open_file < 0 && k <= STDERR_FILENO; k++)
        if (fstat(k, &output) == 0 && info.st_dev == output.st_dev && info.st_ino == output.st_ino)
            open_file = k;
    replaces = open_file < 0 && (!exists || S_ISREG(info.st_mode));

    /* The target of a link is replaced, not the link.  A read-only file is refused, because rename
     * would replace it. */
    if (replaces && lstat(path, &link) == 0 && S_ISLNK(link.st_mode)) {
        replaces = realpath(path, linked) != NULL;
        target = linked;
    }
    if (replaces && exists && access(target, W_OK)) return errno;
    if (replaces)
        return memoi_file_replace(target, exists ? &info : NULL, text->data, text->n_bytes);

    /* In place into an open file, or into a device, a pipe, or the missing target of a link. */
    if (open_file >= 0)
        return fflush(open_file == STDOUT_FILENO ? stdout : stderr)
                   ? errno
                   : memoi_file_write_all(open_file, text->data, text->n_bytes);
    open_file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return memoi_file_write_and_close(memoi_file_descriptor_from_3(open_file), text->data,
                                      text->n_bytes);
}
#endif

memo_status memo_text_write(memo_text* text, const char* path, memo_error* error) {
    int code;
    if (!path) memo_text_free(text);
    MEMOB_REFUSE_NULL(error, "text", text);
    MEMOB_REFUSE_NULL(error, "path", path);
    code = text->failed ? ENOMEM : memoi_text_store(text, path);
    memo_text_free(text);
    if (!code) return MEMO_STATUS_OK;
    if (code == ENOMEM)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "%s: no host memory for its text", path);
    return memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be written: %s",
                          strcmp(path, "-") ? path : "standard output", strerror(code));
}
