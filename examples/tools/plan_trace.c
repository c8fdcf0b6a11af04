/* plan_trace - where should every buffer of this trace go?
 *
 *   plan_trace FILE [options]; plan_trace --help lists them
 *
 * FILE is a memo trace or a CSV of buffers (id,lower,upper,size; optional columns alignment,
 * offset, gaps), recognized by its content; "-" is standard input.  Prints `key: value` lines.
 *
 * Build:   cc -std=c99 -O2 -I. examples/tools/plan_trace.c -o plan_trace -lpthread -lm
 *          (add -DMEMO_LP_SOLVE -llpsolve55 for --engine mip)
 * Try:     build/examples/plan_trace examples/layer.trace --svg plan.svg --compare-caching */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "plan_proof.h" /* includes extras/memo_pack.h and memo_plan.h */
#include "extras/memo_look.h"
#include "caching_model.h"
#include "tool_files.h"
#include "trace_layers.h"

#include <signal.h>
#include <time.h>

/* ---- options --------------------------------------------------------------------------------- */

typedef struct options {
    const char *file, *csv, *plan, *proof, *svg, *json, *pickle; /* NULL: not given */
    memo_plan_desc solve;
    int64_t alignment_bytes, seed;
    int64_t n_layers; /* to make from the trace; 0: as it is */
    int is_quiet, compare_caching;
} options;

static void print_help(void) {
    puts(
        "usage: plan_trace FILE [options]\n"
        "\n"
        "Finds an offset for each buffer, so that no two overlap in time and address, in as "
        "little\n"
        "memory as possible.\n"
        "\n"
        "FILE is a memo trace, or a CSV with the columns id,lower,upper,size.  The columns "
        "alignment,\n"
        "offset (fixed) and gaps (\"3-5 8-9\") are optional.  - is standard input.\n"
        "\n"
        "  --engine NAME       auto (default): greedy, then local search and branch and bound,\n"
        "                              until the plan meets the bound\n"
        "                      greedy: the best of a few orders\n"
        "                      bilevel: plans a layer once, then what joins the layers; then as "
        "auto\n"
        "                      mip: greedy, then the mixed-integer program of the MEMO paper; for\n"
        "                              small problems, needs lp_solve\n"
        "  --capacity BYTES    stops at a plan this small; exit status 1 if it finds none\n"
        "  --align BYTES       alignment of each offset and size, a power of two (default 1)\n"
        "  --time-limit S      seconds (default 10; 3 for more than 8000 buffers)\n"
        "  --seed N            seed of the search (default 0)\n"
        "  --threads N         threads of the search, up to 64 (default 1)\n"
        "  --layers N          plans N layers, made from the trace's one, or three or more\n"
        "  --csv OUT           writes a row per buffer: id,lower,upper,size,offset\n"
        "  --plan OUT          writes the plan for memo_plan_read\n"
        "  --proof OUT         writes why no plan is smaller, for examples/tools/check_proof.py; "
        "exit\n"
        "                      status 1, and OUT stays as it is, if there is no proof to write\n"
        "  --svg OUT           draws address over time\n"
        "  --json OUT          writes a snapshot for PyTorch's memory viewer "
        "(pytorch.org/memory_viz)\n"
        "  --pickle OUT        writes the same for older viewers, which open pickles only\n"
        "  --compare-caching   replays the trace through a model of PyTorch's caching allocator, "
        "with\n"
        "                      the memory of --capacity if that is given\n"
        "  --quiet             prints no progress on standard error\n"
        "\n"
        "Ctrl-C or SIGTERM end planning with the best plan so far, which is printed and written.  "
        "They end\n"
        "the search for --proof too, and then no proof is written.\n"
        "\n"
        "Exit status: 0 solved; 1 no plan within the capacity, or no proof for --proof; 2 a "
        "mistake "
        "in\n"
        "the command line or the file, or output that cannot be written");
}

static int parse_count(const char* text, int64_t* value) {
    char* end;
    long long number;
    errno = 0;
    number = strtoll(text, &end, 10);
    *value = number;
    return end != text && *end == 0 && errno == 0 && number >= 0;
}

static int read_count(const tool_option* option, const char* value) {
    return parse_count(value, (int64_t*)option->to);
}

static int read_above_0(const tool_option* option, const char* value) {
    return read_count(option, value) && *(int64_t*)option->to > 0;
}

static int read_power(const tool_option* option, const char* value) {
    return read_above_0(option, value) &&
           (*(int64_t*)option->to & (*(int64_t*)option->to - 1)) == 0;
}

static int read_threads(const tool_option* option, const char* value) {
    int64_t n = 0;
    if (!parse_count(value, &n) || n < (int64_t)option->least || n > (int64_t)option->most)
        return 0;
    *(int32_t*)option->to = (int32_t)n;
    return 1;
}

static int read_seconds(const tool_option* option, const char* value) {
    double* seconds = (double*)option->to;
    char* end;
    *seconds = strtod(value, &end);
    return !*end && end != value && *seconds > 0;
}

static int read_engine(const tool_option* option, const char* value) {
    static const struct {
        const char* name;
        memo_plan_engine engine;
    } engines[] = {{"auto", MEMO_PLAN_ENGINE_AUTO},
                   {"greedy", MEMO_PLAN_ENGINE_GREEDY},
                   {"mip", MEMO_PLAN_ENGINE_MIP},
                   {"bilevel", MEMO_PLAN_ENGINE_BILEVEL}};
    int k = 0;
    while (k < 4 && strcmp(value, engines[k].name)) k++;
    if (k < 4) *(memo_plan_engine*)option->to = engines[k].engine;
    return k < 4;
}

/* Returns 0, or the exit status; -1 for help. */
static int parse_options(int argc, char** argv, options* o) {
    const tool_option known[] = {
        TOOL_VALUE("--engine", read_engine, &o->solve.engine, "not auto, greedy, bilevel or mip"),
        TOOL_VALUE("--capacity", read_above_0, &o->solve.capacity_bytes,
                   "not a number of bytes above 0"),
        TOOL_VALUE("--align", read_power, &o->alignment_bytes, "not a power of two"),
        TOOL_VALUE("--time-limit", read_seconds, &o->solve.time_limit_s,
                   "not a number of seconds above 0"),
        TOOL_VALUE("--seed", read_count, &o->seed, "not a whole number from 0"),
        TOOL_NUMBER("--threads", read_threads, &o->solve.n_threads, 1, 64, 0),
        TOOL_VALUE("--layers", read_above_0, &o->n_layers, "not a whole number from 1"),
        TOOL_OUTPUT("--csv", &o->csv),
        TOOL_OUTPUT("--plan", &o->plan),
        TOOL_OUTPUT("--proof", &o->proof),
        TOOL_OUTPUT("--svg", &o->svg),
        TOOL_OUTPUT("--json", &o->json),
        TOOL_OUTPUT("--pickle", &o->pickle),
        TOOL_FLAG("--compare-caching", &o->compare_caching),
        TOOL_FLAG("--quiet", &o->is_quiet)};
    int status;
    memset(o, 0, sizeof *o);
    o->solve = MEMO_ZERO(memo_plan_desc);
    o->alignment_bytes = 1;
    status = tool_read_options(stderr, "plan_trace", argc, argv, known,
                               (int)(sizeof known / sizeof *known), &o->file);
    o->solve.seed = (uint64_t)o->seed;
    return status;
}

/* ---- input ----------------------------------------------------------------------------------- */

/* The input: always a plan; a trace if the file is one; the rows' ids if it is a CSV. */
typedef struct input {
    char* text;
    int64_t n_bytes;
    memo_trace* trace;
    memo_plan* plan;
    char** names;     /* buffer of CSV row i, with id i */
    int64_t n_layers; /* of the trace to plan; 0: those of the file */
} input;

static void close_input(input* in) {
    memo_plan_destroy(in->plan);
    memo_trace_destroy(in->trace);
    free(in->names);
    free(in->text);
}

static memo_status read_text(const char* path, input* in, memo_error* error) {
    memo_status status = tool_append_file(path, &in->text, &in->n_bytes, error);
    if (status) return status;
    if (memchr(in->text, 0, (size_t)in->n_bytes)) {
        int64_t line = 1;
        for (int64_t i = 0; in->text[i]; i++) line += in->text[i] == '\n';
        return memo_error_set(error, MEMO_STATUS_FORMAT, "%s:%lld: a zero byte: this is not text",
                              path, (long long)line);
    }
    return MEMO_STATUS_OK;
}

static memo_status csv_error(memo_error* error, const char* path, int64_t line, const char* fault) {
    return memo_error_set(error, MEMO_STATUS_FORMAT, "%s:%lld: %s", path, (long long)line, fault);
}

typedef enum column { ID, LOWER, UPPER, SIZE, ALIGNMENT, OFFSET, GAPS, N_COLUMNS } column;

/* Reads one field in place, without the blanks around it.  Quotes may contain commas, and "" is a
 * quote. Returns the text after its comma, or NULL after the last field; *field is NULL if a quote
 * is not closed. */
static char* split_field(char* at, char** field) {
    char *to, *kept; /* blanks before kept belong to the field */
    int is_quoted = 0, is_last;
    while (*at == ' ' || *at == '\t') at++;
    for (to = kept = *field = at; *at && (is_quoted || *at != ','); at++) {
        if (*at == '"' && is_quoted && at[1] == '"')
            at++;
        else if (*at == '"') {
            is_quoted = !is_quoted;
            kept = to;
            continue;
        }
        *to++ = *at;
        if (is_quoted || !strchr(" \t\r", *at)) kept = to;
    }
    is_last = *at == 0;
    *kept = 0;
    if (is_quoted) *field = NULL;
    return is_last ? NULL : at + 1;
}

/* Returns the number of fields, at most limit; -1 if a quote is not closed. */
static int split_fields(char* line, char** fields, int limit) {
    int n = 0;
    while (line && n < limit) {
        line = split_field(line, &fields[n]);
        if (!fields[n++]) return -1;
    }
    return n;
}

/* Adds "3-5 8-9" to the plan's gaps. */
static const char* read_gaps(const char* text, memo_plan* plan, int64_t buffer, int64_t* n_gaps) {
    const memo_buffer* life = &plan->buffers[buffer];
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
        if (begin >= stop || begin < life->begin || stop > life->end)
            return "a gap is empty or leaves the lifetime";
        plan->gaps[*n_gaps].buffer = buffer;
        plan->gaps[*n_gaps].begin = begin;
        plan->gaps[(*n_gaps)++].end = stop;
    }
    return NULL;
}

static memo_status read_row(const char* path, int64_t line, char** fields, int n_fields,
                            const int* column_of, memo_buffer* buffer, int64_t alignment,
                            memo_error* error) {
    static const char* const names[] = {"id", "lower", "upper", "size", "alignment", "offset"};
    int64_t values[N_COLUMNS];

    /* Numbers; an optional column may be absent or empty. */
    for (int c = LOWER; c <= OFFSET; c++) {
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

/* Works in two passes: it counts rows and gaps, then reads them. */
static memo_status read_csv(const char* path, input* in, int64_t alignment, memo_error* error) {
    static const char* const names[] = {"id",        "lower",  "upper", "size",
                                        "alignment", "offset", "gaps"};
    int column_of[N_COLUMNS], c, k, n_fields;
    char *fields[32], *line, *next;
    int64_t n_rows = -1, n_gaps = 0, n_line = 0, row = 0;
    memo_status status;

    /* Count rows and gaps; each gap has one minus sign. */
    for (line = in->text; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) next++;
        n_rows += strspn(line, " \r\n") < (size_t)(next - line);
    }
    for (int64_t i = 0; i < in->n_bytes; i++) n_gaps += in->text[i] == '-';
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
        if (!line[strspn(line, " \r")] || (column_of[ID] < 0 && *line == '#')) continue;

        n_fields = split_fields(line, fields, 32);
        if (n_fields < 0) return csv_error(error, path, n_line, "a quote is left open");
        if (column_of[ID] < 0) { /* the heading */
            for (k = 0; k < n_fields; k++)
                for (c = 0; c < N_COLUMNS; c++) {
                    if (strcmp(fields[k], names[c])) continue;
                    if (column_of[c] >= 0)
                        return csv_error(error, path, n_line, "the heading names a column twice");
                    column_of[c] = k;
                }
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

    in->plan->n_buffers = row;
    return MEMO_STATUS_OK;
}

/* Parses in->text as a CSV or a trace.  In a CSV, the first line that is neither blank nor a
 * comment has a comma. */
static memo_status parse_input(const char* name, input* in, int64_t alignment, memo_error* error) {
    const char* heading = in->text;
    memo_status status;
    if (!strncmp(in->text, "\xef\xbb\xbf", 3)) { /* the mark of UTF-8 */
        in->n_bytes -= 3;
        memmove(in->text, in->text + 3, (size_t)in->n_bytes + 1);
    }
    for (;;) {
        heading += strspn(heading, " \r\n");
        if (*heading != '#') break;
        heading += strcspn(heading, "\n");
    }
    if (memchr(heading, ',', strcspn(heading, "\n"))) {
        if (!in->n_layers) return read_csv(name, in, alignment, error);
        return memo_error_set(error, MEMO_STATUS_FORMAT, "%s: a CSV; --layers needs a trace", name);
    }
    status = memo_trace_parse(in->text, in->n_bytes, name, &in->trace, error);
    if (!status && in->n_layers) {
        memo_trace* recorded = in->trace;
        memo_error reason;
        status = trace_apply_layers(recorded, in->n_layers, &in->trace, &reason);
        if (status) memo_error_set(error, status, "%s: %s", name, reason.message);
        memo_trace_destroy(recorded);
    }
    if (status) return status;
    return memo_plan_from_trace(in->trace, alignment, &in->plan, error);
}

static memo_status read_input(const options* o, input* in, memo_error* error) {
    const char* name = strcmp(o->file, "-") ? o->file : "standard input";
    memo_status status = read_text(o->file, in, error);
    return status ? status : parse_input(name, in, o->alignment_bytes, error);
}

/* ---- output ---------------------------------------------------------------------------------- */

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

static void put_field(memo_text* text, const char* field) {
    size_t last = strlen(field);
    int is_quoted = strpbrk(field, ",\"\r") ||
                    (last > 0 && (strchr(" \t#", *field) || strchr(" \t", field[last - 1])));
    if (!is_quoted) {
        memo_text_put(text, "%s", field);
        return;
    }
    memo_text_put(text, "\"");
    for (; *field; field++) memo_text_put(text, *field == '"' ? "\"\"" : "%c", *field);
    memo_text_put(text, "\"");
}

/* Prints the rows of a CSV in its order, because the plan has sorted them; the buffers of a trace
 * in order of request. */
static memo_status write_csv(const input* in, const char* path, memo_error* error) {
    const memo_plan* plan = in->plan;
    memo_text text;
    char scratch[32];
    int64_t* row = (int64_t*)calloc((size_t)plan->n_buffers + 1, sizeof(int64_t));
    if (!row) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory for the CSV");
    for (int64_t i = 0; i < plan->n_buffers; i++) row[in->names ? plan->buffers[i].id : i] = i;
    memset(&text, 0, sizeof text);
    memo_text_put(&text, "id,lower,upper,size,offset\n");
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[row[i]];
        put_field(&text, name_of(in, buffer, scratch));
        memo_text_put(&text, ",%lld,%lld,%lld,%lld\n", (long long)buffer->begin,
                      (long long)buffer->end, (long long)buffer->size_bytes,
                      (long long)buffer->offset_bytes);
    }
    free(row);
    return memo_text_write(&text, path, error);
}

/* Begin or end of a part of a buffer's life in which it occupies the same bytes. */
typedef struct event {
    int64_t time, piece, buffer, bytes;
    int is_end;
} event;

static int by_time(const void* left, const void* right) {
    const event* a = (const event*)left;
    const event* b = (const event*)right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->is_end != b->is_end) return a->is_end ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

/* Returns all events in order, ends first.  Buffers of no bytes have none, since they share their
 * address with others.  The caller frees *events. */
static memo_status list_events(const memo_plan* plan, event** events, int64_t* n,
                               memo_error* error) {
    int64_t n_most = plan->n_buffers + 2 * plan->n_gaps;
    memob_piece* pieces = (memob_piece*)memob_calloc(n_most, sizeof(memob_piece));
    *events = (event*)memob_calloc(2 * n_most, sizeof **events);
    if (!pieces || !*events) {
        free(pieces);
        return memob_no_memory(error, "the events");
    }
    *n = 2 * memob_plan_pieces(plan, pieces);
    for (int64_t i = 0; i < *n; i++) {
        const memob_piece* piece = &pieces[i / 2];
        event* e = &(*events)[i];
        e->is_end = (int)(i % 2);
        e->time = e->is_end ? piece->end : piece->begin;
        e->piece = i / 2;
        e->buffer = piece->buffer;
        e->bytes = memob_min(piece->bytes, plan->buffers[piece->buffer].size_bytes);
    }
    free(pieces);
    qsort(*events, (size_t)*n, sizeof **events, by_time);
    return MEMO_STATUS_OK;
}

/* The layout of torch.cuda.memory._snapshot(): one segment, and its events in order of time.  A
 * free has two moments; the viewer joins them if one follows the other. */
static memo_status put_snapshot(const input* in, memo_text* text, memo_error* error) {
    static const char* const actions[] = {"alloc", "free_requested", "free_completed"};
    const memo_plan* plan = in->plan;
    long long peak = (long long)plan->peak_bytes;
    int64_t n;
    event* events;
    memo_status status = list_events(plan, &events, &n, error);
    if (status) return status;
    memo_text_put(
        text,
        "{\"segments\":[{\"address\":0,\"total_size\":%lld,\"allocated_size\":0,\"active_size\":0,"
        "\"requested_size\":0,\"device\":0,\"stream\":0,\"segment_type\":\"large\","
        "\"segment_pool_id\":[0,0],\"is_expandable\":false,\"frames\":[],\"blocks\":[{\"address\":"
        "0,\"size\":%lld,\"requested_size\":0,\"state\":\"inactive\",\"frames\":[]}]}],\n"
        "\"device_traces\":[[\n{\"action\":\"segment_alloc\",\"addr\":0,\"size\":%lld,\"stream\":0,"
        "\"time_us\":0,\"frames\":[]}",
        peak, peak, peak);

    for (int64_t i = 0; i < n; i++) {
        const memo_buffer* buffer = &plan->buffers[events[i].buffer];
        for (int action = events[i].is_end; action <= 2 * events[i].is_end; action++) {
            char scratch[32];
            memo_text_put(
                text,
                ",\n{\"action\":\"%s\",\"addr\":%lld,\"size\":%lld,\"stream\":%d,\"time_us\":%lld,"
                "\"frames\":[{\"name\":\"buffer ",
                actions[action], (long long)buffer->offset_bytes, (long long)events[i].bytes,
                (int)buffer->stream, (long long)events[i].time);
            memo_text_put_json(text, name_of(in, buffer, scratch));
            memo_text_put(text, "\",\"filename\":\"\",\"line\":0}]}");
        }
    }

    memo_text_put(text, "\n]],\"allocator_settings\":{},\"external_annotations\":[]}\n");
    free(events);
    return MEMO_STATUS_OK;
}

static void put_bytes(memo_text* text, uint64_t value, int n) { /* least significant first */
    for (; n > 0; n--, value >>= 8) memo_text_put(text, "%c", (int)(value & 255));
}

/* Writes the JSON value at *json as a pickle of protocol 2 without the stop, like the file of
 * _dump_snapshot().  It supports only the output of put_snapshot. */
static void put_pickle(memo_text* text, const char** json) {
    enum { BATCH = 1000 }; /* the viewer puts all values of one append on its stack */
    char open = *(*json)++;
    int n = 0;

    /* Lists and dicts. */
    if (open == '{' || open == '[') {
        memo_text_put(text, open == '{' ? "}(" : "](");
        for (;;) {
            *json += strspn(*json, ",:\n");
            if (**json == '}' || **json == ']') break;
            if (open == '[' && n++ && n % BATCH == 0) memo_text_put(text, "e(");
            put_pickle(text, json);
        }
        memo_text_put(text, open == '{' ? "u" : "e");
        (*json)++;
    } else if (open == '"') {
        int64_t length_at;
        uint64_t length;
        memo_text_put(text, "X");
        length_at = text->n_bytes;
        put_bytes(text, 0, 4);
        for (; **json != '"'; (*json)++) memo_text_put(text, "%c", *(*json += **json == '\\'));
        (*json)++;
        if (text->failed) return;
        length = (uint64_t)(text->n_bytes - length_at - 4);
        for (uint64_t k = 0; k < 4; k++)
            text->data[length_at + (int64_t)k] = (char)(length >> 8 * k & 255);
    } else if (open == 'f') {
        memo_text_put(text, "\x89");
        *json += 4;
    } else {
        char* end;
        (*json)--;
        memo_text_put(text, "\x8a\x08");
        put_bytes(text, (uint64_t)strtoll(*json, &end, 10), 8);
        *json = end;
    }
}

static memo_status write_snapshot(const input* in, const char* path, int is_pickle,
                                  memo_error* error) {
    memo_text text, pickle;
    memo_status status;
    memset(&text, 0, sizeof text);
    memset(&pickle, 0, sizeof pickle);
    status = put_snapshot(in, &text, error);
    if (!status && is_pickle) {
        const char* json = text.data;
        memo_text_put(&pickle, "\x80\x02");
        pickle.failed |= text.failed;
        if (!pickle.failed) put_pickle(&pickle, &json);
        memo_text_put(&pickle, ".");
        memo_text_free(&text);
        return memo_text_write(&pickle, path, error);
    }
    return status ? status : memo_text_write(&text, path, error);
}

/* ---- PyTorch's caching allocator ------------------------------------------------------------- */

/* Makes a trace for a CSV, which has none: a request for each lifetime without gaps. */
static memo_status requests_of(const input* in, memo_trace** trace, memo_error* error) {
    const memo_plan* plan = in->plan;
    int64_t n = 0;
    event* events = NULL;
    memo_status status = memo_trace_create(trace, error);
    if (!status) status = list_events(plan, &events, &n, error);
    for (int64_t i = 0; i < n && !status; i++) {
        const memo_buffer* buffer = &plan->buffers[events[i].buffer];
        status = events[i].is_end ? memo_trace_free(*trace, events[i].piece, error)
                                  : memo_trace_malloc(*trace, events[i].piece, events[i].bytes,
                                                      buffer->memory_class, buffer->stream, error);
    }
    free(events);
    return status;
}

/* Returns the least capacity at which the replay succeeds, by bisection.  The bounds are the
 * allocated bytes and the reserved bytes without a limit. */
static memo_status least_capacity(const memo_trace* trace, const caching_stats* unlimited,
                                  caching_desc* desc, caching_stats* stats, memo_error* error) {
    int64_t low = unlimited->allocated_bytes, high = unlimited->reserved_bytes;
    while (low < high) {
        memo_status status;
        desc->capacity_bytes = low + (high - low) / 2;
        status = caching_replay(trace, desc, stats, error);
        if (status) return status;
        if (stats->refused_request < 0)
            high = desc->capacity_bytes;
        else
            low = desc->capacity_bytes + 1;
    }
    desc->capacity_bytes = high;
    return high ? caching_replay(trace, desc, stats, error) : MEMO_STATUS_OK;
}

static memo_status compare_caching(const input* in, int64_t capacity, memo_error* error) {
    const memo_plan* plan = in->plan;
    memo_trace* made = NULL;
    const memo_trace* trace = in->trace;
    caching_desc desc;
    caching_stats s, least;
    memo_status status = trace ? MEMO_STATUS_OK : requests_of(in, &made, error);
    if (!trace) trace = made;

    memset(&desc, 0, sizeof desc);
    memset(&s, 0, sizeof s);
    desc.n_iterations = 3; /* the second and third iteration start with the cache of the previous
                              ones */
    if (!status) status = caching_replay(trace, &desc, &s, error);
    least = s;
    if (!status) status = least_capacity(trace, &s, &desc, &least, error);

    if (!status) {
        printf("caching_allocated_bytes: %lld\n", (long long)s.allocated_bytes);
        printf("caching_reserved_bytes: %lld\n", (long long)s.reserved_bytes);
        printf("caching_fragmentation_percent: %.3f\n",
               s.reserved_bytes ? 100.0 * (double)(s.reserved_bytes - s.allocated_bytes) /
                                      (double)s.reserved_bytes
                                : 0.0);
        printf("caching_over_plan_percent: %.3f\n",
               plan->peak_bytes ? 100.0 * ((double)s.reserved_bytes / (double)plan->peak_bytes - 1)
                                : 0.0);
        printf("caching_least_capacity_bytes: %lld\n", (long long)desc.capacity_bytes);
        printf("caching_least_capacity_retries: %lld first, %lld later\n",
               (long long)least.n_retries_first, (long long)least.n_retries_last);
    }

    /* With the memory of --capacity. */
    desc.capacity_bytes = capacity;
    if (!status && capacity) status = caching_replay(trace, &desc, &s, error);
    if (!status) {
        int64_t at = s.refused_request;
        printf("caching_retries: %lld first, %lld later\n", (long long)s.n_retries_first,
               (long long)s.n_retries_last);
        if (at >= 0)
            printf("caching_out_of_memory: request %lld of %lld, %lld bytes for id %lld\n",
                   (long long)at, (long long)trace->n_requests,
                   (long long)trace->requests[at].size_bytes, (long long)trace->requests[at].id);
        else
            printf("caching_out_of_memory: no\n");
    }

    memo_trace_destroy(made);
    return status;
}

/* ---- main ------------------------------------------------------------------------------------ */

static int32_t stop; /* planning, or the search for a proof */

static void ask_to_stop(int number) {
    (void)number;
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

/* The first signal of each kind ends planning or the search for a proof, another one the program.
 * Opening a pipe goes on. */
static void stop_on_signals(memo_plan_desc* desc) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = ask_to_stop;
    action.sa_flags = (int)SA_RESETHAND | SA_RESTART;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    desc->stop = &stop;
}

/* Has each buffer an offset?  Then nothing is planned, and the plan's bound is the peak.  Sets the
 * bound without these offsets.  Planning states what is wrong with the buffers. */
static int are_offsets_given(memo_plan* plan, int64_t* bound_bytes) {
    const int64_t n = plan->n_buffers;
    int64_t n_fixed = 0;
    memo_error error;
    for (int64_t i = 0; i < n; i++) n_fixed += plan->buffers[i].is_fixed;
    if (n == 0 || n_fixed < n) return 0;
    for (int64_t i = 0; i < n; i++) plan->buffers[i].is_fixed = 0;
    (void)!memo_plan_prepare(plan, &error);
    *bound_bytes = plan->lower_bound_bytes;
    for (int64_t i = 0; i < n; i++) plan->buffers[i].is_fixed = 1;
    return 1;
}

/* Prints the numbers of a plan. */
static void print_plan(const memo_plan* plan, int is_given, int64_t bound_bytes, double seconds) {
    int64_t gap_bytes;
    if (!is_given) bound_bytes = memob_plan_bound(plan);
    gap_bytes = plan->peak_bytes - bound_bytes;
    printf("buffers: %lld\n", (long long)plan->n_buffers);
    printf("lower_bound_bytes: %lld\n", (long long)bound_bytes);
    printf("peak_bytes: %lld\n", (long long)plan->peak_bytes);
    printf("gap_bytes: %lld\n", (long long)gap_bytes);
    printf("gap_percent: %.4f\n",
           bound_bytes > 0 ? 100 * (double)gap_bytes / (double)bound_bytes : 0.0);
    if (is_given) {
        puts("offsets given: valid");
        return;
    }
    printf("proof: %s\n", plan->proof == MEMO_PROOF_OPTIMAL ? "optimal" : "feasible");
    printf("engine: %s\n", plan->engine);
    printf("solve_seconds: %.6f\n", seconds);
}

/* Sets *is_found, and says on standard error why there is no proof to write. */
static memo_status put_proof(const memo_plan* plan, const char* path, int* is_found,
                             memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    const char* reason = "the search that proves the plan is too long, or of several streams";
    *is_found = 0;
    if (plan->proof == MEMO_PROOF_OPTIMAL) status = write_proof(plan, &stop, path, is_found, error);
    if (stop) reason = "the search that proves the plan was stopped";
    if (plan->proof != MEMO_PROOF_OPTIMAL) reason = "the plan is not proven";
    if (!status && !*is_found) fprintf(stderr, "plan_trace: %s: not written; %s\n", path, reason);
    return status;
}

/* Given offsets are valid beside the bound without these offsets, as print_plan states. */
static memo_status write_svg(const input* in, int is_given, int64_t bound_bytes, const char* title,
                             const char* path, memo_error* error) {
    memo_plan drawn = *in->plan;
    if (is_given) {
        drawn.proof = MEMO_PROOF_FEASIBLE;
        drawn.lower_bound_bytes = bound_bytes;
        snprintf(drawn.engine, sizeof drawn.engine, "offsets given");
    }
    return memo_plan_write_svg(&drawn, in->trace, title, path, error);
}

int main(int argc, char** argv) {
    options o;
    input in;
    progress shown;
    memo_error error;
    double seconds;
    int64_t bound_bytes = 0;
    memo_status status, capacity_status;
    int result, is_given, is_proof_found = 1;

    tool_keep_standard_streams();
    result = parse_options(argc, argv, &o);
    if (result < 0) {
        if (result == TOOL_VERSION) tool_print_version(stdout, "plan_trace");
        if (result == TOOL_HELP) print_help();
        if (!tool_flush(&error)) return 0;
        fprintf(stderr, "plan_trace: %s\n", error.message);
        return 2;
    }
    if (result) return result;

    memset(&in, 0, sizeof in);
    memset(&shown, 0, sizeof shown);
    in.n_layers = o.n_layers;
    status = read_input(&o, &in, &error);
    if (status) {
        fprintf(stderr, "plan_trace: %s\n", error.message);
        close_input(&in);
        return 2;
    }

    /* Plan, and time it. */
    is_given = are_offsets_given(in.plan, &bound_bytes);
    shown.begin = time(NULL);
    o.solve.trace = in.trace;
    o.solve.log.user = &shown;
    if (!o.is_quiet && isatty(2)) o.solve.log.write = show_progress;
    stop_on_signals(&o.solve);
    seconds = -memob_now_s();
    capacity_status = memo_plan_solve(in.plan, &o.solve, &error);
    seconds += memob_now_s();
    if (shown.has_shown) fprintf(stderr, "\r%-78s\r", "");
    if (stop) fprintf(stderr, "plan_trace: stopped; this is the best plan so far\n");

    /* A missed capacity still has a plan, which is printed. */
    if (capacity_status == MEMO_STATUS_INFEASIBLE)
        fprintf(stderr, "plan_trace: %s\n", error.message);
    else if (capacity_status) {
        fprintf(stderr, "plan_trace: %s: %s%s\n", o.file, error.message,
                in.names ? " (an id here is a row of the file, counted from 0)" : "");
        close_input(&in);
        return 2;
    }

    status = memo_plan_validate(in.plan, &error);
    if (!status) print_plan(in.plan, is_given, bound_bytes, seconds);

    if (!status && o.compare_caching) status = compare_caching(&in, o.solve.capacity_bytes, &error);
    if (!status) status = tool_flush(&error);
    if (!status && o.csv) status = write_csv(&in, o.csv, &error);
    if (!status && o.plan) status = memo_plan_write(in.plan, o.plan, &error);
    if (!status && o.proof) status = put_proof(in.plan, o.proof, &is_proof_found, &error);
    if (!status && o.svg) status = write_svg(&in, is_given, bound_bytes, o.file, o.svg, &error);
    if (!status && o.json) status = write_snapshot(&in, o.json, 0, &error);
    if (!status && o.pickle) status = write_snapshot(&in, o.pickle, 1, &error);

    if (status) fprintf(stderr, "plan_trace: %s\n", error.message);
    close_input(&in);
    return status ? 2 : capacity_status || !is_proof_found;
}
