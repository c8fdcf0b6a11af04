#include "gpt/run/page.h"

#include "gpt/run/compare.h"
#include "gpt/run/plan.h"
#include "gpt/show/report.h"
#include "tools/tool_files.h"

#define PAGE_BYTES 1900000 /* a picture that exceeds them stays a file */

static const char page_style[] =
    "body{font:15px/1.5 "
    "Helvetica,Arial,sans-serif;color:#222;background:#fff;max-width:1200px;margin:0 auto;"
    "padding:16px}h1{font-size:24px}h2{font-size:18px;margin:28px 0 6px}p{margin:4px 0 10px}"
    "table{border-collapse:collapse;width:100%}td,th{padding:3px 10px 3px 0;text-align:left;"
    "white-space:nowrap}td:first-child{width:90px}td.bar{width:60%;min-width:120px}.frame{display:"
    "flex;height:16px;"
    "background:#eceef1}.frame i{display:block;height:16px}.box{overflow-x:auto}pre{font-size:13px}"
    ".box>svg{display:block;width:100%;min-width:640px;height:auto}.key i{display:inline-block;"
    "width:12px;height:12px;margin:0 5px 0 14px}.key "
    "span{white-space:nowrap}.zoom>svg{cursor:grab;touch-action:none}"
    /* Dark: paper, ink, weak ink and lines of page and pictures swap; colors with a meaning stay, or
     * get a lighter shade of it where they are text or a line. */
    "@media(prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#dde1e6;--weak:#a3abb5;"
    "--line:#39414a}body{color:var(--ink);background:var(--paper)}.frame{background:#2c3138}"
    "svg,svg .h,svg .name,svg text[fill='#111']{fill:var(--ink)}"
    "svg .m,svg .s,svg .tick,svg text[fill='#555']{fill:var(--weak)}"
    "svg>rect[fill='white'],svg>rect[fill^='#fff']{fill:var(--paper)}rect[fill='#f6f7f9']{fill:"
    "#1d2126}svg .b,svg .tear{stroke:var(--paper)}svg .axis,svg .phase,line[stroke='#222'],"
    "line[stroke='#333']{stroke:var(--weak)}svg .grid,line[stroke='#e4e4e4'],line[stroke='#d9dce1']"
    "{stroke:var(--line)}path[fill='#d9dde3']{fill:var(--line)}rect[fill='#dadada']{fill:#59626d}"
    "[stroke='#9dbbe0']{stroke:#4a6285}rect[fill='#1f3b63']{stroke:#8fa8cc}text[fill='#1f4e9c']{"
    "fill:#8ab4f8}[stroke='#1f4e9c']{stroke:"
    "#8ab4f8}text[fill='#b3261e']{fill:#ff8a80}[stroke='#b3261e']{stroke:#ff8a80}"
    "text[fill='#17693f']{fill:#6fcf97}[stroke='#17693f']{stroke:#6fcf97}}";

/* Double click: twice as large at the pointer.  Drag: moves.  Shift and double click: the whole. */
static const char page_script[] =
    "document.querySelectorAll('.zoom svg').forEach(function (s) {\n"
    "  var b = s.viewBox.baseVal, all = [b.x, b.y, b.width, b.height], at = null;\n"
    "  function show(x, y, w, h) { b.x = x; b.y = y; b.width = w; b.height = h; }\n"
    "  function scale() { return b.width / s.getBoundingClientRect().width; }\n"
    "  s.addEventListener('dblclick', function (e) {\n"
    "    var r = s.getBoundingClientRect(), u = scale();\n"
    "    if (e.shiftKey) return show(all[0], all[1], all[2], all[3]);\n"
    "    show(b.x + (e.clientX - r.left) * u / 2, b.y + (e.clientY - r.top) * u / 2,\n"
    "         b.width / 2, b.height / 2);\n"
    "  });\n"
    "  s.addEventListener('pointerdown', function (e) { at = [e.clientX, e.clientY]; });\n"
    "  window.addEventListener('pointerup', function () { at = null; });\n"
    "  s.addEventListener('pointermove', function (e) {\n"
    "    if (!at) return;\n"
    "    show(b.x - (e.clientX - at[0]) * scale(), b.y - (e.clientY - at[1]) * scale(),\n"
    "         b.width, b.height);\n"
    "    at = [e.clientX, e.clientY];\n"
    "  });\n"
    "});\n";

/* ---- bars ----------------------------------------------------------------------------------- */

/* A color means one thing on the page, its pictures included: moved and recomputed rows have those
 * of copies and of recomputation in a step, owners those of memory.svg.  The first: owners. */
enum { PAGE_KEPT = 1, PAGE_MOVED = TIER_WHOLE, PAGE_RECOMPUTED, PAGE_FITS, PAGE_EXCEEDS };
static const char* const page_colors[] = {"#3b5f94", "#9aa3ad", "#c9b458", "#59a14f",
                                          "#f0a04b", "#5b6b7d", "#b04a7a"};
static const char* const page_parts[TIER_WHOLE] = {"weights, gradients and moments", "activations",
                                                   "other buffers"};

/* A color and its meaning, which stay on one line. */
static void page_put_key(memo_text* t, int color, const char* meaning) {
    memo_text_put(t, "<span><i style='background:%s'></i>%s</span> ", page_colors[color], meaning);
}

/* One bar, of a tier of plan_tiers.  all: the longest bar. */
static void page_put_tier(memo_text* t, const char* name, const int64_t* parts, double all) {
    const double length = fmax(fmax((double)parts[TIER_WHOLE], (double)parts[TIER_LIMIT]), 1);
    memo_text_put(t, "<tr><td>%s</td><td class='bar'><div class='frame' style='width:%.2f%%'>",
                  name, 100 * length / all);
    for (int i = 0; i < TIER_WHOLE; i++)
        if (parts[i] > 0)
            memo_text_put(t, "<i style='width:%.2f%%;background:%s' title='%s: %s'></i>",
                          100 * (double)parts[i] / length, page_colors[i], page_parts[i],
                          bytes_name(parts[i]));
    memo_text_put(t, "</div></td><td>%s%s%s</td></tr>\n", bytes_name(parts[TIER_WHOLE]),
                  parts[TIER_LIMIT] ? " of " : ", no limit",
                  parts[TIER_LIMIT] ? bytes_name(parts[TIER_LIMIT]) : "");
}

static void page_put_budgets(memo_text* t, const job* j) {
    static const char* const names[] = {"device", "host", "disk"};
    const memo_step_plan* plan = j->plan;
    int64_t tiers[3][N_TIER_PARTS], all = 1;
    plan_tiers(&j->options, plan, tiers);
    for (int i = 0; i < 6; i++)
        if (tiers[i / 2][TIER_WHOLE + i % 2] > all) all = tiers[i / 2][TIER_WHOLE + i % 2];
    memo_text_put(t, "<h2>Budgets</h2>\n<div class='box'><table>\n");
    for (int i = 0; i < (plan->disk_bytes ? 3 : 2); i++)
        page_put_tier(t, names[i], tiers[i], (double)all);
    memo_text_put(t, "</table></div>\n<p class='key'>");
    for (int i = 0; i < TIER_WHOLE; i++) page_put_key(t, i, page_parts[i]);
    memo_text_put(t, "</p>\n");
}

/* The times of a step as bars. */
static void page_put_times(memo_text* t, const job* j) {
    double longest = 0;
    memo_text_put(t, "<p class='key'>Median of %lld steps. ", (long long)n_timed(j));
    page_put_key(t, PAGE_FITS, "fits");
    page_put_key(t, PAGE_EXCEEDS, "beyond the budget, run without limit");
    memo_text_put(t, "</p>\n<div class='box'><table>\n");
    for (int i = 0; i < train_n_policies(&j->options); i++)
        longest = fmax(longest, j->compared[policy_order[i]].median_s);
    for (int i = 0; i < train_n_policies(&j->options); i++) {
        const comparison* row = &j->compared[policy_order[i]];
        memo_text_put(t,
                      "<tr><td>%s</td><td class='bar'><div class='frame'><i style='width:%.2f%%;"
                      "background:%s'></i></div></td><td>%.1f ms</td></tr>\n",
                      policy_names[policy_order[i]], 100 * row->median_s / longest,
                      page_colors[row->is_short ? PAGE_EXCEEDS : PAGE_FITS], 1e3 * row->median_s);
    }
    memo_text_put(t, "</table></div>\n");
}

/* What the run prints; bars only where its times tell something. */
static void page_put_policies(memo_text* t, const job* j) {
    if (!j->told.n_bytes) return;
    memo_text_put(t, "<h2>Policies</h2>\n");
    if (*j->why_no_times)
        memo_text_put(t, "<p>No times: %s.</p>\n", j->why_no_times);
    else
        page_put_times(t, j);
    memo_text_put(t, "<div class='box'><pre>");
    memo_text_put_xml(t, j->told.data);
    memo_text_put(t, "</pre></div>\n");
}

/* ---- rows of each tensor, layer by layer ---------------------------------------------------- */

/* Rows that leave the device; -1: the tensor is kept. */
static int64_t page_rows(const memo_swap_desc* swap, int32_t layer, int32_t tensor) {
    return swap->rows[(int64_t)layer * swap->n_tensors + tensor];
}

static void page_put_rows(memo_text* t, const job* j) {
    enum { LEFT = 90, TOP = 20, HEIGHT = 24, WIDTH = 1080 };
    const memo_swap_desc* swap = &j->plan->swap;
    const int32_t n = swap->n_layers, stride = n / 128 + 1;
    const double column = (double)WIDTH / n;
    int32_t line = 0, next;
    memo_text_put(t, "<h2>Rows of each tensor</h2>\n<p class='key'>%s from left to right: ",
                  swap->n_slices > 1 ? "Steps (a layer in slices)" : "Layers");
    page_put_key(t, PAGE_KEPT, "kept");
    page_put_key(t, PAGE_MOVED, "swapped");
    page_put_key(t, PAGE_RECOMPUTED, "recomputed");
    memo_text_put(t,
                  "(the last swapped and recomputed rows stay on the device)</p>\n<div "
                  "class='box'><svg viewBox='0 0 1180 %d' font-size='13'>\n",
                  TOP + HEIGHT * swap->n_tensors);
    for (int32_t k = 0; k < swap->n_tensors; k++) {
        if (!swap->tensors[k].row_bytes) continue;
        const double y = TOP + HEIGHT * line++;
        memo_text_put(t, "<text x='%d' y='%.0f' text-anchor='end'>", LEFT - 8, y + 15);
        memo_text_put_xml(t, swap->tensors[k].name);
        memo_text_put(t, "</text>\n");

        /* Neighboring layers with the same rows are one piece. */
        for (int32_t i = 0; i < n; i = next) {
            const int64_t rows = page_rows(swap, i, k);
            const double share = rows < 0 ? 1 : (double)rows / (double)swap->n_rows;
            const double height = (HEIGHT - 4) * share;
            for (next = i + 1; next < n && (page_rows(swap, next, k) == rows || next % stride);)
                next++;
            memo_text_put(t, "<g><title>%s, %d to %d: ", swap->tensors[k].name, (int)i, next - 1);
            if (rows < 0)
                memo_text_put(t, "kept");
            else
                memo_text_put(t, "%lld rows swapped, %lld recomputed", (long long)rows,
                              (long long)(swap->n_rows - rows));
            memo_text_put(t,
                          "</title><rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>"
                          "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/></g>\n",
                          LEFT + i * column, y, (next - i) * column - (column > 8), height,
                          page_colors[rows < 0 ? PAGE_KEPT : PAGE_MOVED], LEFT + i * column,
                          y + height, (next - i) * column - (column > 8), HEIGHT - 4 - height,
                          page_colors[PAGE_RECOMPUTED]);
        }
    }
    for (int32_t i = 0; i < n; i += n / 20 + 1)
        memo_text_put(t, "<text x='%.1f' y='13' text-anchor='middle'>%d</text>\n",
                      LEFT + (i + 0.5) * column, (int)i);
    memo_text_put(t, "</svg></div>\n");
}

/* ---- the page ------------------------------------------------------------------------------- */

/* Copies an SVG of --output into the page. */
static memo_status page_put_picture(memo_text* t, const char* title, const char* path, int zooms,
                                    memo_error* error) {
    char* bytes = NULL;
    int64_t n_bytes = 0;
    memo_status status = tool_append_file(path, &bytes, &n_bytes, error);
    if (!status) {
        memo_text_put(t, "<h2>%s</h2>\n", title);
        if (t->n_bytes + n_bytes > PAGE_BYTES) {
            memo_text_put(t, "<p>%.1f MB, too large for this page: ", 1e-6 * (double)n_bytes);
            memo_text_put_xml(t, path);
            memo_text_put(t, "</p>\n");
        } else {
            memo_text_put(t, "<div class='box%s'>%s</div>\n", zooms ? " zoom" : "", bytes);
        }
    }
    free(bytes);
    return status;
}

memo_status page_write(const job* j, memo_error* error) {
    static const struct {
        const char *title, *file;
        int zooms;
    } pictures[] = {{"Device memory", "memory.svg", 0},
                    {"One step", "step.svg", 0},
                    {"Timeline", "timeline.svg", 1},
                    {"Addresses", "plan.svg", 1},
                    {"Loss", "loss.svg", 0}};
    const train_options* o = &j->options;
    const memo_step_plan* plan = j->plan;
    memo_text t = {0};
    memo_status status = MEMO_STATUS_OK;

    memo_text_put(&t,
                  "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><title>A training "
                  "run with memo</title>\n<meta name='viewport' content='width=device-width'/>\n"
                  "<style>%s</style></head><body>\n<h1>A training run with memo</h1>\n"
                  "<p>%lld layers of %lld, %lld x %lld tokens a micro-batch, %lld steps, policy %s",
                  page_style, o->layers, o->hidden, o->batch, o->sequence, (long long)j->n_done,
                  policy_names[o->policy]);
    if (plan->times) {
        memo_text_put(&t, ": ");
        memo_text_put_xml(&t, plan->times->reason);
    }
    memo_text_put(&t, ".</p>\n");

    page_put_budgets(&t, j);
    page_put_policies(&t, j);
    page_put_rows(&t, j);
    memo_text_put(&t, "<p>Timeline and addresses: double click enlarges, dragging moves, Shift and "
                      "double click shows the whole. Hover names operations and buffers.</p>\n");
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures && !status; i++)
        status = page_put_picture(&t, pictures[i].title, path_text(o->output, pictures[i].file),
                                  pictures[i].zooms, error);

    memo_text_put(&t, "<script>/*<![CDATA[*/\n%s/*]]>*/</script>\n</body></html>\n", page_script);
    if (!status) return memo_text_write(&t, path_text(o->output, "report.html"), error);
    memo_text_free(&t);
    return status;
}
