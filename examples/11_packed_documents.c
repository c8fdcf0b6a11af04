/* 11_packed_documents.c - five documents in one sequence, over a ring of three ranks.
 *
 * Each rank holds an early and a late chunk of every document, so that all work the same; no document need divide by
 * anything.  Positions count within each document, and no label crosses a border.  q and k are 0, so attention is the
 * mean of v over the document up to one's own token; v is the token's place in the sequence.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/11_packed_documents.c -o 11_packed_documents -lpthread -lm
 * Expected output:
 *     195 labels of all ranks: the loss is the sum over them, divided by this
 *     documents, ring 3 x ulysses 1: 200 tokens, 1 of padding, 67 a rank
 *     rank 0 (ring 0, ulysses 0): 0..0, 4..4, 5..19, 80..94, 95..95, 97..106, 147..156, 157..163, 193..199
 *     rank 1 (ring 1, ulysses 0): 1..1, 3..3, 20..34, 65..79, 107..116, 137..146, 164..171, 186..192
 *     rank 2 (ring 2, ulysses 0): 2..2, 35..49, 50..64, 96..96, 117..126, 127..136, 172..178, 179..185, 200..200 (1 of padding)
 *     token 130 is number 33 of its document, its output 113.5; all are right
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { N_RANKS = 3, N_TOKENS = 200, N_DOCUMENTS = 5, N_HEADS = 2, HEAD_SIZE = 16, MAX_LOCAL = 67 };
enum { ROW = N_HEADS * HEAD_SIZE };
static const int64_t begins[N_DOCUMENTS + 1] = {0, 5, 95, 97, 157, 200};
static int32_t tokens[N_TOKENS]; /* a trainer's would be embedded */
static float v[N_TOKENS][ROW], out[N_TOKENS][ROW];
static int64_t positions[N_TOKENS];

static memo_status attend(thread_rank* r, memo_error* error) {
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    memo_host_attention state = {r->device, 0};
    memo_sp_attention* attention = NULL;
    memo_mask mask = memo_mask_default(); /* causal, within the layout's documents */
    memo_device* d = r->device;
    float qk[MAX_LOCAL][ROW], my_v[MAX_LOCAL][ROW], my_out[MAX_LOCAL][ROW], lse[MAX_LOCAL][N_HEADS];
    int64_t my_positions[MAX_LOCAL]; /* for rotary embeddings */
    int32_t labels[MAX_LOCAL], me = r->comm->rank;
    double sums[2] = {0, 0}; /* of losses, of labels */
    memo_sp_attention_tensors t;
    desc.layout = *(const memo_layout*)r->user;
    memo_layout_positions(&desc.layout, me, NULL, 0,
                          my_positions); /* NULL: the layout's documents */
    sums[1] = (double)memo_layout_labels(&desc.layout, me, 1, tokens, NULL, 0, -1, labels);
    desc.device = d;
    desc.stream = r->stream;
    desc.ring = r->comm; /* memo_mesh_create would split a world that has ulysses, too */
    desc.n_q_heads = desc.n_kv_heads = N_HEADS;
    desc.head_size = HEAD_SIZE;
    desc.attention = memo_host_attention_functions(&state);
    memset(qk, 0, sizeof qk);
    memset(&t, 0, sizeof t);
    t.q = t.k = qk; /* on the host device, any memory will do */
    t.v = my_v;
    t.out = my_out;
    t.lse = lse[0];
    memo_layout_scatter(&desc.layout, me, 1, sizeof v[0], v, my_v);
    error->status = MEMO_STATUS_OK;
    if (memo_sp_attention_create(&desc, &attention, error) ||
        memo_sp_attention_forward(attention, &t, &mask, error) ||
        memo_layout_sum_loss(r->comm, r->stream, sums, error))
        memo_stream_synchronize(d, r->stream, NULL); /* the arrays here are still in use */
    else if (!memo_stream_synchronize(d, r->stream, error) && me == 0)
        printf("%.0f labels of all ranks: the loss is the sum over them, divided by this\n",
               sums[1]);
    memo_layout_gather(&desc.layout, me, 1, sizeof out[0], my_out, out);
    memo_layout_gather(&desc.layout, me, 1, sizeof positions[0], my_positions, positions);
    memo_sp_attention_destroy(attention);
    return error->status;
}

int main(void) {
    memo_layout_desc layout_desc = memo_layout_desc_default();
    memo_layout layout;
    memo_error error;
    char text[512];
    int document = 0, n_wrong = 0;
    layout_desc.kind = MEMO_LAYOUT_DOCUMENTS;
    layout_desc.ring = N_RANKS;
    layout_desc.n_tokens = N_TOKENS;
    layout_desc.document_begins = begins;
    layout_desc.n_documents = N_DOCUMENTS;
    for (int i = 0; i < N_TOKENS * ROW; i++) v[i / ROW][i % ROW] = (float)(i / ROW);
    if (memo_layout_make(&layout_desc, &layout, &error) ||
        thread_ranks_run(N_RANKS, attend, &layout, &error)) {
        fprintf(stderr, "11_packed_documents: %s\n", error.message);
        return 1;
    }
    memo_layout_print(&layout, text, sizeof text);
    for (int i = 0; i < N_TOKENS; i++) {
        while (i >= begins[document + 1]) document++;
        n_wrong += fabsf(out[i][0] - 0.5f * (float)(begins[document] + i)) > 1e-4f;
    }
    printf("%stoken 130 is number %d of its document, its output %.1f; %s\n", text,
           (int)positions[130], (double)out[130][0], n_wrong ? "some are WRONG" : "all are right");
    return n_wrong > 0;
}
