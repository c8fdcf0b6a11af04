#pragma once
/* ---- 1 status and error ---------------------------------------------------------------------- */

typedef enum memo_status {
    MEMO_STATUS_OK = 0,
    MEMO_STATUS_INVALID_ARGUMENT,     /* invalid argument or desc */
    MEMO_STATUS_INVALID_STATE,        /* a call out of order */
    MEMO_STATUS_OUT_OF_DEVICE_MEMORY, /* the device's capacity is exhausted */
    MEMO_STATUS_OUT_OF_HOST_MEMORY,   /* pinned memory, or memo's own bookkeeping */
    MEMO_STATUS_DIVERGED,             /* a request other than the next planned request */
    MEMO_STATUS_INFEASIBLE,           /* no plan fits into the given capacity */
    MEMO_STATUS_IO,                   /* a file cannot be read or written */
    MEMO_STATUS_FORMAT,               /* a file or text has the wrong format */
    MEMO_STATUS_VERSION,              /* a file has a version that this header cannot read */
    MEMO_STATUS_DEVICE,               /* the device reports an error */
    MEMO_STATUS_UNSUPPORTED,          /* not available in this build or on this device */
    MEMO_STATUS_COMM,                 /* a rank is lost, late, or makes a different call */
    MEMO_N_STATUSES
} memo_status;

/* Optional; owned by the caller; written only on failure. */
typedef struct memo_error {
    memo_status status;
    int64_t line; /* of the text with the error, from 1; 0: none */
    char message[496];
} memo_error;

/* For example "out of device memory"; never NULL. */
MEMO_API const char* memo_status_name(memo_status status);

/* Writes error, which may be NULL, and returns status: `return memo_error_set(error, status, "...",
 * ...);`.  Control characters become `?`, so that a message has no line break.  For a memo_device
 * or host function of your own. */
MEMO_API memo_status memo_error_set(memo_error* error, memo_status status, const char* format, ...)
    MEMO_PRINTF(3, 4);

/* Receives warnings and progress, a line each without a newline.  All zero: these are dropped. */
typedef struct memo_log {
    void (*write)(void* user, const char* message);
    void* user;
} memo_log;

/* Text that grows in memory and is then written to a file, completely or not at all.  Start with
 * all zero.  memo writes files and pictures with this text; a trainer may, too. */
typedef struct memo_text {
    char* data; /* n_bytes, and a zero */
    int64_t n_bytes, capacity;
    int32_t failed; /* memory was exhausted; memo_text_write returns the error */
} memo_text;

/* Appends like printf. */
MEMO_API void memo_text_put(memo_text* text, const char* format, ...) MEMO_PRINTF(2, 3);
/* Append a string inside an XML element or attribute, or inside a JSON string.  Markup and quotes
 * are escaped, control characters but XML's line breaks are dropped, and a byte that is not UTF-8
 * becomes U+FFFD. */
MEMO_API void memo_text_put_xml(memo_text* text, const char* string);
MEMO_API void memo_text_put_json(memo_text* text, const char* string);
/* Writes text to path and frees the text, on failure too.  A regular file is replaced by rename:
 * readers see the old or the new file, the mode is kept, and a signal leaves no temporary file.
 * For a symbolic link the target is replaced.  "-" means standard output.  The file that standard
 * output or standard error goes to, under any path, is not replaced: the text goes there, too.
 * Errors: IO (also for a read-only file, and beyond the limit on file sizes),
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_text_write(memo_text* text, const char* path, memo_error* error);
MEMO_API void memo_text_free(memo_text* text);
