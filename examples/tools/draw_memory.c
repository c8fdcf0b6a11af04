/* draw_memory.c - draws where a step's bytes lie, for docs/memory.md, from the plan of a small GPT.
 *
 *     draw_memory [FOLDER]       writes memory-rows.svg, memory-arena.svg, memory-tiers.svg and
 *                                memory-length.svg; default: docs
 *
 * memory-rows: the address of every row of every tensor, layer by layer, as the swap engine places
 * it.  memory-arena: the arena over one micro-batch.  memory-tiers: what each tier holds, under
 * four budgets.  memory-length: planned device memory of a model of 8B parameters over the length,
 * at once and in slices. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include <stdio.h>

enum { L = 8, C = 256, T = 4096 };

static const memo_item tensors[] = {
    MEMO_ITEM("inp", 4 * C, MEMO_MOVE),  MEMO_ITEM("qkv", 12 * C, MEMO_ROWS),
    MEMO_ITEM("att", 4 * C, MEMO_WHOLE), MEMO_ITEM("middle", 4 * C, MEMO_ROWS),
    MEMO_ITEM("up", 16 * C, MEMO_ROWS),  MEMO_ITEM("gelu", 16 * C, MEMO_ROWS)};
enum { N_TENSORS = 6 };

static const memo_session_buffer buffers[] = {
    {"logits", 0, 4 * 1024, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BETWEEN, 0, 0},
    {"d_x", 0, 4 * C, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 0, 0},
    {"scratch", 0, 16 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
    {"work", 0, 8 * C, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 0}};

static const char swapped_color[] = "#4878a8", other_color[] = "#e8a868", kept_color[] = "#b8b8b8";
static const char staying_color[] = "url(#staying)"; /* hatched: see draw_rows */
static const char frame[] = "fill=\"none\" stroke=\"#404040\" stroke-width=\"0.6\"";

/* Budgets are shares of what keeping every activation needs; the times are of a machine whose link
 * is slow. */
static memo_status make_plan(double share, double host_share, const char* spill_directory,
                             memo_step_plan** plan, memo_error* error) {
    memo_session_desc desc = {0};
    memo_profile profile;
    const double all_bytes = 56.0 * C * T * L;
    memset(&profile, 0, sizeof profile);
    profile.n_rows = T;
    profile.n_kinds = 1;
    profile.forward_s[0] = 0.02;
    profile.backward_s[0] = 0.04;
    profile.n_tensors = N_TENSORS;
    for (int t = 0; t < N_TENSORS; t++) {
        snprintf(profile.tensors[t].name, sizeof profile.tensors[t].name, "%s", tensors[t].name);
        profile.tensors[t].recompute_s_per_row[0] = t == 0 ? -1 : 0.002 / T * (t == 2 ? 4 : 1);
    }
    profile.copies[1].size_bytes = 1 << 20;
    profile.copies[1].out_s = profile.copies[1].back_s = (1 << 20) / 2e9;
    desc.tensors = tensors, desc.n_tensors = N_TENSORS;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = 64;
    desc.buffers = buffers, desc.n_buffers = 4;
    desc.device_bytes = (int64_t)(share * all_bytes) + (24 << 20);
    desc.host_bytes = (int64_t)(host_share * all_bytes);
    desc.spill_directory = spill_directory;
    return memo_session_plan(&desc, &profile, plan, error);
}

static void rectangle(memo_text* svg, double x, double y, double width, double height,
                      const char* color) {
    memo_text_put(svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                  x, y, width, height, color);
}

static void label(memo_text* svg, double x, double y, const char* anchor, const char* text) {
    memo_text_put(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    memo_text_put_xml(svg, text);
    memo_text_put(svg, "</text>\n");
}

static void begin(memo_text* svg, int width, int height, const char* title) {
    memo_text_put(svg,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n<title>%s</title>\n",
                  width, height, title);
    rectangle(svg, 0, 0, width, height, "#ffffff");
}

/* Every tensor of every layer at its address. */
static memo_status draw_rows(const memo_step_plan* plan, const char* path, memo_error* error) {
    const double left = 70, top = 40, column = 76, height = 420;
    memo_host_device_desc host_desc = {0};
    memo_device* host = NULL;
    memo_swap_desc desc = plan->swap;
    memo_swap* swap = NULL;
    memo_text svg = {NULL, 0, 0, 0};
    memo_status status = memo_host_device_create(&host_desc, &host, error);
    const char* base = NULL;
    desc.device = host;
    desc.computes_on_host = 1;
    desc.spill_directory = NULL;
    if (!status) status = memo_swap_create(&desc, &swap, error);
    if (status) {
        memo_host_device_destroy(host);
        return status;
    }

    /* The lowest address is the engine's first byte. */
    for (int32_t l = 0; l < L; l++)
        for (int32_t t = 0; t < N_TENSORS; t++) {
            const char* address = (const char*)memo_swap_get_address(swap, l, t);
            if (!base || address < base) base = address;
        }

    begin(&svg, 720, 540, "Addresses of activations, layer by layer");
    memo_text_put(&svg,
                  "<defs><pattern id=\"staying\" width=\"6\" height=\"6\" "
                  "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                  "<rect width=\"6\" height=\"6\" fill=\"%s\"/><rect width=\"3\" height=\"6\" "
                  "fill=\"#ffffff\" fill-opacity=\"0.6\"/></pattern></defs>\n",
                  swapped_color);
    label(&svg, left, 20, "start", "device memory of the activations; each column is one layer");
    for (int32_t l = 0; l < L; l++) {
        char name[32];
        snprintf(name, sizeof name, "layer %d", (int)l);
        label(&svg, left + (l + 0.45) * column, top + height + 18, "middle", name);
        for (int32_t t = 0; t < N_TENSORS; t++) {
            const double scale = height / (double)plan->sizes.device_bytes;
            const double row = (double)tensors[t].row_bytes * scale;
            const double y =
                top + (double)((const char*)memo_swap_get_address(swap, l, t) - base) * scale;
            const int64_t rows = desc.rows ? desc.rows[l * N_TENSORS + t] : T;
            const double x = left + l * column, width = column * 0.9;
            const double n = rows < 0 ? 0 : (double)rows;
            /* The last two layers stay where they are: their backward comes first. */
            const char* moved = l < plan->sizes.n_swapped_layers ? swapped_color : staying_color;
            if (rows < 0)
                rectangle(&svg, x, y, width, row * T, kept_color);
            else if (l % 2) {
                rectangle(&svg, x, y, width, row * (T - n), other_color);
                rectangle(&svg, x, y + row * (T - n), width, row * n, moved);
            } else {
                rectangle(&svg, x, y, width, row * n, moved);
                rectangle(&svg, x, y + row * n, width, row * (T - n), other_color);
            }
            memo_text_put(&svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" %s/>\n",
                          x, y, width, row * T, frame);
            label(&svg, x + width / 2, y + row * T / 2 + 4, "middle", tensors[t].name);
        }
    }
    for (int32_t t = 0; t < 4; t++) {
        static const char* const colors[] = {swapped_color, staying_color, other_color, kept_color};
        static const char* const words[] = {"rows move to the host", "rows stay: last two layers",
                                            "rows are recomputed", "tensor is kept"};
        static const double at[] = {0, 165, 345, 505};
        rectangle(&svg, left + at[t], 505, 14, 14, colors[t]);
        label(&svg, left + at[t] + 20, 517, "start", words[t]);
    }
    memo_text_put(&svg, "</svg>\n");
    memo_swap_destroy(swap);
    memo_host_device_destroy(host);
    return memo_text_write(&svg, path, error);
}

/* The share of all rows' bytes that the plan recomputes. */
static double recomputed_share(const memo_step_plan* plan) {
    double recomputed = 0, all = 0;
    for (int32_t l = 0; l < L; l++)
        for (int32_t t = 0; t < N_TENSORS; t++) {
            const int64_t rows = plan->swap.rows[l * N_TENSORS + t];
            if (rows != MEMO_ROWS_KEPT)
                recomputed += (double)(T - rows) * (double)tensors[t].row_bytes;
            all += (double)T * (double)tensors[t].row_bytes;
        }
    return recomputed / all;
}

/* A bar of a tier, with its bytes behind. */
static void tier(memo_text* svg, double y, const char* name, double bytes, double scale,
                 const char* color, double others_bytes) {
    const double left = 190;
    char text[64];
    snprintf(text, sizeof text, "%.0f MiB", (bytes + others_bytes) / (1 << 20));
    label(svg, left - 8, y + 11, "end", name);
    rectangle(svg, left, y, scale * bytes, 14, color);
    rectangle(svg, left + scale * bytes, y, scale * others_bytes, 14, "#88b878");
    label(svg, left + scale * (bytes + others_bytes) + 6, y + 11, "start", text);
}

/* Who needs which bytes of each tier, under four budgets. */
static memo_status draw_tiers(const char* path, memo_error* error) {
    static const double shares[] = {1.1, 0.5, 0.25, 0.25}, host_shares[] = {0.3, 0.3, 0.3, 0.1};
    static const char* const colors[] = {"#4878a8", "#88b878", "#d8c858", "#c05040"};
    static const char* const names[] = {"activations on the device", "buffers of a micro-batch",
                                        "rows in host memory", "rows on disk"};
    const double left = 190, width = 460;
    double all_bytes = 0; /* under the first budget everything is kept */
    memo_text svg = {NULL, 0, 0, 0};
    begin(&svg, 760, 390, "What each tier holds");
    for (int i = 0; i < 4; i++) {
        memo_step_plan* plan = NULL;
        const double y = 20 + 80.0 * i;
        double bytes, scale;
        memo_status status =
            make_plan(shares[i], host_shares[i], i == 3 ? "." : NULL, &plan, error);
        char text[64];
        if (status) {
            memo_text_free(&svg);
            return status;
        }

        bytes = (double)plan->device_bytes;
        if (i == 0) all_bytes = bytes;
        scale = width / all_bytes;
        snprintf(text, sizeof text, "budget %.0f MiB",
                 (double)plan->device_budget_bytes / (1 << 20));
        label(&svg, 10, y + 11, "start", text);
        snprintf(text, sizeof text, "host %.0f MiB%s", (double)plan->host_budget_bytes / (1 << 20),
                 i == 3 ? ", a disk" : "");
        label(&svg, 10, y + 28, "start", text);
        snprintf(text, sizeof text, "%.0f %% recomputed", 100 * recomputed_share(plan));
        label(&svg, 10, y + 45, "start", text);
        tier(&svg, y, "device", (double)plan->sizes.device_bytes, scale, colors[0],
             (double)(plan->device_bytes - plan->sizes.device_bytes));
        tier(&svg, y + 17, "host", (double)plan->host_bytes, scale, colors[2], 0);
        tier(&svg, y + 34, "disk", (double)plan->sizes.spill_bytes, scale, colors[3], 0);
        memo_text_put(&svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"14\" %s/>\n", left,
                      y, width, frame);
        memo_step_plan_destroy(plan);
    }

    for (int k = 0; k < 4; k++) {
        rectangle(&svg, 10 + 190 * k, 345, 14, 14, colors[k]);
        label(&svg, 30 + 190 * k, 357, "start", names[k]);
    }
    label(&svg, 10, 380, "start", "frame: what keeping everything needs");
    memo_text_put(&svg, "</svg>\n");
    return memo_text_write(&svg, path, error);
}

/* Device bytes of activations and scratch of a model like Llama 3 8B in bf16, with as much
 * recomputed as possible. */
static memo_status plan_length(int64_t n_rows, int64_t slice_rows, double* device_bytes,
                               memo_error* error) {
    enum { H = 4096, KV = 1024, FFN = 14336 };
    static const memo_item table[] = {MEMO_ITEM("x", 2 * H, MEMO_MOVE, MEMO_EDGE),
                                      MEMO_ITEM("input", 2 * H, MEMO_MOVE, MEMO_INPUT),
                                      MEMO_ITEM("k", 2 * KV, MEMO_MOVE, MEMO_LAYER),
                                      MEMO_ITEM("v", 2 * KV, MEMO_MOVE, MEMO_LAYER),
                                      MEMO_ITEM("q", 2 * H, MEMO_ROWS),
                                      MEMO_ITEM("attention", 2 * H, MEMO_WHOLE),
                                      MEMO_ITEM("middle", 2 * H, MEMO_ROWS),
                                      MEMO_ITEM("gate_up", 4 * FFN, MEMO_ROWS),
                                      MEMO_ITEM("product", 2 * FFN, MEMO_ROWS)};
    static const memo_session_buffer used[] = {
        {"gradients of k and v", 0, 8 * KV, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD,
         0, 0},
        {"scratch", 0, 6 * FFN, MEMO_PASS_BACKWARD, MEMO_EACH_SLICE, MEMO_PASS_BACKWARD, 0, 0}};
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_status status;
    desc.tensors = table, desc.n_tensors = 9;
    desc.n_layers = 32, desc.n_rows = n_rows, desc.slice_rows = slice_rows, desc.tile_rows = 128;
    desc.buffers = used, desc.n_buffers = 2;
    desc.policy = MEMO_POLICY_ALPHA; /* 0: all that can be is recomputed */
    status = memo_session_plan(&desc, NULL, &plan, error);
    if (!status) *device_bytes = (double)plan->device_bytes;
    memo_step_plan_destroy(plan);
    return status;
}

/* Device memory over the length. */
static memo_status draw_length(const char* path, memo_error* error) {
    enum { POINTS = 16, STEP = 65536, SLICE = 16384 };
    static const char* const colors[] = {"#c05040", "#4878a8"};
    const double left = 90, top = 20, width = 530, height = 300, most_gib = 240;
    memo_text svg = {NULL, 0, 0, 0};
    memo_status status = MEMO_STATUS_OK;
    char text[96];
    begin(&svg, 720, 400, "Device memory over the length, at once and in slices");
    for (int i = 0; i <= 4; i++) {
        snprintf(text, sizeof text, "%d", (int)most_gib * i / 4);
        label(&svg, left - 6, top + height * (4 - i) / 4 + 4, "end", text);
        rectangle(&svg, left, top + height * (4 - i) / 4, width, 0.5, "#c0c0c0");
        snprintf(text, sizeof text, "%dK", i * POINTS * STEP / 4096);
        label(&svg, left + width * i / 4, top + height + 18, "middle", text);
    }
    label(&svg, left + width / 2, top + height + 38, "middle", "tokens of a sequence");
    for (int i = 0; i < 3; i++) {
        static const char* const names[] = {"RTX 4090: 24 GB", "H100: 80 GB", "H200: 141 GB"};
        static const double most[] = {24564, 81559, 143771}; /* MiB, as nvidia-smi shows them */
        const double y = top + height * (1 - most[i] / 1024 / most_gib);
        memo_text_put(&svg,
                      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                      "stroke=\"#606060\" stroke-dasharray=\"6 4\"/>\n",
                      left, y, left + width, y);
        label(&svg, left + width - 4, y - 4, "end", names[i]);
    }
    memo_text_put(&svg,
                  "<text transform=\"translate(24 %.0f) rotate(-90)\" text-anchor=\"middle\">"
                  "device memory of activations and scratch, GiB</text>\n",
                  top + height / 2);
    for (int k = 0; k < 2 && !status; k++) {
        double bytes = 0, gib = 0, x = 0;
        memo_text_put(&svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                      colors[k]);
        for (int i = 1; i <= POINTS && !status; i++) {
            const int64_t n = (int64_t)i * STEP;
            status = plan_length(n, k ? SLICE : n, &bytes, error);
            gib = bytes / (1 << 30);
            x = left + width * i / POINTS;
            memo_text_put(&svg, "%.1f,%.1f ", x, top + height * (1 - gib / most_gib));
        }
        memo_text_put(&svg, "\"/>\n");
        snprintf(text, sizeof text, "%.1f GiB", gib);
        label(&svg, x + 6, top + height * (1 - gib / most_gib) + 4, "start", text);
        rectangle(&svg, left + 250 * k, 375, 14, 14, colors[k]);
        label(&svg, left + 250 * k + 20, 387, "start",
              k ? "in slices of 16K tokens" : "a layer at once");
    }
    memo_text_put(&svg, "</svg>\n");
    if (!status) return memo_text_write(&svg, path, error);
    memo_text_free(&svg);
    return status;
}

int main(int argc, char** argv) {
    const char* folder = argc > 1 ? argv[1] : "docs";
    char path[4][512];
    memo_step_plan* plan = NULL;
    memo_error error;
    memo_status status;
    if (argc > 2 || strlen(folder) > 480 || folder[0] == '-') {
        fprintf(stderr, "usage: draw_memory [FOLDER]\n");
        return 2;
    }
    snprintf(path[0], sizeof path[0], "%s/memory-rows.svg", folder);
    snprintf(path[1], sizeof path[1], "%s/memory-arena.svg", folder);
    snprintf(path[2], sizeof path[2], "%s/memory-tiers.svg", folder);
    snprintf(path[3], sizeof path[3], "%s/memory-length.svg", folder);
    status = make_plan(0.3, 0.3, NULL, &plan, &error);
    if (!status) status = draw_rows(plan, path[0], &error);
    if (!status)
        status = memo_plan_write_svg(plan->addresses, plan->trace, "The arena over one micro-batch",
                                     path[1], &error);
    if (!status) status = draw_tiers(path[2], &error);
    if (!status) status = draw_length(path[3], &error);
    memo_step_plan_destroy(plan);
    if (status) {
        fprintf(stderr, "draw_memory: %s\n", error.message);
        return 1;
    }
    printf("%s\n%s\n%s\n%s\n", path[0], path[1], path[2], path[3]);
    return 0;
}
