/* plan_trace - where should every buffer of this trace go?
 *
 *   plan_trace FILE [options]; plan_trace --help lists them
 *
 * FILE is a memo trace or a CSV of buffers (id,lower,upper,size; optional columns alignment, offset, gaps),
 * recognised by its content; "-" is standard input.  Prints `key: value` lines.
 *
 * Build:   cc -std=c99 -O2 -I. examples/plan_trace.c -o plan_trace -lpthread -lm
 *          (add -DMEMO_LP_SOLVE -llpsolve55 for --engine mip)
 * Try:     build/examples/plan_trace examples/layer.trace --svg plan.svg --compare-caching */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"

#include <time.h>

/* ---- options ---------------------------------------------------------------------------------------- */

typedef struct options {
    const char *file, *csv, *plan, *svg, *json;
    memo_plan_desc solve;
    int64_t alignment_bytes;
    int is_quiet, compare_caching;
} options;

static int refuse(const char* what, const char* value) {
    fprintf(stderr, "plan_trace: %s%s%s; --help lists the options\n", what, value ? " " : "",
            value ? value : "");
    return 2;
}

static void print_help(void) {
    puts("usage: plan_trace FILE [options]\n"
         "\n"
         "FILE: a memo trace, or a CSV id,lower,upper,size with optional columns alignment,\n"
         "offset (a fixed one) and gaps (\"3-5 8-9\"); - is standard input.\n"
         "\n"
         "  --engine NAME       auto (default): greedy, bi-level, search, as far as each helps\n"
         "                      greedy: a few orders, the best of them\n"
         "                      bilevel: layers once, then what joins them; where that misses\n"
         "                      the bound, greedy and search too\n"
         "                      search: greedy, then branch and bound\n"
         "                      mip: greedy, then the paper's program; small cases, lp_solve\n"
         "  --capacity BYTES    stop at a plan this small; exit 1 where none is found\n"
         "  --align BYTES       of every offset and size, a power of two (default 1)\n"
         "  --time-limit S      (default 10, beyond 8000 buffers 3)\n"
         "  --seed N            of the search (default 0)\n"
         "  --threads N         of the search, side by side, up to 64 (default 1)\n"
         "  --csv OUT           a row per buffer: id,lower,upper,size,offset\n"
         "  --plan OUT          the plan, for memo_plan_read\n"
         "  --svg OUT           a picture: address over time\n"
         "  --json OUT          a snapshot in the layout of PyTorch's memory viewer\n"
         "  --compare-caching   replay the trace through a model of PyTorch's caching allocator\n"
         "  --quiet             no progress on standard error\n"
         "\n"
         "exit: 0 solved, 1 the capacity is not met, 2 bad input");
}

static int parse_count(const char* text, int64_t* value) {
    char* end;
    long long number;
    errno = 0;
    number = strtoll(text, &end, 10);
    *value = number;
    return end != text && *end == 0 && errno == 0 && number >= 0;
}

/* 0, or the exit status; -1 asks for help. */
static int parse_options(int argc, char** argv, options* o) {
    int i;
    memset(o, 0, sizeof *o);
    o->solve = memo_plan_desc_default();
    o->alignment_bytes = 1;
    for (i = 1; i < argc; i++) {
        const char* name = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : NULL;
        int64_t number = 0;
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) return -1;
        if (!strcmp(name, "--quiet")) {
            o->is_quiet = 1;
            continue;
        }
        if (!strcmp(name, "--compare-caching")) {
            o->compare_caching = 1;
            continue;
        }
        if (name[0] != '-' || !name[1]) {
            if (o->file) return refuse("more than one FILE:", name);
            o->file = name;
            continue;
        }
        if (!value) return refuse("unknown option, or its value is missing:", name);
        i++;
        if (!strcmp(name, "--engine")) {
            if (!strcmp(value, "auto"))
                o->solve.engine = MEMO_PLAN_ENGINE_AUTO;
            else if (!strcmp(value, "greedy"))
                o->solve.engine = MEMO_PLAN_ENGINE_GREEDY;
            else if (!strcmp(value, "search"))
                o->solve.engine = MEMO_PLAN_ENGINE_SEARCH;
            else if (!strcmp(value, "mip"))
                o->solve.engine = MEMO_PLAN_ENGINE_MIP;
            else if (!strcmp(value, "bilevel"))
                o->solve.engine = MEMO_PLAN_ENGINE_BILEVEL;
            else
                return refuse("--engine is auto, greedy, bilevel, search or mip, not", value);
        } else if (!strcmp(name, "--capacity")) {
            if (!parse_count(value, &o->solve.capacity_bytes) || o->solve.capacity_bytes == 0)
                return refuse("--capacity is a number of bytes above 0, not", value);
        } else if (!strcmp(name, "--align")) {
            if (!parse_count(value, &o->alignment_bytes) || o->alignment_bytes == 0 ||
                (o->alignment_bytes & (o->alignment_bytes - 1)))
                return refuse("--align is a power of two, not", value);
        } else if (!strcmp(name, "--time-limit")) {
            char* end;
            o->solve.time_limit_s = strtod(value, &end);
            if (*end || end == value || !(o->solve.time_limit_s > 0))
                return refuse("--time-limit is seconds above 0, not", value);
        } else if (!strcmp(name, "--seed")) {
            if (!parse_count(value, &number))
                return refuse("--seed is a number from 0, not", value);
            o->solve.seed = (uint64_t)number;
        } else if (!strcmp(name, "--threads")) {
            if (!parse_count(value, &number) || number < 1 || number > 64)
                return refuse("--threads is a number from 1 to 64, not", value);
            o->solve.n_threads = (int32_t)number;
        } else if (!strcmp(name, "--csv"))
            o->csv = value;
        else if (!strcmp(name, "--plan"))
            o->plan = value;
        else if (!strcmp(name, "--svg"))
            o->svg = value;
        else if (!strcmp(name, "--json"))
            o->json = value;
        else
            return refuse("unknown option", name);
    }
    return o->file ? 0 : refuse("no FILE", NULL);
}

/* ---- input ------------------------------------------------------------------------------------------- */

/* What was read: always a plan; a trace where the file is one; the rows' ids where it is a CSV. */
typedef struct input {
    char* text;
    int64_t n_bytes;
    memo_trace* trace;
    memo_plan* plan;
    char** names; /* of CSV row i, which is the buffer with id i */
} input;

static void close_input(input* in) {
    memo_plan_destroy(in->plan);
    memo_trace_destroy(in->trace);
    free(in->names);
    free(in->text);
}

static memo_status read_text(const char* path, input* in, memo_error* error) {
    FILE* file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    int64_t capacity = 1 << 16;
    size_t n = 1;
    if (!file)
        return memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be read: %s", path,
                              strerror(errno));
    in->text = (char*)malloc((size_t)capacity);
    while (in->text && n > 0) {
        if (in->n_bytes + 1 >= capacity) {
            char* larger = (char*)realloc(in->text, (size_t)(capacity *= 2));
            if (!larger) free(in->text);
            in->text = larger;
            if (!larger) break;
        }
        n = fread(in->text + in->n_bytes, 1, (size_t)(capacity - in->n_bytes - 1), file);
        in->n_bytes += (int64_t)n;
    }
    if (file != stdin) fclose(file);
    if (!in->text)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "%s: too large", path);
    in->text[in->n_bytes] = 0;
    return MEMO_STATUS_OK;
}

static memo_status csv_error(memo_error* error, const char* path, int64_t line, const char* fault) {
    return memo_error_set(error, MEMO_STATUS_FORMAT, "%s:%lld: %s", path, (long long)line, fault);
}

typedef enum column { ID, LOWER, UPPER, SIZE, ALIGNMENT, OFFSET, GAPS, N_COLUMNS } column;

/* Splits a line in place at its commas, blanks and quotes around fields dropped; returns the count. */
static int split_fields(char* line, char** fields, int limit) {
    int n = 0;
    while (n < limit) {
        char* comma = strchr(line, ',');
        char* end = comma ? comma : line + strlen(line);
        while (*line == ' ' || *line == '"') line++;
        while (end > line && (end[-1] == ' ' || end[-1] == '"' || end[-1] == '\r')) end--;
        *end = 0;
        fields[n++] = line;
        if (!comma) break;
        line = comma + 1;
    }
    return n;
}

/* "3-5 8-9": adds them to the plan's gaps; counts only where the plan has none yet. */
static const char* read_gaps(const char* text, memo_plan* plan, int64_t buffer, int64_t* n_gaps) {
    while (*text) {
        char* end;
        long long begin, stop;
        while (*text == ' ') text++;
        if (!*text) break;
        begin = strtoll(text, &end, 10);
        if (end == text || *end != '-') return "gaps are written 3-5 8-9";
        text = end + 1;
        stop = strtoll(text, &end, 10);
        if (end == text || (*end && *end != ' ')) return "gaps are written 3-5 8-9";
        text = end;
        if (plan) {
            plan->gaps[*n_gaps].buffer = buffer;
            plan->gaps[*n_gaps].begin = begin;
            plan->gaps[*n_gaps].end = stop;
        }
        (*n_gaps)++;
    }
    return NULL;
}

static memo_status read_row(const char* path, int64_t line, char** fields, int n_fields,
                            const int* column_of, memo_buffer* buffer, int64_t alignment,
                            memo_error* error) {
    static const char* const names[] = {"id", "lower", "upper", "size", "alignment", "offset"};
    int64_t values[N_COLUMNS];
    int c;
    for (c = LOWER; c <= OFFSET; c++) {
        char fault[64];
        int at = column_of[c];
        values[c] = -1;
        if (at < 0 || (at < n_fields && c > SIZE && !*fields[at])) continue;
        snprintf(fault, sizeof fault, "%s is not a whole number from 0 up to 2^62", names[c]);
        if (at >= n_fields || !parse_count(fields[at], &values[c]) || values[c] > (int64_t)1 << 62)
            return csv_error(error, path, line, fault);
    }
    if (values[LOWER] >= values[UPPER])
        return csv_error(error, path, line, "lower is not below upper");
    if (values[ALIGNMENT] == 0 ||
        (values[ALIGNMENT] > 0 && (values[ALIGNMENT] & (values[ALIGNMENT] - 1))))
        return csv_error(error, path, line, "alignment is not a power of two");
    buffer->begin = values[LOWER];
    buffer->end = values[UPPER];
    buffer->size_bytes = values[SIZE];
    buffer->alignment_bytes = values[ALIGNMENT] > alignment ? values[ALIGNMENT] : alignment;
    buffer->is_fixed = values[OFFSET] >= 0;
    buffer->offset_bytes = values[OFFSET] >= 0 ? values[OFFSET] : 0;
    if (buffer->offset_bytes % buffer->alignment_bytes)
        return csv_error(error, path, line, "offset is not a multiple of the alignment");
    return MEMO_STATUS_OK;
}

/* Two passes: count rows and gaps, then read them. */
static memo_status read_csv(const char* path, input* in, int64_t alignment, memo_error* error) {
    static const char* const names[] = {"id",        "lower",  "upper", "size",
                                        "alignment", "offset", "gaps"};
    int column_of[N_COLUMNS], c, k, n_fields;
    char *fields[32], *line, *next;
    int64_t n_rows = -1, n_gaps = 0, n_line = 0, row = 0;
    memo_status status;
    for (line = in->text; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) next++;
        n_rows += strspn(line, " \r\n") < (size_t)(next - line);
    }
    for (k = 0; k < (int)in->n_bytes; k++) n_gaps += in->text[k] == '-';
    status = memo_plan_create(n_rows, n_gaps, alignment, &in->plan, error);
    if (status) return status;
    in->names = (char**)calloc((size_t)n_rows + 1, sizeof(char*));
    if (!in->names)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "%s: too large", path);
    in->plan->n_gaps = 0;
    for (c = 0; c < N_COLUMNS; c++) column_of[c] = -1;
    for (line = in->text, n_line = 1; *line; line = next, n_line++) {
        const char* fault;
        next = line + strcspn(line, "\n");
        if (*next) *next++ = 0;
        if (!line[strspn(line, " \r")]) continue;
        n_fields = split_fields(line, fields, 32);
        if (column_of[ID] < 0) { /* the heading */
            for (k = 0; k < n_fields; k++)
                for (c = 0; c < N_COLUMNS; c++)
                    if (!strcmp(fields[k], names[c])) column_of[c] = k;
            for (c = ID; c <= SIZE; c++)
                if (column_of[c] < 0)
                    return csv_error(error, path, n_line,
                                     "the heading must name id, lower, upper and size");
            continue;
        }
        status = read_row(path, n_line, fields, n_fields, column_of, &in->plan->buffers[row],
                          alignment, error);
        if (status) return status;
        in->names[row] = column_of[ID] < n_fields ? fields[column_of[ID]] : fields[0];
        in->plan->buffers[row].id = row;
        if (column_of[GAPS] >= 0 && column_of[GAPS] < n_fields) {
            fault = read_gaps(fields[column_of[GAPS]], in->plan, row, &in->plan->n_gaps);
            if (fault) return csv_error(error, path, n_line, fault);
        }
        row++;
    }
    return MEMO_STATUS_OK;
}

static memo_status read_input(const options* o, input* in, memo_error* error) {
    const char* name = strcmp(o->file, "-") ? o->file : "standard input";
    memo_status status = read_text(o->file, in, error);
    size_t heading;
    if (status) return status;
    heading = strcspn(in->text, "\n");
    if (memchr(in->text, ',', heading) && memchr(in->text, '#', heading) != in->text)
        return read_csv(name, in, o->alignment_bytes, error);
    status = memo_trace_parse(in->text, in->n_bytes, name, &in->trace, error);
    if (status) return status;
    return memo_plan_from_trace(in->trace, o->alignment_bytes, &in->plan, error);
}

/* ---- output ------------------------------------------------------------------------------------------ */

typedef struct progress {
    time_t begin;
    int has_shown;
} progress;

static void show_progress(void* user, const char* message) {
    progress* p = (progress*)user;
    if (time(NULL) - p->begin < 1) return;
    fprintf(stderr, "\r%-78s", message);
    fflush(stderr);
    p->has_shown = 1;
}

static const char* name_of(const input* in, const memo_buffer* buffer, char* scratch) {
    if (in->names) return in->names[buffer->id];
    snprintf(scratch, 32, "%lld", (long long)buffer->id);
    return scratch;
}

static memo_status write_csv(const input* in, const char* path, memo_error* error) {
    memoi_text text;
    char scratch[32];
    int64_t i;
    memset(&text, 0, sizeof text);
    memoi_put(&text, "id,lower,upper,size,offset\n");
    for (i = 0; i < in->plan->n_buffers; i++) {
        const memo_buffer* buffer = &in->plan->buffers[i];
        memoi_put(&text, "%s,%lld,%lld,%lld,%lld\n", name_of(in, buffer, scratch),
                  (long long)buffer->begin, (long long)buffer->end, (long long)buffer->size_bytes,
                  (long long)buffer->offset_bytes);
    }
    return memoi_text_write(&text, path, error);
}

static int by_time(const void* left, const void* right) {
    const int64_t* a = (const int64_t*)left;
    const int64_t* b = (const int64_t*)right;
    if (a[0] != b[0]) return a[0] < b[0] ? -1 : 1;
    return (a[1] > b[1]) - (a[1] < b[1]); /* frees (negative) before mallocs */
}

/* The layout of torch.cuda.memory._snapshot(): one segment, and its events in order of time. */
static memo_status write_json(const input* in, const char* path, memo_error* error) {
    const memo_plan* plan = in->plan;
    int64_t i, n = plan->n_buffers, (*events)[2];
    memoi_text text;
    memset(&text, 0, sizeof text);
    events = (int64_t(*)[2])calloc(2 * (size_t)n + 1, sizeof *events);
    if (!events)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "%s: too large", path);
    for (i = 0; i < n; i++) {
        events[2 * i][0] = plan->buffers[i].begin;
        events[2 * i][1] = i;
        events[2 * i + 1][0] = plan->buffers[i].end;
        events[2 * i + 1][1] = i - n;
    }
    qsort(events, 2 * (size_t)n, sizeof *events, by_time);
    memoi_put(
        &text,
        "{\"segments\":[{\"address\":0,\"total_size\":%lld,\"allocated_size\":0,\"active_size\":0,"
        "\"requested_size\":0,\"device\":0,\"stream\":0,\"segment_type\":\"large\","
        "\"segment_pool_id\":[0,0],\"is_expandable\":false,\"frames\":[],\"blocks\":[{\"address\":"
        "0,\"size\":%lld,\"requested_size\":0,\"state\":\"inactive\",\"frames\":[]}]}],\n"
        "\"device_traces\":[[\n{\"action\":\"segment_alloc\",\"addr\":0,\"size\":%lld,\"stream\":0,"
        "\"time_us\":0,\"frames\":[]}",
        (long long)plan->peak_bytes, (long long)plan->peak_bytes, (long long)plan->peak_bytes);
    for (i = 0; i < 2 * n; i++) {
        int is_free = events[i][1] < 0;
        const memo_buffer* buffer = &plan->buffers[is_free ? events[i][1] + n : events[i][1]];
        char scratch[32];
        if (is_free) /* the viewer wants both moments of a free */
            memoi_put(&text,
                      ",\n{\"action\":\"free_requested\",\"addr\":%lld,\"size\":%lld,\"stream\":%d,"
                      "\"time_us\":%lld,\"frames\":[]}",
                      (long long)buffer->offset_bytes, (long long)buffer->size_bytes,
                      (int)buffer->stream, (long long)events[i][0]);
        memoi_put(
            &text,
            ",\n{\"action\":\"%s\",\"addr\":%lld,\"size\":%lld,\"stream\":%d,\"time_us\":%lld,"
            "\"frames\":[{\"name\":\"buffer ",
            is_free ? "free_completed" : "alloc", (long long)buffer->offset_bytes,
            (long long)buffer->size_bytes, (int)buffer->stream, (long long)events[i][0]);
        memoi_put_json(&text, name_of(in, buffer, scratch));
        memoi_put(&text, "\",\"filename\":\"\",\"line\":0}]}");
    }
    memoi_put(&text, "\n]]}\n");
    free(events);
    return memoi_text_write(&text, path, error);
}

/* ---- PyTorch's caching allocator, modelled --------------------------------------------------------------
 *
 * From its documentation and release notes: sizes round up to 512; up to 1 MiB a request is served from
 * segments of 2 MiB, up to 10 MiB from segments of 20 MiB, above from a segment of its own, rounded up to
 * 2 MiB; the smallest free block that fits is taken (lowest address among equals) and split where the
 * rest is 512 bytes or more (small) or above 1 MiB (large); neighbours merge when freed.  Device memory is
 * without end here, so that nothing is ever retried. */

enum { KIB = 1024, MIB = 1024 * 1024 };

typedef struct block {
    int64_t size, buffer;   /* -1: free */
    int64_t previous, next; /* in the segment; -1: none */
    int64_t address;
    int is_small;
} block;

typedef struct caching {
    block* blocks;
    int64_t n_blocks;
    int64_t reserved, allocated, peak_allocated, next_address;
} caching;

/* The free block that the allocator would take, or a new segment. */
static int64_t caching_find(caching* c, int64_t size, int is_small) {
    int64_t i, best = -1, segment;
    for (i = 0; i < c->n_blocks; i++) {
        const block* b = &c->blocks[i];
        if (b->buffer != -1 || b->is_small != is_small || b->size < size) continue;
        if (best < 0 || b->size < c->blocks[best].size ||
            (b->size == c->blocks[best].size && b->address < c->blocks[best].address))
            best = i;
    }
    if (best >= 0) return best;
    segment = is_small          ? 2 * MIB
              : size < 10 * MIB ? 20 * MIB
                                : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    best = c->n_blocks++;
    c->blocks[best].size = segment;
    c->blocks[best].buffer = -1;
    c->blocks[best].previous = c->blocks[best].next = -1;
    c->blocks[best].is_small = is_small;
    c->blocks[best].address = c->next_address;
    c->next_address += segment;
    c->reserved += segment;
    return best;
}

static int64_t caching_malloc(caching* c, int64_t bytes, int64_t buffer) {
    int64_t size = bytes < 512 ? 512 : (bytes + 511) / 512 * 512, at, rest;
    int is_small = size <= MIB;
    at = caching_find(c, size, is_small);
    rest = c->blocks[at].size - size;
    if (is_small ? rest >= 512 : rest > MIB) {
        int64_t tail = c->n_blocks++;
        c->blocks[tail] = c->blocks[at];
        c->blocks[tail].size = rest;
        c->blocks[tail].address += size;
        c->blocks[tail].previous = at;
        if (c->blocks[at].next >= 0) c->blocks[c->blocks[at].next].previous = tail;
        c->blocks[at].next = tail;
        c->blocks[at].size = size;
    }
    c->blocks[at].buffer = buffer;
    c->allocated += c->blocks[at].size;
    if (c->allocated > c->peak_allocated) c->peak_allocated = c->allocated;
    return at;
}

/* Block `into` swallows its right neighbour. */
static void caching_merge(caching* c, int64_t into) {
    int64_t gone = c->blocks[into].next;
    c->blocks[into].size += c->blocks[gone].size;
    c->blocks[into].next = c->blocks[gone].next;
    if (c->blocks[gone].next >= 0) c->blocks[c->blocks[gone].next].previous = into;
    c->blocks[gone].buffer = -2; /* no block any more */
}

static void caching_free(caching* c, int64_t at) {
    int64_t previous = c->blocks[at].previous, next = c->blocks[at].next;
    c->allocated -= c->blocks[at].size;
    c->blocks[at].buffer = -1;
    if (next >= 0 && c->blocks[next].buffer == -1) caching_merge(c, at);
    if (previous >= 0 && c->blocks[previous].buffer == -1) caching_merge(c, previous);
}

static memo_status compare_caching(const memo_plan* plan, memo_error* error) {
    int64_t i, n = plan->n_buffers, (*events)[2], *where;
    caching c;
    memset(&c, 0, sizeof c);
    events = (int64_t(*)[2])calloc(2 * (size_t)n + 1, sizeof *events);
    where = (int64_t*)calloc((size_t)n + 1, sizeof *where);
    c.blocks = (block*)calloc(2 * (size_t)n + 2, sizeof *c.blocks);
    if (events && where && c.blocks) {
        for (i = 0; i < n; i++) {
            events[2 * i][0] = plan->buffers[i].begin;
            events[2 * i][1] = i;
            events[2 * i + 1][0] = plan->buffers[i].end;
            events[2 * i + 1][1] = i - n;
        }
        qsort(events, 2 * (size_t)n, sizeof *events, by_time);
        for (i = 0; i < 2 * n; i++) {
            int64_t buffer = events[i][1] < 0 ? events[i][1] + n : events[i][1];
            if (plan->buffers[buffer].size_bytes == 0) continue;
            if (events[i][1] < 0)
                caching_free(&c, where[buffer]);
            else
                where[buffer] = caching_malloc(&c, plan->buffers[buffer].size_bytes, buffer);
        }
        printf("caching_allocated_bytes: %lld\n", (long long)c.peak_allocated);
        printf("caching_reserved_bytes: %lld\n", (long long)c.reserved);
        printf("caching_retries: 0\n");
        printf("caching_fragmentation_percent: %.3f\n",
               c.reserved ? 100.0 * (double)(c.reserved - c.peak_allocated) / (double)c.reserved
                          : 0.0);
        printf("caching_over_plan_percent: %.3f\n",
               plan->peak_bytes ? 100.0 * ((double)c.reserved / (double)plan->peak_bytes - 1)
                                : 0.0);
    }
    i = events && where && c.blocks;
    free(events);
    free(where);
    free(c.blocks);
    return i ? MEMO_STATUS_OK
             : memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "no memory for the comparison");
}

/* ---- main -------------------------------------------------------------------------------------------- */

int main(int argc, char** argv) {
    options o;
    input in;
    progress shown;
    memo_error error;
    struct timespec begin, end;
    double seconds;
    memo_status status, capacity_status;
    int result = parse_options(argc, argv, &o);
    if (result < 0) {
        print_help();
        return 0;
    }
    if (result) return result;
    memset(&in, 0, sizeof in);
    memset(&shown, 0, sizeof shown);
    status = read_input(&o, &in, &error);
    if (status) {
        fprintf(stderr, "plan_trace: %s\n", error.message);
        close_input(&in);
        return 2;
    }
    shown.begin = time(NULL);
    o.solve.trace = in.trace;
    o.solve.log.user = &shown;
    if (!o.is_quiet && isatty(2)) o.solve.log.write = show_progress;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    capacity_status = memo_plan_solve(in.plan, &o.solve, &error);
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    if (shown.has_shown) fprintf(stderr, "\r%-78s\r", "");
    if (capacity_status) fprintf(stderr, "plan_trace: %s\n", error.message);
    if (capacity_status && capacity_status != MEMO_STATUS_INFEASIBLE) {
        close_input(&in);
        return 2;
    }
    status = memo_plan_validate(in.plan, &error);
    if (!status) {
        const memo_plan* plan = in.plan;
        double bound = (double)plan->lower_bound_bytes;
        printf("buffers: %lld\n", (long long)plan->n_buffers);
        printf("lower_bound_bytes: %lld\n", (long long)plan->lower_bound_bytes);
        printf("peak_bytes: %lld\n", (long long)plan->peak_bytes);
        printf("gap_percent: %.4f\n",
               bound > 0 ? 100 * ((double)plan->peak_bytes - bound) / bound : 0.0);
        printf("proof: %s\n", plan->proof == MEMO_PROOF_OPTIMAL ? "optimal" : "feasible");
        printf("engine: %s\n", plan->engine);
        printf("solve_seconds: %.6f\n", seconds);
    }
    if (!status && o.compare_caching) status = compare_caching(in.plan, &error);
    if (!status && o.csv) status = write_csv(&in, o.csv, &error);
    if (!status && o.plan) status = memo_plan_write(in.plan, o.plan, &error);
    if (!status && o.svg) status = memo_plan_write_svg(in.plan, in.trace, o.file, o.svg, &error);
    if (!status && o.json) status = write_json(&in, o.json, &error);
    if (status) fprintf(stderr, "plan_trace: %s\n", error.message);
    close_input(&in);
    return status ? 2 : capacity_status ? 1 : 0;
}
