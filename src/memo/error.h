#pragma once
/* ---- >>error ------------------------------------------------------------------------------------
 * Knows: statuses and messages.  Knows nothing else. */

const char* memo_status_name(memo_status status) {
    static const char* const names[] = {"ok",
                                        "invalid argument",
                                        "invalid state",
                                        "out of device memory",
                                        "out of host memory",
                                        "diverged from the plan",
                                        "infeasible",
                                        "input/output error",
                                        "format error",
                                        "unknown version",
                                        "device error",
                                        "unsupported",
                                        "communication error"};
    MEMOB_TABLE_OF(MEMO_N_STATUSES, names);
    return (unsigned)status < MEMO_N_STATUSES ? names[status] : "unknown status";
}

/* A call whose status changes nothing: what follows has an error already, or ends. */
#define MEMOB_IGNORE(call)                                                                         \
    do {                                                                                           \
        const memo_status ignored = (call);                                                        \
        (void)ignored;                                                                             \
    } while (0)

memo_status memo_error_set(memo_error* error, memo_status status, const char* format, ...) {
    if (error) {
        va_list arguments;
        char* c;
        error->status = status;
        error->line = 0;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format ? format : memo_status_name(status),
                  arguments);
        va_end(arguments);
        for (c = error->message; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    }
    return status;
}
