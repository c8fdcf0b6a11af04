/* trace_layers.h - a trace of n layers from one with fewer: forwards repeat in order, backwards in
 * reverse, requests outside the layers occur once.  plan_trace --layers uses it.
 *
 * One recorded layer: buffers that cross its border are matched by order and size, because the
 * output of layer i is the input of layer i+1.  Three or more: layer 1 is the pattern, no matching
 * is necessary (MEMO paper, section 4.3.2).
 *
 * Include it in a file with MEMO_IMPLEMENTATION, after memo.h.
 *
 * Marks cut a trace of m layers into 4 m + 1 segments, numbered in the order of time:
 *
 *     0     1    2     3    ...   2m-1    2m      2m+1    ...  4m-1   4m
 *     pre   F0   gap   F1   ...   F(m-1)  middle  B(m-1)  ...  B0     post
 *
 * Odd segments are layers, even ones lie between them.  The result is numbered in the same way.  A
 * block is named by its segment and its number among the segment's mallocs, because this name stays
 * correct when the segment is repeated for another layer. */
#ifndef TRACE_LAYERS_H
#define TRACE_LAYERS_H

typedef struct trace_layers {
    const memo_trace* trace;
    int64_t n_layers;
    int64_t* first;      /* segment s: requests [first[s], first[s + 1]) */
    int64_t* base;       /* its mallocs have the numbers [base[s], base[s + 1]) */
    int64_t* segment;    /* of each malloc number */
    int64_t* number;     /* of each request that is a malloc */
    int64_t* free_index; /* of each malloc number: the request that frees it, or -1 */
    int64_t* incoming;   /* one layer: of each malloc number, the block that the layer before it in
                            time puts in its place; -1: none */
    memob_arrays arrays; /* all of these except first */

    /* What layers_apply_all makes. */
    memo_trace* result;
    int64_t n;            /* its layers */
    int64_t* result_base; /* as base, of the result */
} trace_layers;

/* The layer of segment s among n layers, its own or the one before the gap; -1: pre, middle, post.
 */
static int64_t layers_segment_layer(int64_t s, int64_t n) {
    if (s == 0 || s == 2 * n || s == 4 * n) return -1;
    return s < 2 * n ? (s - 1) / 2 : (4 * n - s) / 2;
}

/* The segment of this layer, among n layers, that corresponds to segment s among m; -1: none. */
static int64_t layers_segment_like(int64_t s, int64_t m, int64_t layer, int64_t n) {
    int64_t is_gap = s % 2 == 0;
    if (layer < 0 || layer >= n) return -1;
    if (s < 2 * m) return is_gap && layer == n - 1 ? -1 : 2 * layer + 1 + is_gap;
    return is_gap && layer == 0 ? -1 : 4 * n - 1 - 2 * layer + is_gap;
}

/* Cuts the trace at its marks.  A recomputation between two layers belongs to the next backward. */
static memo_status layers_cut(trace_layers* layers, memo_error* error) {
    const memo_trace* trace = layers->trace;
    int64_t n_forward = 0, n_backward = 0, n_cuts = 1, capacity = 0;
    memo_phase open = MEMO_PHASE_NONE;

    /* One more round than requests, for the room of the last cut. */
    for (int64_t i = 0; i <= trace->n_requests; i++) {
        int64_t expected;
        memo_mark mark;
        if (!memob_reserve(&layers->first, &capacity, n_cuts + 2, 8))
            return memob_no_memory(error, "the layers of a trace");
        if (i == trace->n_requests) break;
        mark = memob_request_mark(trace, i);
        if (mark.layer < 0) continue;

        /* A recomputation inside a layer cuts nothing; one that opened a backward replaces its
         * begin. */
        if (mark.phase == MEMO_PHASE_RECOMPUTE &&
            (open != MEMO_PHASE_NONE || mark.is_end || mark.layer != n_forward - 1 - n_backward))
            continue;
        if (open == MEMO_PHASE_BACKWARD && mark.phase == MEMO_PHASE_BACKWARD && !mark.is_end &&
            mark.layer == n_forward - 1 - n_backward &&
            memob_request_mark(trace, layers->first[n_cuts - 1]).phase == MEMO_PHASE_RECOMPUTE)
            continue;

        /* Every other mark must be the next one in order. */
        expected = mark.phase == MEMO_PHASE_FORWARD ? n_forward : n_forward - 1 - n_backward;
        if (mark.layer != expected || (mark.phase == MEMO_PHASE_FORWARD && n_backward > 0) ||
            (mark.is_end ? open != mark.phase : open != MEMO_PHASE_NONE))
            return MEMOB_INVALID(error,
                                 "request %lld: the mark \"%.60s\" is out of order; mark forwards "
                                 "0, 1, ..., then backwards in reverse, each with begin and end",
                                 (long long)i, trace->text + trace->requests[i].id);
        layers->first[n_cuts++] = mark.is_end ? i + 1 : i;
        if (mark.is_end) {
            n_forward += open == MEMO_PHASE_FORWARD;
            n_backward += open == MEMO_PHASE_BACKWARD;
            open = MEMO_PHASE_NONE;
        } else {
            open = mark.phase == MEMO_PHASE_FORWARD ? MEMO_PHASE_FORWARD : MEMO_PHASE_BACKWARD;
        }
    }

    layers->first[n_cuts] = trace->n_requests;
    layers->n_layers = n_forward;
    if (n_forward == 0 || n_backward != n_forward)
        return MEMOB_INVALID(error,
                             "trace: %lld forwards and %lld backwards are marked; mark begin and "
                             "end of both in every layer",
                             (long long)n_forward, (long long)n_backward);
    return MEMO_STATUS_OK;
}

static memo_status layers_number(trace_layers* layers, memo_error* error) {
    const memo_trace* trace = layers->trace;
    int64_t n_segments = 4 * layers->n_layers + 1, n = 0;
    memob_arrays* arrays = &layers->arrays;
    layers->base = (int64_t*)memob_arrays_add(arrays, n_segments + 1, 8);
    layers->segment = (int64_t*)memob_arrays_add(arrays, trace->n_buffers, 8);
    layers->number = (int64_t*)memob_arrays_add(arrays, trace->n_requests, 8);
    layers->free_index = (int64_t*)memob_arrays_add(arrays, trace->n_buffers, 8);
    layers->incoming = (int64_t*)memob_arrays_add(arrays, trace->n_buffers, 8);
    if (arrays->failed) return memob_no_memory(error, "the layers of a trace");

    /* Frees come after their mallocs, so one pass numbers both. */
    for (int64_t s = 0; s < n_segments; s++) {
        layers->base[s] = n;
        for (int64_t i = layers->first[s]; i < layers->first[s + 1]; i++) {
            if (trace->requests[i].kind == MEMO_REQUEST_MALLOC) {
                layers->segment[n] = s;
                layers->free_index[n] = layers->incoming[n] = -1;
                layers->number[i] = n++;
            } else if (trace->requests[i].kind == MEMO_REQUEST_FREE) {
                layers->free_index[layers->number[memob_request_origin(trace, i)]] = i;
            }
        }
    }
    layers->base[n_segments] = n;
    return MEMO_STATUS_OK;
}

/* The next block from number on that is born in segment `born` and freed in `freed` or `or_freed`.
 */
static int64_t layers_next_crossing(const trace_layers* layers, int64_t number, int64_t born,
                                    int64_t freed, int64_t or_freed) {
    const int64_t* first = layers->first;
    if (number < layers->base[born]) number = layers->base[born];
    for (; number < layers->base[born + 1]; number++) {
        int64_t i = layers->free_index[number];
        if ((i >= first[freed] && i < first[freed + 1]) ||
            (i >= first[or_freed] && i < first[or_freed + 1]))
            return number;
    }
    return -1;
}

/* One layer: from the second layer on, the k-th block that comes from outside is the k-th that the
 * previous layer leaves behind. */
static memo_status layers_chain(trace_layers* layers, const char* what, int64_t outside,
                                int64_t in_a, int64_t in_b, int64_t inside, int64_t out_a,
                                int64_t out_b, memo_error* error) {
    int64_t in = layers_next_crossing(layers, 0, outside, in_a, in_b);
    int64_t out = layers_next_crossing(layers, 0, inside, out_a, out_b);
    while (in >= 0 && out >= 0) {
        const memo_trace* trace = layers->trace;
        int64_t in_bytes, out_bytes;
        in_bytes = trace->requests[memob_request_origin(trace, layers->free_index[in])].size_bytes;
        out_bytes =
            trace->requests[memob_request_origin(trace, layers->free_index[out])].size_bytes;
        if (in_bytes != out_bytes) break;
        layers->incoming[in] = out;
        in = layers_next_crossing(layers, in + 1, outside, in_a, in_b);
        out = layers_next_crossing(layers, out + 1, inside, out_a, out_b);
    }
    if (in < 0 && out < 0) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "layer 0: the %s reads other blocks than it leaves (number, order or "
                         "size), so it cannot be repeated; record three layers",
                         what);
}

/* The recorded segment that segment t of the result repeats; -1: it is empty.  *shift: what is
 * added to its layers. */
static int64_t layers_source_segment(const trace_layers* layers, int64_t t, int64_t* shift) {
    int64_t n = layers->n, m = layers->n_layers;
    int64_t layer = layers_segment_layer(t, n), source;
    *shift = 0;
    if (layer < 0) return t == 0 ? 0 : t == 2 * n ? 2 * m : 4 * m;
    source = layer == 0 ? 0 : layer == n - 1 ? m - 1 : m == 1 ? 0 : 1;
    *shift = layer - source;
    return layers_segment_like(t, n, source, m);
}

/* Maps a recorded layer that pre, middle or post (t) refers to, to a layer of the result: counted
 * from the last layer in the middle, from the first afterwards.  With one recorded layer, middle
 * and post refer to the last forward. */
static int64_t layers_from_outside(const trace_layers* layers, int64_t layer, int64_t t,
                                   int is_forward) {
    int64_t m = layers->n_layers, n = layers->n;
    if (m == 1) return is_forward ? n - 1 : 0;
    return layer == m - 1 || (layer > 0 && t == 2 * n) ? n - (m - layer) : layer;
}

/* The malloc number in the result of a recorded block that segment t refers to; -1: there is no
 * such block.  inner: the layer, if middle or post refer to every inner layer; else -1. */
static int64_t layers_result_block(const trace_layers* layers, int64_t number, int64_t t,
                                   int64_t shift, int64_t inner) {
    int64_t m = layers->n_layers, n = layers->n, layer = layers_segment_layer(t, n), s;
    int64_t target;

    /* One recorded layer: what came from outside now comes from the previous layer. */
    if (m == 1 && layer >= 0 && layers->incoming[number] >= 0) {
        int is_forward = layers->segment[number] == 0;
        int64_t giver = is_forward ? layer - 1 : layer + 1;
        if (giver >= 0 && giver < n) {
            number = layers->incoming[number];
            shift = giver;
        }
    }

    /* The same block, in the segment of its layer in the result. */
    s = layers->segment[number];
    if (layers_segment_layer(s, m) < 0) {
        target = s == 0 ? 0 : s == 2 * m ? 2 * n : 4 * n;
    } else {
        int64_t of_layer = layers_segment_layer(s, m);
        if (layer >= 0)
            of_layer += shift;
        else if (inner >= 0)
            of_layer = inner;
        else
            of_layer = layers_from_outside(layers, of_layer, t, s < 2 * m);
        target = layers_segment_like(s, m, of_layer, n);
        if (target < 0) return -1;
    }

    number = layers->result_base[target] + (number - layers->base[s]);
    return number < layers->result_base[target + 1] ? number : -1;
}

/* Appends recorded request i to the result as part of its segment t. */
static memo_status layers_apply_request(const trace_layers* layers, int64_t i, int64_t t,
                                        int64_t shift, int64_t inner, memo_error* error) {
    const memo_trace* trace = layers->trace;
    memo_trace* result = layers->result;
    const memo_request* request = &trace->requests[i];
    int64_t id = 0, layer;
    memo_mark mark;
    char text[64];

    if (request->kind == MEMO_REQUEST_FREE || request->kind == MEMO_REQUEST_USE) {
        id = layers_result_block(layers, layers->number[memob_request_origin(trace, i)], t, shift,
                                 inner);
        if (id < 0) return MEMOB_INVALID(error, "it uses a block that the other layers lack");
    }

    switch (request->kind) {
    case MEMO_REQUEST_MALLOC:
        return memo_trace_malloc(result, result->n_buffers, request->size_bytes,
                                 request->memory_class, request->stream, error);
    case MEMO_REQUEST_FREE: return memo_trace_free(result, id, error);
    case MEMO_REQUEST_USE: return memo_trace_use(result, id, request->stream, error);
    case MEMO_REQUEST_RECORD: return memo_trace_record(result, request->id, request->stream, error);
    case MEMO_REQUEST_WAIT: return memo_trace_wait(result, request->id, request->stream, error);
    case MEMO_REQUEST_MARK:
    case MEMO_N_REQUEST_KINDS: break;
    }

    /* A mark of a layer gets the number of the layer in the result. */
    mark = memob_request_mark(trace, i);
    if (mark.layer < 0 || mark.layer >= layers->n_layers) /* not a layer's mark: copied */
        return memo_trace_mark(result, trace->text + request->id, error);
    layer = layers_segment_layer(t, layers->n) >= 0
                ? mark.layer + shift
                : layers_from_outside(layers, mark.layer, t, t <= 2 * layers->n);
    if (layer < 0 || layer >= layers->n) layer = mark.layer;
    snprintf(text, sizeof text, "layer %lld %s %s", (long long)layer, memob_phase_names[mark.phase],
             mark.is_end ? "end" : "begin");
    return memo_trace_mark(result, text, error);
}

/* The request that frees the corresponding malloc of another layer; -1: none. */
static int64_t layers_counterpart_free(const trace_layers* layers, int64_t number, int64_t layer) {
    int64_t s = layers->segment[number];
    int64_t like = layers_segment_like(s, layers->n_layers, layer, layers->n_layers), other;
    if (like < 0) return -1;
    other = layers->base[like] + (number - layers->base[s]);
    return other < layers->base[like + 1] ? layers->free_index[other] : -1;
}

/* The layer, if request i, in middle or post (segment z), refers to a block of an inner layer and
 * the same request exists for each inner layer.  -1: no inner layer, or a block that layers pass
 * on, whose free only comes after the last of them. */
static int64_t layers_inner_layer(const trace_layers* layers, int64_t i, int64_t z) {
    int64_t origin = memob_request_origin(layers->trace, i), number, layer, before, after;
    if (origin < 0 || layers->trace->requests[i].kind == MEMO_REQUEST_MALLOC) return -1;
    number = layers->number[origin];
    layer = layers_segment_layer(layers->segment[number], layers->n_layers);
    if (layer <= 0 || layer >= layers->n_layers - 1) return -1;
    before = layers_counterpart_free(layers, number, layer - 1);
    after = layers_counterpart_free(layers, number, layer + 1);
    return before >= layers->first[z] && before < layers->first[z + 1] &&
                   after >= layers->first[z] && after < layers->first[z + 1]
               ? layer
               : -1;
}

/* Do middle and post refer to the last layer first?  Request i refers to a block of layer 1. */
static int layers_is_descending(const trace_layers* layers, int64_t i) {
    int64_t number = layers->number[memob_request_origin(layers->trace, i)];
    return layers_counterpart_free(layers, number, 2) < layers_counterpart_free(layers, number, 0);
}

/* Segment t of the result.  In pre, middle and post, a run of requests about layer 1 is repeated
 * for each inner layer; requests about other inner layers are left out, because they repeat it. */
static memo_status layers_apply_segment(const trace_layers* layers, int64_t t, int64_t* at,
                                        memo_error* error) {
    int64_t n = layers->n, shift, s = layers_source_segment(layers, t, &shift), i, end;
    memo_status status = MEMO_STATUS_OK;
    if (s < 0) return MEMO_STATUS_OK;
    for (i = layers->first[s]; i < layers->first[s + 1] && !status; i = end) {
        int64_t inner = layers_segment_layer(t, n) < 0 ? layers_inner_layer(layers, i, s) : -1, k,
                j;
        *at = i;
        end = i + 1;
        if (inner < 0) {
            status = layers_apply_request(layers, i, t, shift, -1, error);
        } else if (inner == 1) {
            int descending = layers_is_descending(layers, i);
            while (end < layers->first[s + 1] && layers_inner_layer(layers, end, s) == 1) end++;
            for (k = 1; k < n - 1 && !status; k++)
                for (j = i; j < end && !status; j++)
                    status =
                        layers_apply_request(layers, j, t, 0, descending ? n - 1 - k : k, error);
        }
    }
    return status;
}

/* Makes the trace of n layers, with ids 0, 1, 2, ... in the order of the mallocs. */
static memo_status layers_apply_all(trace_layers* layers, int64_t n, memo_trace** result,
                                    memo_error* error) {
    int64_t n_segments = 4 * n + 1, s, shift, at = 0, n_never_freed = 0;
    int64_t* base = (int64_t*)memob_calloc(n_segments + 1, 8);
    memo_error reason;
    memo_status status =
        base ? memo_trace_create(&layers->result, error) : memob_no_memory(error, "a trace");
    *result = NULL;
    if (status) {
        MEMO_FREE(base);
        return status;
    }
    layers->n = n;
    layers->result_base = base;

    /* Number the mallocs of every segment first: frees refer to blocks of other segments. */
    for (int64_t t = 0; t < n_segments; t++) {
        base[t + 1] = base[t];
        s = layers_source_segment(layers, t, &shift);
        if (s < 0) continue;
        base[t + 1] += layers->base[s + 1] - layers->base[s];
        for (int64_t number = layers->base[s]; number < layers->base[s + 1]; number++)
            n_never_freed += layers->free_index[number] < 0;
    }

    for (int64_t t = 0; t < n_segments && !status; t++)
        status = layers_apply_segment(layers, t, &at, &reason);
    if (status == MEMO_STATUS_INVALID_ARGUMENT)
        memo_error_set(error, status,
                       "request %lld cannot be repeated for other layers: %s; record three layers",
                       (long long)at, reason.message);
    else if (status)
        memo_error_set(error, status, "%s", reason.message);
    else if (layers->result->n_live != n_never_freed)
        status = MEMOB_INVALID(error, "trace: one layer frees blocks at a point where other layers "
                                      "free none; record three layers");
    MEMO_FREE(base);
    if (status)
        memo_trace_destroy(layers->result);
    else
        *result = layers->result;
    return status;
}

/* If the layers are alike, repeating layer 1 reproduces the recorded trace. */
static memo_status layers_check(trace_layers* layers, memo_error* error) {
    const memo_trace* trace = layers->trace;
    memo_trace* again;
    int64_t i, n_common;
    memo_status status = layers_apply_all(layers, layers->n_layers, &again, error);
    if (status) return status;

    /* The first request that differs, of those that both have. */
    n_common = memob_min(trace->n_requests, again->n_requests);
    for (i = 0; i < n_common; i++) {
        const memo_request* a = &trace->requests[i];
        const memo_request* b = &again->requests[i];
        int64_t origin = memob_request_origin(trace, i);
        if (a->kind != b->kind || a->memory_class != b->memory_class || a->stream != b->stream ||
            a->size_bytes != b->size_bytes || (origin >= 0 && layers->number[origin] != b->id) ||
            (origin < 0 && a->kind != MEMO_REQUEST_MARK && a->id != b->id) ||
            (a->kind == MEMO_REQUEST_MARK && strcmp(trace->text + a->id, again->text + b->id)))
            break;
    }

    if (i < trace->n_requests || i < again->n_requests)
        status = MEMOB_INVALID(
            error, "request %lld: the middle layers differ; record layers with equal requests",
            (long long)i);
    memo_trace_destroy(again);
    return status;
}

/* Makes *result, a trace of n_layers layers.  Errors: INVALID_ARGUMENT (no complete layer; two
 * recorded layers; inner layers differ; the border of a single layer does not match, so record
 * three), OUT_OF_HOST_MEMORY. */
static memo_status trace_apply_layers(const memo_trace* trace, int64_t n_layers,
                                      memo_trace** result, memo_error* error) {
    trace_layers layers;
    memo_status status;
    int64_t m;
    *result = NULL;
    status = memob_check_integer("plan_trace", "layers", n_layers, 1, 1 << 20, error);
    if (status) return status;

    /* Cut, number and match the recorded layers. */
    memset(&layers, 0, sizeof layers);
    layers.trace = trace;
    status = layers_cut(&layers, error);
    if (!status) status = layers_number(&layers, error);
    m = layers.n_layers;
    if (!status && (m == 2 || (m > 2 && n_layers < 2)))
        status = MEMOB_INVALID(error,
                               "n_layers: %lld layers cannot be made from %lld; record one layer "
                               "for any number, or three for two or more",
                               (long long)n_layers, (long long)m);
    if (!status && m == 1 && n_layers > 1)
        status = layers_chain(&layers, "forward", 0, 1, 3, 1, 2, 4, error);
    if (!status && m == 1 && n_layers > 1)
        status = layers_chain(&layers, "backward", 2, 3, 3, 3, 4, 4, error);

    /* Prove the pattern, then repeat it. */
    if (!status && m > 2) status = layers_check(&layers, error);
    if (!status) status = layers_apply_all(&layers, n_layers, result, error);
    MEMO_FREE(layers.first);
    memob_arrays_free(&layers.arrays);
    return status;
}

#endif /* TRACE_LAYERS_H */
