/* test_experts.c - rows of experts over ranks: bit by bit those of one rank, and near fp64.
 *
 * Expert e multiplies a row by a_e.  A token's output is the sum of its choices' results times
 * their weights; the loss is the sum of g times the output. */
#include "memo_sp.h"
#include "thread_ranks.h"
#include "owned.h"

enum { RANKS = 6, TOKENS = 60, CHOICES = 3, EXPERTS = 12, WIDTH = 5, ROWS = TOKENS * CHOICES };

typedef struct moe_results {
    float out[TOKENS][WIDTH], d_x[TOKENS][WIDTH], d_a[EXPERTS][WIDTH];
} moe_results;

typedef struct moe_case {
    int32_t n_ranks, n_experts, n_choices;
    int64_t begins[RANKS + 1]; /* the tokens of each rank */
    int32_t choice[TOKENS][CHOICES];
    float x[TOKENS][WIDTH], g[TOKENS][WIDTH], weight[TOKENS][CHOICES], a[EXPERTS][WIDTH];
    moe_results results;
    int64_t sent_bytes[RANKS];
    int32_t most_messages; /* of a group of the communicator; 0: its own limit */
} moe_case;

/* The messages of the largest group, and groups of all ranks. */
static memo_status (*send_messages)(memo_comm* comm, memo_stream stream,
                                    const memo_message_call* calls, int32_t n, memo_error* e);
static int32_t largest_group, n_groups;
static memo_status count_messages(memo_comm* comm, memo_stream stream,
                                  const memo_message_call* calls, int32_t n, memo_error* e) {
    int32_t most = __atomic_load_n(&largest_group, __ATOMIC_RELAXED);
    while (n > most && !__atomic_compare_exchange_n(&largest_group, &most, n, 0, __ATOMIC_RELAXED,
                                                    __ATOMIC_RELAXED)) {
    }
    __atomic_add_fetch(&n_groups, 1, __ATOMIC_RELAXED);
    return send_messages(comm, stream, calls, n, e);
}
static void watch_messages(memo_comm* comm) {
    __atomic_store_n(&send_messages, comm->messages, __ATOMIC_RELAXED); /* of all ranks */
    comm->messages = count_messages;
}

static float one_float(void) { return (float)memo_test_real() - 0.5f; }

/* Tokens of ranks are unequal; some ranks have none, and some experts no rows. */
static moe_case random_case(int i) {
    moe_case c = {.n_ranks = 1 + i % RANKS,
                  .n_experts = (int32_t)memo_test_int(1, EXPERTS),
                  .n_choices = (int32_t)memo_test_int(1, CHOICES),
                  .most_messages = i % 3 ? 0 : (int32_t)memo_test_int(2, 9)};
    const int all_on = i % 5 ? -1 : (int)memo_test_int(0, c.n_experts - 1);
    for (int32_t r = 0; r < c.n_ranks; r++) {
        const int64_t left = TOKENS - c.begins[r];
        c.begins[r + 1] = c.begins[r] + (memo_test_int(0, 3) ? memo_test_int(0, left) : 0);
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < CHOICES; k++) {
            c.choice[t][k] = all_on < 0 ? (int32_t)memo_test_int(0, c.n_experts - 1) : all_on;
            c.weight[t][k] = one_float();
        }
        for (int j = 0; j < WIDTH; j++) c.x[t][j] = one_float(), c.g[t][j] = one_float();
    }
    for (int j = 0; j < EXPERTS * WIDTH; j++) c.a[j / WIDTH][j % WIDTH] = one_float();
    return c;
}

/* The rows of the tokens [begin, end) for each expert, in the order of tokens. */
typedef struct moe_rows {
    int64_t n[EXPERTS];
    struct {
        int64_t token;
        int choice;
    } at[EXPERTS][ROWS];
} moe_rows;

static void sort_rows(const moe_case* c, int64_t begin, int64_t end, moe_rows* rows) {
    memset(rows, 0, sizeof *rows);
    for (int64_t t = begin; t < end; t++)
        for (int k = 0; k < c->n_choices; k++) {
            const int32_t e = c->choice[t][k];
            rows->at[e][rows->n[e]].token = t;
            rows->at[e][rows->n[e]++].choice = k;
        }
}

/* ---- a rank ---- */

typedef struct moe_rank {
    moe_case* c;
    thread_rank* t;
    memo_experts* experts;
    memo_routing routing;
    int64_t counts[RANKS * EXPERTS];
    moe_rows rows;
    float (*sorted)[WIDTH];
    float (*placed[2])[WIDTH]; /* x; d_y */
} moe_rank;

/* The place of the next row in the sender's order. */
static int64_t sorted_place(const moe_rank* m, int expert, int64_t i) {
    int64_t at = i;
    for (int e = 0; e < expert; e++) at += m->rows.n[e];
    return at;
}

/* x goes to the experts and the results come back (is_backward 0); or the gradients. */
static memo_status pass(moe_rank* m, int is_backward, memo_error* e) {
    moe_case* c = m->c;
    const memo_share mine = memo_share_of(c->n_experts, c->n_ranks, m->t->comm->rank);
    float(*placed)[WIDTH] = m->placed[is_backward], (*out)[WIDTH];
    memo_status status;
    int64_t at = 0;
    for (int x = 0; x < c->n_experts; x++)
        for (int64_t i = 0; i < m->rows.n[x]; i++)
            for (int j = 0; j < WIDTH; j++) {
                const int64_t t = m->rows.at[x][i].token;
                m->sorted[sorted_place(m, x, i)][j] =
                    is_backward ? c->weight[t][m->rows.at[x][i].choice] * c->g[t][j] : c->x[t][j];
            }
    status = memo_dispatch(m->experts, &m->routing, m->sorted, placed, WIDTH, MEMO_TYPE_F32, e);
    if (!status) status = memo_stream_synchronize(m->t->device, m->t->stream, e);
    if (status) return status;

    out = (float(*)[WIDTH])calloc((size_t)m->routing.n_received + 1, sizeof *out);
    for (int64_t i = 0; i < mine.count; i++)
        for (int32_t r = 0; r < c->n_ranks; r++) {
            const int64_t n = m->counts[r * c->n_experts + mine.begin + i];
            for (int64_t k = 0; k < n; k++)
                for (int j = 0; j < WIDTH; j++) {
                    out[at + k][j] = c->a[mine.begin + i][j] * placed[at + k][j];
                    if (is_backward)
                        c->results.d_a[mine.begin + i][j] +=
                            placed[at + k][j] * m->placed[0][at + k][j];
                }
            at += n;
        }
    status = memo_combine(m->experts, &m->routing, out, m->sorted, WIDTH, MEMO_TYPE_F32, e);
    if (!status) status = memo_stream_synchronize(m->t->device, m->t->stream, e);
    free(out);

    /* A token's rows, in the order of experts. */
    for (int x = 0; x < c->n_experts && !status; x++)
        for (int64_t i = 0; i < m->rows.n[x]; i++)
            for (int j = 0; j < WIDTH; j++) {
                const int64_t t = m->rows.at[x][i].token, place = sorted_place(m, x, i);
                if (is_backward)
                    c->results.d_x[t][j] += m->sorted[place][j];
                else
                    c->results.out[t][j] +=
                        c->weight[t][m->rows.at[x][i].choice] * m->sorted[place][j];
            }
    return status;
}

static memo_status moe_run(thread_rank* t, memo_error* e) {
    moe_case* c = (moe_case*)t->user;
    own_memory moe_rank* m = (moe_rank*)calloc(1, sizeof *m);
    own_memory float(*memory)[WIDTH] =
        (float(*)[WIDTH])malloc(3 * sizeof *memory * EXPERTS * RANKS * ROWS);
    memo_experts_desc desc = {t->device, t->stream, t->comm, c->n_experts, 0};
    memset(memory, 0xff, 3 * sizeof *memory * EXPERTS * RANKS * ROWS); /* NaN */
    m->c = c;
    m->t = t;
    if (c->most_messages) t->comm->max_waiting = c->most_messages;
    m->routing.counts = m->counts;
    m->sorted = memory;
    m->placed[0] = memory + EXPERTS * RANKS * ROWS;
    m->placed[1] = m->placed[0] + EXPERTS * RANKS * ROWS;
    sort_rows(c, c->begins[t->comm->rank], c->begins[t->comm->rank + 1], &m->rows);
    memo_status status = memo_experts_create(&desc, &m->experts, e);
    if (!status) status = memo_experts_route(m->experts, m->rows.n, &m->routing, e);
    const int64_t before = t->comm->sent_bytes;
    if (!status) status = pass(m, 0, e);
    c->sent_bytes[t->comm->rank] = t->comm->sent_bytes - before;
    if (!status) status = pass(m, 1, e);
    memo_experts_destroy(m->experts);
    return status;
}

/* ---- tests ---- */

static void expect_near_fp64(const moe_case* c) {
    for (int64_t t = 0; t < c->begins[c->n_ranks]; t++)
        for (int j = 0; j < WIDTH; j++) {
            double out = 0, d_x = 0;
            for (int k = 0; k < c->n_choices; k++) {
                const double a = (double)c->a[c->choice[t][k]][j] * c->weight[t][k];
                out += a * c->x[t][j];
                d_x += a * c->g[t][j];
            }
            CHECK(fabs(c->results.out[t][j] - out) < 1e-6 &&
                  fabs(c->results.d_x[t][j] - d_x) < 1e-6);
        }
    for (int e = 0; e < c->n_experts; e++)
        for (int j = 0; j < WIDTH; j++) {
            double d_a = 0;
            for (int64_t t = 0; t < c->begins[c->n_ranks]; t++)
                for (int k = 0; k < c->n_choices; k++)
                    if (c->choice[t][k] == e)
                        d_a += (double)c->weight[t][k] * c->g[t][j] * c->x[t][j];
            CHECK(fabs(c->results.d_a[e][j] - d_a) < 1e-5);
        }
}

/* The bits of one rank, whatever the number of ranks and experts; rows that stay are not sent. */
TEST(experts_over_ranks_have_the_bits_of_one_rank) {
    for (int i = 0; i < 120; i++) {
        moe_case c = random_case(i), one = c;
        int64_t n_sent[RANKS] = {0};
        one.n_ranks = 1;
        one.begins[1] = c.begins[c.n_ranks];
        CHECK_OK(thread_ranks_run(c.n_ranks, moe_run, &c, &error));
        CHECK_OK(thread_ranks_run(1, moe_run, &one, &error));
        CHECK_CASE(!memcmp(&c.results, &one.results, sizeof c.results),
                   "%d ranks, %d experts, %d choices", c.n_ranks, c.n_experts, c.n_choices);
        expect_near_fp64(&c);

        for (int32_t r = 0; r < c.n_ranks; r++) /* x there, results back */
            for (int32_t p = 0; p < c.n_ranks; p++) {
                const memo_share share = memo_share_of(c.n_experts, c.n_ranks, p);
                int64_t n = 0;
                for (int64_t t = c.begins[r]; t < c.begins[r + 1]; t++)
                    for (int k = 0; k < c.n_choices; k++)
                        n += c.choice[t][k] >= share.begin &&
                             c.choice[t][k] < share.begin + share.count;
                if (p == r) continue;
                n_sent[r] += n;
                n_sent[p] += n;
            }
        for (int32_t r = 0; r < c.n_ranks; r++)
            CHECK_IS(c.sent_bytes[r], ==, n_sent[r] * WIDTH * 4);
    }
}

/* A row for each expert of each rank goes there and comes back, in groups of at most 256
 * messages. */
enum { GROUP_RANKS = 8, GROUP_EXPERTS = 1000 };
static memo_status large_groups(thread_rank* t, memo_error* e) {
    const int32_t n = *(const int32_t*)t->user, n_ranks = t->comm->size, me = t->comm->rank;
    const memo_share mine = memo_share_of(n, n_ranks, me);
    memo_experts_desc desc = {t->device, t->stream, t->comm, n, 0};
    memo_experts* experts = NULL;
    float rows[GROUP_EXPERTS], back[GROUP_EXPERTS];
    int64_t counts[GROUP_EXPERTS];
    own_memory int64_t* all = (int64_t*)calloc((size_t)(n * n_ranks), sizeof *all);
    own_memory float* received = (float*)calloc((size_t)(n * n_ranks), sizeof *received);
    memo_routing routing = {all, 0, 0};
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (float)(me * n + i);
        counts[i] = 1;
        back[i] = -1;
    }
    watch_messages(t->comm);
    memo_status status = memo_experts_create(&desc, &experts, e);
    if (!status) status = memo_experts_route(experts, counts, &routing, e);
    if (!status) status = memo_dispatch(experts, &routing, rows, received, 1, MEMO_TYPE_F32, e);
    if (!status) status = memo_combine(experts, &routing, received, back, 1, MEMO_TYPE_F32, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    for (int64_t i = 0; i < mine.count * n_ranks && !status; i++)
        CHECK_IS((double)received[i], ==, (double)(i % n_ranks * n + mine.begin + i / n_ranks));
    if (!status) CHECK(!memcmp(rows, back, (size_t)n * sizeof *rows));
    memo_experts_destroy(experts);
    return status;
}

TEST(groups_have_at_most_256_messages) {
    static const int32_t n_ranks[] = {2, 8, 8, 7, 3}, n_experts[] = {1000, 64, 512, 1000, 256};
    static const int32_t most[] = {256, 112, 256, 256, 256}, n[] = {4, 1, 4, 12, 2};
    for (int i = 0; i < 5; i++) {
        largest_group = n_groups = 0;
        CHECK_OK(
            thread_ranks_run(n_ranks[i], large_groups, (void*)(uintptr_t)&n_experts[i], &error));
        printf("# %d ranks, %d experts: %d groups of at most %d messages\n", (int)n_ranks[i],
               (int)n_experts[i], (int)(n_groups / n_ranks[i] / 2), (int)largest_group);
        CHECK_IS(largest_group, <=, most[i]);
        CHECK_IS(n_groups, ==, n[i] * n_ranks[i] * 2);
    }
}

/* Every rank gets the error of a rank's counts, and can route again. */
static memo_status wrong_counts(thread_rank* t, MEMO_UNUSED memo_error* e) {
    memo_experts_desc desc = {t->device, t->stream, t->comm, 4, 10};
    memo_experts* experts = NULL;
    int64_t all[3 * 4], counts[3][4] = {{0, 0, 0, 0}, {2, 2, 0, 0}, {0, 0, 0, 0}};
    memo_routing routing = {all, 0, 0};
    memo_status status = memo_experts_create(&desc, &experts, e);
    if (status) return status;
    counts[0][3] = t->comm->rank == 1 ? -1 : 0;
    counts[1][1] = t->comm->rank == 2 ? 3 : 2; /* rank 0 has two experts, and would get 13 */
    counts[2][t->comm->rank] = 3;
    CHECK_ERROR(memo_experts_route(experts, counts[0], &routing, &error), INVALID_ARGUMENT,
                "rank 1 sends -1 rows to expert 3");
    CHECK_ERROR(memo_experts_route(experts, counts[1], &routing, &error), INFEASIBLE,
                "rank 0 would receive 13 rows");
    CHECK_OK(memo_experts_route(experts, counts[2], &routing, &error));
    CHECK_IS(routing.n_sent, ==, 3);
    CHECK_IS(routing.n_received, ==, t->comm->rank == 2 ? 0 : t->comm->rank ? 3 : 6);
    CHECK_ERROR(memo_dispatch(experts, &routing, NULL, all, 1, MEMO_TYPE_F32, &error),
                INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(memo_dispatch(experts, &routing, all, all, 0, MEMO_TYPE_F32, &error),
                INVALID_ARGUMENT, "row_elements");
    memo_experts_destroy(experts);
    return MEMO_STATUS_OK;
}

TEST(wrong_counts_are_errors_on_all_ranks) {
    CHECK_OK(thread_ranks_run(3, wrong_counts, NULL, &error));
}

enum { NOTHING, OTHER_EXPERTS, OTHER_LIMIT, OTHER_WIDTH, OTHER_PASS, NO_CALL, N_FAULTS };
static const char* const fault_words[] = {"",         "n_experts", "max_received", "row_elements",
                                          "dispatch", "aborted"};

static memo_status faulty(thread_rank* t, memo_error* e) {
    const int fault = *(int*)t->user, is_odd = t->comm->rank == 1;
    memo_experts_desc desc = {t->device, t->stream, t->comm, 3, 0};
    float rows[40] = {0}, received[40];
    int64_t counts[3] = {1, 1, 1}, all[9 * 3];
    memo_routing routing = {all, 0, 0};
    memo_experts* experts = NULL;
    if (is_odd && fault == OTHER_EXPERTS) desc.n_experts = 2;
    if (is_odd && fault == OTHER_LIMIT) desc.max_received = 99;
    memo_status status = memo_experts_create(&desc, &experts, e);
    if (!status) status = memo_experts_route(experts, counts, &routing, e);
    if (!status && is_odd && fault == NO_CALL) memo_comm_abort(t->comm);
    if (!status && is_odd && fault == OTHER_PASS)
        status = memo_combine(experts, &routing, rows, received, 4, MEMO_TYPE_F32, e);
    else if (!status)
        status = memo_dispatch(experts, &routing, rows, received,
                               is_odd && fault == OTHER_WIDTH ? 5 : 4, MEMO_TYPE_F32, e);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    memo_experts_destroy(experts);
    return status;
}

TEST(a_fault_gives_every_rank_a_status) {
    memo_host_device_desc desc = {0};
    for (int fault = 0; fault < N_FAULTS; fault++) {
        thread_ranks team;
        CHECK_OK(thread_ranks_open(&team, &desc, NULL, 3, &error));
        const memo_status status = thread_ranks_call(&team, faulty, &fault, &error);
        CHECK_IS(status, ==, (fault ? MEMO_STATUS_COMM : MEMO_STATUS_OK));
        for (int r = 0; r < 3 && fault; r++)
            CHECK_CASE(team.ranks[r].status == MEMO_STATUS_COMM &&
                           strstr(team.ranks[r].error.message, fault_words[fault]),
                       "fault %d, rank %d: %s", fault, r, team.ranks[r].error.message);
        thread_ranks_close(&team);
    }
}

TEST(invalid_experts_are_refused) {
    memo_host_device_desc device_desc = {0};
    thread_ranks team;
    memo_experts* experts;
    CHECK_OK(thread_ranks_open(&team, &device_desc, NULL, 2, &error));
    memo_experts_desc desc = {NULL, team.ranks[0].stream, team.comms[0], 4, 0};
    CHECK_ERROR(memo_experts_create(&desc, &experts, &error), INVALID_ARGUMENT, "device");
    desc.device = team.devices[0];
    desc.n_experts = 0;
    CHECK_ERROR(memo_experts_create(&desc, &experts, &error), INVALID_ARGUMENT, "n_experts");
    desc.n_experts = (1 << 20) + 1;
    CHECK_ERROR(memo_experts_create(&desc, &experts, &error), INVALID_ARGUMENT, "n_experts");
    CHECK(!experts);
    thread_ranks_close(&team);
}
