/* virtual_device.h - a device in virtual time, whose copies slow its computation.
 *
 * Nothing runs and no byte moves: streams keep what is enqueued, and what takes time takes it when
 * the host waits, so all figures are exact and the same on every machine.  Copies of one way share
 * their link.  While copies run one way, operations of other streams lose a share of their speed.
 * An operation that memo_annotate announces takes its duration_s.
 *
 *   virtual_device v = {.bytes_per_s = {4e6, 4e6}, .loss = {0.1, 0.2}};
 *   memo_device device = virtual_table(&v);
 *   ...
 *   virtual_end(&v);
 *
 * Include after memo.h and memo_test.h. */
#ifndef VIRTUAL_DEVICE_H
#define VIRTUAL_DEVICE_H
#include <stdlib.h>
#include <string.h>

enum { VIRTUAL_STREAMS_MAX = 64 };

/* A wait is for one record, which may be done before an earlier one of another stream. */
typedef struct virtual_event {
    int64_t n, n_most; /* records */
    double* times_s;   /* of each; -1: it is not done */
} virtual_event;

typedef struct virtual_op {
    enum { VIRTUAL_RUN, VIRTUAL_COPY, VIRTUAL_RECORD, VIRTUAL_WAIT } kind;
    int way;       /* of a copy: 0 to the host, 1 back */
    double left_s; /* alone */
    virtual_event* event;
    int64_t number; /* of the record; -1: none */
} virtual_op;

typedef struct virtual_stream {
    virtual_op* ops;
    int64_t first, n, n_most;
    int is_used;
} virtual_stream;

typedef struct virtual_device {
    double bytes_per_s[2], loss[2]; /* of copies to the host, back */
    double now_s;
    virtual_stream streams[VIRTUAL_STREAMS_MAX];
    double beside_s[2]; /* computation beside copies, so far */
    int64_t n_waits;    /* of the host */
    int64_t host_bytes, most_host_bytes;
} virtual_device;

static virtual_op* virtual_add(virtual_stream* s) {
    if (s->n == s->n_most) {
        s->n_most = s->n_most ? 2 * s->n_most : 64;
        s->ops = (virtual_op*)realloc(s->ops, (size_t)s->n_most * sizeof *s->ops);
    }
    memset(&s->ops[s->n], 0, sizeof *s->ops);
    return &s->ops[s->n++];
}

static int virtual_is_done(const virtual_event* e, int64_t number) {
    return number < 0 || e->times_s[number] >= 0;
}

/* What takes no time and may go on; 1: something did. */
static int virtual_pass(virtual_device* v) {
    int passed = 0;
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++) {
        virtual_stream* s = &v->streams[i];
        for (; s->first < s->n; s->first++, passed = 1) {
            const virtual_op* op = &s->ops[s->first];
            if (op->kind == VIRTUAL_WAIT ? !virtual_is_done(op->event, op->number)
                                         : op->kind != VIRTUAL_RECORD && op->left_s > 0)
                break;
            if (op->kind == VIRTUAL_RECORD) op->event->times_s[op->number] = v->now_s;
        }
        if (s->first == s->n) s->first = s->n = 0;
    }
    return passed;
}

/* The next time at which an operation ends.  0: all streams are empty. */
static int virtual_step(virtual_device* v) {
    double speeds[VIRTUAL_STREAMS_MAX] = {0}, next_s = -1, speed = 1;
    int n_copies[2] = {0, 0};
    while (virtual_pass(v)) {
    }
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++) {
        const virtual_stream* s = &v->streams[i];
        if (s->first < s->n && s->ops[s->first].kind == VIRTUAL_COPY)
            n_copies[s->ops[s->first].way]++;
    }
    for (int way = 0; way < 2; way++) speed -= n_copies[way] ? v->loss[way] : 0;
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++) {
        const virtual_stream* s = &v->streams[i];
        const virtual_op* op = &s->ops[s->first];
        if (s->first == s->n || op->kind > VIRTUAL_COPY) continue;
        speeds[i] = op->kind == VIRTUAL_COPY ? 1.0 / n_copies[op->way] : speed;
        if (speeds[i] > 0 && (next_s < 0 || op->left_s / speeds[i] < next_s))
            next_s = op->left_s / speeds[i];
    }
    if (next_s < 0) return 0;
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++) {
        virtual_op* op = speeds[i] > 0 ? &v->streams[i].ops[v->streams[i].first] : NULL;
        if (!op) continue;
        for (int way = 0; way < 2 && op->kind == VIRTUAL_RUN; way++)
            if (n_copies[way]) v->beside_s[way] += next_s;
        op->left_s -= next_s * speeds[i];
        if (op->left_s < 1e-12 * next_s) op->left_s = 0;
    }
    v->now_s += next_s;
    return 1;
}

/* --- the table --- */

static memo_status virtual_alloc(MEMO_UNUSED void* context, int64_t n_bytes, void** address,
                                 memo_error* e) {
    return posix_memalign(address, 512, (size_t)n_bytes)
               ? memo_error_set(e, MEMO_STATUS_OUT_OF_HOST_MEMORY, "virtual_alloc")
               : MEMO_STATUS_OK;
}
/* Pinned memory is counted: its size lies in front of it. */
static memo_status virtual_host_alloc(void* context, int64_t n_bytes, void** address,
                                      memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    const memo_status status = virtual_alloc(context, n_bytes + 512, address, e);
    if (status) return status;
    *(int64_t*)*address = n_bytes;
    *address = (char*)*address + 512;
    v->host_bytes += n_bytes;
    if (v->host_bytes > v->most_host_bytes) v->most_host_bytes = v->host_bytes;
    return MEMO_STATUS_OK;
}
static memo_status virtual_host_free(void* context, void* address, MEMO_UNUSED memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    if (!address) return MEMO_STATUS_OK;
    v->host_bytes -= *(int64_t*)(void*)((char*)address - 512);
    free((char*)address - 512);
    return MEMO_STATUS_OK;
}
static memo_status virtual_free(MEMO_UNUSED void* context, void* address,
                                MEMO_UNUSED memo_error* e) {
    free(address);
    return MEMO_STATUS_OK;
}
static memo_status virtual_memory(MEMO_UNUSED void* context, int64_t* free_bytes, int64_t* bytes,
                                  MEMO_UNUSED memo_error* e) {
    *free_bytes = *bytes = (int64_t)1 << 40;
    return MEMO_STATUS_OK;
}
static memo_status virtual_stream_create(void* context, MEMO_UNUSED const char* name,
                                         MEMO_UNUSED int32_t priority, memo_stream* stream,
                                         memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++)
        if (!v->streams[i].is_used) {
            v->streams[i].is_used = 1;
            *stream = (memo_stream)(void*)&v->streams[i];
            return MEMO_STATUS_OK;
        }
    return memo_error_set(e, MEMO_STATUS_DEVICE, "virtual_device.h: too many streams");
}
static memo_status virtual_synchronize(void* context, memo_stream stream,
                                       MEMO_UNUSED memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    const virtual_stream* s = (const virtual_stream*)(void*)stream;
    v->n_waits++;
    while (s->n && virtual_step(v)) {
    }
    CHECK_IS(s->n, ==, 0);
    return MEMO_STATUS_OK;
}
static memo_status virtual_stream_destroy(void* context, memo_stream stream, memo_error* e) {
    const memo_status status = virtual_synchronize(context, stream, e);
    ((virtual_stream*)(void*)stream)->is_used = 0;
    return status;
}
static memo_status virtual_event_create(MEMO_UNUSED void* context, memo_event* event,
                                        MEMO_UNUSED memo_error* e) {
    *event = (memo_event)calloc(1, sizeof(virtual_event));
    return MEMO_STATUS_OK;
}
static memo_status virtual_event_synchronize(void* context, memo_event event,
                                             MEMO_UNUSED memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    const virtual_event* of = (const virtual_event*)(void*)event;
    v->n_waits++;
    while (!virtual_is_done(of, of->n - 1) && virtual_step(v)) {
    }
    CHECK(virtual_is_done(of, of->n - 1));
    return MEMO_STATUS_OK;
}
static memo_status virtual_event_destroy(void* context, memo_event event, memo_error* e) {
    virtual_device* v = (virtual_device*)context;
    (void)e;
    while (virtual_step(v)) {
    } /* streams may wait for it */
    free(((virtual_event*)(void*)event)->times_s);
    free(event);
    return MEMO_STATUS_OK;
}
static memo_status virtual_order(memo_event event, memo_stream stream, int is_wait) {
    virtual_event* of = (virtual_event*)(void*)event;
    virtual_op* op = virtual_add((virtual_stream*)(void*)stream);
    op->kind = is_wait ? VIRTUAL_WAIT : VIRTUAL_RECORD;
    op->event = of;
    if (!is_wait && of->n == of->n_most) {
        of->n_most = 2 * of->n_most + 8;
        of->times_s = (double*)realloc(of->times_s, (size_t)of->n_most * sizeof(double));
    }
    if (!is_wait) of->times_s[of->n++] = -1;
    op->number = of->n - 1;
    return MEMO_STATUS_OK;
}
static memo_status virtual_record(MEMO_UNUSED void* context, memo_event event, memo_stream stream,
                                  MEMO_UNUSED memo_error* e) {
    return virtual_order(event, stream, 0);
}
static memo_status virtual_wait(MEMO_UNUSED void* context, memo_event event, memo_stream stream,
                                MEMO_UNUSED memo_error* e) {
    return virtual_order(event, stream, 1);
}
static memo_status virtual_query(MEMO_UNUSED void* context, memo_event event, int32_t* is_done,
                                 MEMO_UNUSED memo_error* e) {
    const virtual_event* of = (const virtual_event*)(void*)event;
    *is_done = virtual_is_done(of, of->n - 1);
    return MEMO_STATUS_OK;
}
static memo_status virtual_elapsed(MEMO_UNUSED void* context, memo_event begin, memo_event end,
                                   double* elapsed_s, MEMO_UNUSED memo_error* e) {
    const virtual_event *from = (const virtual_event*)(void*)begin,
                        *to = (const virtual_event*)(void*)end;
    *elapsed_s = to->times_s[to->n - 1] - from->times_s[from->n - 1];
    return MEMO_STATUS_OK;
}
static memo_status virtual_copy(void* context, memo_stream stream, memo_copy_kind kind,
                                MEMO_UNUSED void* to, MEMO_UNUSED const void* from, int64_t n_bytes,
                                MEMO_UNUSED memo_error* e) {
    const virtual_device* v = (const virtual_device*)context;
    virtual_op* op = virtual_add((virtual_stream*)(void*)stream);
    op->kind = kind == MEMO_COPY_ON_DEVICE ? VIRTUAL_RUN : VIRTUAL_COPY;
    op->way = kind == MEMO_COPY_TO_DEVICE;
    if (op->kind == VIRTUAL_COPY) op->left_s = (double)n_bytes / v->bytes_per_s[op->way];
    return MEMO_STATUS_OK;
}
static memo_status virtual_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                     void* to, MEMO_UNUSED int64_t to_stride, const void* from,
                                     MEMO_UNUSED int64_t from_stride, int64_t row_bytes,
                                     int64_t n_rows, memo_error* e) {
    return virtual_copy(context, stream, kind, to, from, row_bytes * n_rows, e);
}
static memo_status virtual_fill(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                                MEMO_UNUSED void* address, MEMO_UNUSED int32_t value,
                                MEMO_UNUSED int64_t n_bytes, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
static memo_status virtual_status(MEMO_UNUSED void* context, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
static memo_status virtual_annotate(MEMO_UNUSED void* context, memo_stream stream,
                                    const memo_op_desc* of, MEMO_UNUSED memo_error* e) {
    virtual_op* op = virtual_add((virtual_stream*)(void*)stream);
    op->kind = VIRTUAL_RUN;
    op->left_s = of->duration_s;
    return MEMO_STATUS_OK;
}

static memo_device virtual_table(virtual_device* v) {
    memo_device table = MEMO_ZERO(memo_device);
    table.struct_bytes = (int64_t)sizeof table;
    table.name = "virtual";
    table.context = v;
    table.device_alloc = virtual_alloc;
    table.device_free = virtual_free;
    table.host_alloc = virtual_host_alloc;
    table.host_free = virtual_host_free;
    table.memory_info = virtual_memory;
    table.stream_create = virtual_stream_create;
    table.stream_destroy = virtual_stream_destroy;
    table.stream_synchronize = virtual_synchronize;
    table.event_create = virtual_event_create;
    table.event_destroy = virtual_event_destroy;
    table.event_record = virtual_record;
    table.event_wait = virtual_wait;
    table.event_query = virtual_query;
    table.event_synchronize = virtual_event_synchronize;
    table.event_elapsed = virtual_elapsed;
    table.copy = virtual_copy;
    table.copy_rows = virtual_copy_rows;
    table.fill = virtual_fill;
    table.status = virtual_status;
    table.annotate = virtual_annotate;
    return table;
}

static void virtual_end(virtual_device* v) {
    for (int i = 0; i < VIRTUAL_STREAMS_MAX; i++) free(v->streams[i].ops);
}

#endif
