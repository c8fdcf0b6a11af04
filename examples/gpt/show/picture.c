#include "gpt/show/picture.h"

#include "extras/memo_look.h"
#include "gpt/model/check.h"
#include "gpt/show/report.h"

enum { PICTURE_LEFT = 96, PICTURE_WIDTH = 700, PICTURE_LANE = 26, PICTURE_MEMORY = 150 };

/* The colors of a timeline. */
static const struct {
    const char *prefix, *color, *label;
} picture_kinds[] = {{"forward", "#4c78a8", "forward"},     {"recompute", "#f0a04b", "recompute"},
                     {"backward", "#d1605e", "backward"},   {"to host", "#59a14f", "to host"},
                     {"to device", "#3a9a9b", "to device"}, {"", "#9b8bbf", "other"}};
enum { N_PICTURE_KINDS = sizeof picture_kinds / sizeof *picture_kinds };

static int picture_kind(const char* name) {
    int kind = 0;
    while (strncmp(name, picture_kinds[kind].prefix, strlen(picture_kinds[kind].prefix))) kind++;
    return kind;
}

static double picture_x(const step_picture* p, double time_s) {
    return PICTURE_LEFT + PICTURE_WIDTH * (time_s - p->begin_s) / p->span_s;
}

static int picture_shows(const step_picture* p, int64_t i) {
    return p->schedule->ops[i].kind == MEMO_OP_RUN && p->times->end_s[i] > p->times->start_s[i];
}

/* Operations of one stream; adjacent operations of one kind become one rectangle. */
static void picture_put_lane(step_picture* p, int32_t stream, const char* label) {
    double from = 0, to = -1;
    int kind = -1;
    svg_text(&p->text, PICTURE_LEFT - 8, p->top + 17, "end", label);

    for (int64_t i = 0; i <= p->schedule->n_ops; i++) {
        const int is_end = i == p->schedule->n_ops;
        int next = -1;
        if (!is_end) {
            if (p->schedule->ops[i].stream != stream || !picture_shows(p, i)) continue;
            next = picture_kind(memo_schedule_op_name(p->schedule, i));
            if (next == kind && picture_x(p, p->times->start_s[i]) - to < 0.5) {
                to = picture_x(p, p->times->end_s[i]);
                continue;
            }
        }

        /* The rectangle ends before this operation. */
        if (kind >= 0)
            memo_text_put(&p->text,
                          "<rect x='%.1f' y='%.0f' width='%.1f' height='20' fill='%s'/>\n", from,
                          p->top + 3, to - from < 0.4 ? 0.4 : to - from, picture_kinds[kind].color);
        if (is_end) break;
        kind = next;
        from = picture_x(p, p->times->start_s[i]);
        to = picture_x(p, p->times->end_s[i]);
    }
    p->top += PICTURE_LANE;
}

/* Returns the time between the first and the last operation whose name begins with "PHASE
 * LAYER:". */
static int picture_phase(const step_picture* p, const char* phase, int32_t layer, double* begin_s,
                         double* end_s) {
    const char* prefix = text_of("%s %d:", phase, (int)layer);
    int is_there = 0;
    for (int64_t i = 0; i < p->schedule->n_ops; i++) {
        if (!picture_shows(p, i) ||
            strncmp(memo_schedule_op_name(p->schedule, i), prefix, strlen(prefix)))
            continue;
        if (!is_there || p->times->start_s[i] < *begin_s) *begin_s = p->times->start_s[i];
        if (!is_there || p->times->end_s[i] > *end_s) *end_s = p->times->end_s[i];
        is_there = 1;
    }
    return is_there;
}

static double picture_y(const step_picture* p, double n_bytes) {
    return p->top + PICTURE_MEMORY * (1 - n_bytes / (1.08 * (double)p->keep->device_bytes));
}

static void picture_put_memory(step_picture* p) {
    const double layer_bytes = (double)p->keep->sizes.device_bytes / p->n_layers;
    const double bottom = p->top + PICTURE_MEMORY, right = PICTURE_LEFT + PICTURE_WIDTH;
    double held = (double)(p->keep->device_bytes - p->keep->sizes.device_bytes);
    double begin_s = 0, end_s = 0;
    memo_text_put(&p->text, "<path d='M%d %.1f L%d %.1f", PICTURE_LEFT, bottom, PICTURE_LEFT,
                  picture_y(p, held));
    for (int32_t i = 0; i < p->n_layers; i++)
        if (picture_phase(p, "forward", i, &begin_s, &end_s)) {
            held += layer_bytes;
            memo_text_put(&p->text, " H%.1f V%.1f", picture_x(p, begin_s), picture_y(p, held));
        }
    double peak_x = picture_x(p, begin_s);
    for (int32_t i = p->n_layers - 1; i >= 0; i--)
        if (picture_phase(p, "backward", i, &begin_s, &end_s)) {
            if (i == p->n_layers - 1) peak_x = (peak_x + picture_x(p, end_s)) / 2;
            held -= layer_bytes;
            memo_text_put(&p->text, " H%.1f V%.1f", picture_x(p, end_s), picture_y(p, held));
        }
    memo_text_put(&p->text, " H%.1f V%.1f Z' fill='#d9dde3' stroke='#8a93a0'/>\n", right, bottom);

    double y = picture_y(p, (double)p->plan->device_bytes);
    svg_line(&p->text, PICTURE_LEFT, y, right, y, "stroke='#1f4e9c' stroke-width='2.5'");
    memo_text_put(&p->text,
                  "<text x='%.0f' y='%.1f' text-anchor='middle' fill='#1f4e9c' "
                  "font-weight='bold'>memo reserves %s</text>\n",
                  peak_x, y - 6, bytes_name(p->plan->device_bytes));
    y = picture_y(p, (double)p->keep->device_bytes);
    svg_text(&p->text, right - 6, y + 14, "end",
             text_of("keeping every activation: %s", bytes_name(p->keep->device_bytes)));
    svg_text(&p->text, PICTURE_LEFT - 8, bottom - 24, "end", "device");
    svg_text(&p->text, PICTURE_LEFT - 8, bottom - 8, "end", "memory");
    p->top = bottom;
}

static void picture_put_axis(step_picture* p) {
    const double step_s = svg_tick(p->span_s, 8);
    for (int k = 0; k * step_s <= p->span_s; k++) {
        double x = picture_x(p, p->begin_s + k * step_s);
        svg_line(&p->text, x, p->top, x, p->top + 5, "stroke='#888'");
        svg_text(&p->text, x, p->top + 19, "middle",
                 text_of("%.9g%s", k * step_s * 1e3, k ? "" : " ms"));
    }
    p->top += 26;
}

static void picture_put_legend(step_picture* p) {
    double x = PICTURE_LEFT;
    for (int kind = 0; kind < N_PICTURE_KINDS; kind++) {
        svg_key(&p->text, x, p->top + 4, picture_kinds[kind].color, picture_kinds[kind].label);
        x += 40 + 7.5 * (double)strlen(picture_kinds[kind].label);
    }
    p->top += 24;
}

memo_status step_picture_write(step_picture p, const char* title, const char* path,
                               memo_error* error) {
    const memo_schedule* schedule = p.schedule;
    const double* start_s = p.times->start_s;
    const int height = 62 + PICTURE_LANE * schedule->n_streams + PICTURE_MEMORY + 60;
    p.begin_s = p.times->makespan_s;
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (picture_shows(&p, i) && start_s[i] < p.begin_s) p.begin_s = start_s[i];
    p.span_s = p.times->makespan_s > p.begin_s ? p.times->makespan_s - p.begin_s : 1;

    svg_begin(&p.text, 830, height, PICTURE_LEFT, title);
    p.top = 40;
    for (int32_t s = 0; s < schedule->n_streams; s++)
        picture_put_lane(&p, s, schedule->text + schedule->streams[s]);
    p.top += 6;
    picture_put_memory(&p);
    picture_put_axis(&p);
    picture_put_legend(&p);
    memo_text_put(&p.text, "</svg>\n");
    return memo_text_write(&p.text, path, error);
}

/* ---- device memory over a micro-batch, by owner ---------------------------------------------- */

/* By memo_owner. */
static const char* const owners[MEMO_N_OWNERS][2] = {
    {"weights", "#3b5f94"},
    {"gradients", "#8fa8cc"},
    {"moments and master weights", "#1f3b63"},
    {"places of states that come and go", "#c5d3e8"},
    {"activations", "#9aa3ad"},
    {"buffers of the whole run", "#e6dcae"},
    {"buffers of a micro-batch", "#c9b458"}};

memo_status memory_picture_write(const memo_step_plan* plan, const char* path, memo_error* error) {
    enum { LEFT = 80, TOP = 44, WIDTH = 720, HEIGHT = 300 };
    const int64_t* bands = plan->bytes[MEMO_TIER_DEVICE];
    const memo_plan* p = plan->addresses;
    const double limit = (double)plan->device_budget_bytes;
    const double most = 1.06 * fmax(limit, (double)plan->device_bytes);
    const double n_times = (double)(p->n_times - p->body_begin);
    const int64_t stride = p->n_times / 4000 + 1; /* more points than pixels only take space */
    double *live = (double*)calloc((size_t)p->n_times + 1, sizeof *live), bytes = 0, below = 0;
    memo_text t = {0};
    if (!live) return gpt_no_memory("--output", error);
    for (int64_t i = 0; i < p->n_buffers; i++) {
        if (p->buffers[i].memory_class == MEMO_CLASS_PERSISTENT) continue;
        live[p->buffers[i].begin] += (double)p->buffers[i].size_bytes;
        live[p->buffers[i].end] -= (double)p->buffers[i].size_bytes;
    }

#define MEMORY_Y(n_bytes) (TOP + HEIGHT * (1 - (n_bytes) / most))
    svg_begin(
        &t, LEFT + WIDTH + 30, TOP + HEIGHT + 110, LEFT,
        text_of("Device memory of a micro-batch by owner: %s", bytes_name(plan->device_bytes)));
    for (int i = 0; i < MEMO_OWNER_MICRO_BATCH; below += (double)bands[i++])
        memo_text_put(&t, "<rect x='%d' y='%.2f' width='%d' height='%.2f' fill='%s'/>\n", LEFT,
                      MEMORY_Y(below + (double)bands[i]), WIDTH, HEIGHT * (double)bands[i] / most,
                      owners[i][1]);
    memo_text_put(&t, "<path fill='%s' d='M%d %.2f", owners[MEMO_OWNER_MICRO_BATCH][1], LEFT,
                  MEMORY_Y(below));
    for (int64_t i = p->body_begin; i < p->n_times; i++) {
        double highest = bytes += live[i];
        for (; i + 1 < p->n_times && (i + 1) % stride; highest = fmax(highest, bytes))
            bytes += live[++i];
        memo_text_put(&t, "V%.2fH%.1f", MEMORY_Y(below + highest),
                      LEFT + WIDTH * (double)(i + 1 - p->body_begin) / n_times);
    }
    memo_text_put(&t, "V%.2fZ'/>\n", MEMORY_Y(below));
    free(live);

    /* The axis, the limit and the legend. */
    const double tick = most > 2e9 ? 1 << 30 : most > 2e6 ? 1 << 20 : 1 << 10;
    const double step = svg_tick(most / tick, 6) * tick;
    for (double y = 0; y < most; y += step) {
        svg_line(&t, LEFT - 5, MEMORY_Y(y), LEFT, MEMORY_Y(y), "stroke='#333'");
        svg_text(&t, LEFT - 8, MEMORY_Y(y) + 4, "end", bytes_name(llround(y)));
    }
    if (limit > 0) {
        svg_line(&t, LEFT, MEMORY_Y(limit), LEFT + WIDTH, MEMORY_Y(limit),
                 "stroke='#222' stroke-dasharray='7 4'");
        svg_text(&t, LEFT + WIDTH - 4, MEMORY_Y(limit) - 5, "end", "--device-memory");
    }
    svg_text(&t, LEFT + WIDTH / 2, TOP + HEIGHT + 20, "middle",
             "requests of memory, from the first forward to the last backward");
    for (int i = 0, n = 0; i < MEMO_N_OWNERS; i++) {
        if (!bands[i]) continue;
        svg_key(&t, LEFT + n % 3 * 260, TOP + HEIGHT + 36 + n / 3 * 22, owners[i][1], owners[i][0]);
        n++;
    }
    memo_text_put(&t, "</svg>\n");
    return memo_text_write(&t, path, error);
}
