#include "gpt/show/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers -------------------------------------------------------------------------------- */

const char* text_of(const char* format, ...) {
    static char ring[32][1024];
    static int next;
    va_list values;
    next = (next + 1) % 32;
    va_start(values, format);
    vsnprintf(ring[next], sizeof ring[next], format, values);
    va_end(values);
    return ring[next];
}

const char* path_text(const char* path, const char* name) {
    return path ? text_of("%s%s%s", path, *name == '.' ? "" : "/", name) : NULL;
}

/* Returns the unit of a size: 0 for bytes, 1 for KiB. */
static int bytes_unit(int64_t n_bytes) {
    int unit = 0;
    for (double n = (double)n_bytes; n >= 1024 && unit < 6; unit++) n /= 1024;
    return unit;
}
static const char* bytes_in(int64_t n_bytes, int unit) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return text_of("%.*f %s", unit ? 1 : 0, ldexp((double)n_bytes, -10 * unit), units[unit]);
}

const char* bytes_name(int64_t n_bytes) { return bytes_in(n_bytes, bytes_unit(n_bytes)); }

const char* bytes_beside(int64_t n_bytes, int64_t other) {
    int unit = bytes_unit(n_bytes);
    while (unit && n_bytes != other && !strcmp(bytes_in(n_bytes, unit), bytes_in(other, unit)))
        unit--;
    return bytes_in(n_bytes, unit);
}

const char* bytes_option(int64_t n_bytes) {
    static const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    int64_t size = 1024;
    int unit = 0;
    for (; unit < 3 && n_bytes / size >= 10240; unit++) size *= 1024;
    return text_of("%lld%s", (long long)((n_bytes + size - 1) / size), units[unit]);
}

const char* duration_name(double duration_s) {
    const double minutes = duration_s / 60, hours = minutes / 60;
    return minutes < 2  ? text_of("%.0f s", duration_s)
           : hours < 2  ? text_of("%.3g min", minutes)
           : hours < 48 ? text_of("%.3g h", hours)
                        : text_of("%.0f days", hours / 24);
}

double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- progress ------------------------------------------------------------------------------- */

#define PROGRESS_LINES 25 /* in a file */

void progress_show(progress* p, int64_t step, double loss) {
    double now = clock_s(), done = (double)(step + 1 - p->first), elapsed = now - p->begin_s;
    double left_s = elapsed / done * (double)(p->n_steps - step - 1);
    int64_t every = (p->n_steps + PROGRESS_LINES - 1) / PROGRESS_LINES;
    int is_last = step + 1 == p->n_steps;
    if (p->is_terminal ? !is_last && now - p->shown_s < 0.2 : !is_last && step % every) return;
    p->shown_s = now;
    printf("%sstep %lld of %lld   loss %.4f nats/token   %.0f tokens/s   %.0f s left%s",
           p->is_terminal ? "\r\033[K" : "  ", (long long)step + 1, (long long)p->n_steps, loss,
           (double)p->step_tokens * done / elapsed, left_s, p->is_terminal ? "" : "\n");
    fflush(stdout);
}

void progress_end(const progress* p) {
    if (p->is_terminal) printf("\n");
    fflush(stdout);
}

/* What a session logs while it measures, plans and takes memory: on a terminal, one line that is rewritten
 * and then cleared. */
static void starting_write(void* user, const char* message) {
    (void)user;
    printf("\r\033[K%.78s", message);
    fflush(stdout);
}
memo_log starting_log(void) {
    memo_log log = {starting_write, NULL};
    if (!isatty(STDOUT_FILENO)) log.write = NULL;
    return log;
}
void starting_end(memo_log log) {
    if (log.write) log.write(log.user, "");
}

/* ---- generated text ------------------------------------------------------------------------- */

void print_bytes(const uint8_t* bytes, int64_t n_bytes) {
    printf("    | ");
    for (int64_t i = 0; i < n_bytes; i++) {
        if (bytes[i] == '\n')
            printf("\n    | ");
        else if (bytes[i] == '\t')
            printf("\\t");
        else if (bytes[i] >= 32 && bytes[i] < 127)
            putchar(bytes[i]);
        else
            printf("\\x%02x", bytes[i]);
    }
    printf("\n");
}
