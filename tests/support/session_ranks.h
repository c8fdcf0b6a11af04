/* session_ranks.h - a session in every process: unequal budgets give the same rows, and a fault in
 * one process is an error in all.  The processes agree by a function of the test.
 *
 * Include after memo_plan.h, memo_look.h and memo_test.h. */
#ifndef SESSION_RANKS_H
#define SESSION_RANKS_H

enum { SESSION_LAYERS = 4, SESSION_ROWS = 96 };

typedef struct session_rank {
    memo_status (*agree)(void* user, int64_t* values, int64_t n, memo_error* error);
    void* user;
    int32_t rank, n_ranks;
    memo_faults faults;
    int64_t n_wrong;
} session_rank;

static memo_status session_rank_agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    session_rank* r = (session_rank*)user;
    return r->agree(r->user, values, n, error);
}

static void session_rank_rows(void* user, memo_session* s, int32_t layer, int32_t tensor,
                              int64_t begin, int64_t end) {
    double* rows = (double*)memo_session_get_address(s, layer, tensor);
    (void)user;
    for (int64_t i = begin * 16; i < end * 16; i++) rows[i] = (double)(layer * 7919 + tensor + i);
}
static void session_rank_forward(void* user, memo_session* s, int32_t layer) {
    session_rank_rows(user, s, layer, 0, 0, SESSION_ROWS);
    session_rank_rows(user, s, layer, 1, 0, SESSION_ROWS);
}
static void session_rank_backward(void* user, memo_session* s, int32_t layer) {
    for (int32_t t = 0; t < 2; t++) {
        const double* rows = (const double*)memo_session_get_address(s, layer, t);
        for (int64_t i = 0; i < SESSION_ROWS * 16; i++)
            ((session_rank*)user)->n_wrong += (int64_t)rows[i] != layer * 7919 + t + i;
    }
}

/* Creates a session, and runs the steps that it times and two more.  *digest: of the rows. */
static memo_status session_rank_run(session_rank* r, int64_t failing_call, int64_t* digest,
                                    memo_error* why) {
    static const memo_item tensors[] = {MEMO_ITEM("input", 128, MEMO_MOVE),
                                        MEMO_ITEM("hidden", 128, MEMO_ROWS)};
    memo_host_device_desc host = MEMO_ZERO(memo_host_device_desc);
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_device* device = NULL;
    memo_session* s = NULL;
    memo_session_info info;
    int64_t i;
    memo_error error = MEMO_ZERO(memo_error);
    CHECK_OK(memo_host_device_create(&host, &device, &error));
    memo_faults_init(&r->faults, device);
    r->faults.failing_call = failing_call;
    desc.device = &r->faults.device;
    desc.computes_on_host = 1;
    desc.tensors = tensors;
    desc.n_tensors = 2;
    desc.n_layers = SESSION_LAYERS;
    desc.n_rows = SESSION_ROWS;
    desc.tile_rows = 8;
    desc.user = r;
    desc.forward = session_rank_forward;
    desc.backward = session_rank_backward;
    desc.recompute = session_rank_rows;
    desc.agree = session_rank_agree;
    desc.device_bytes = 60000 + 9000 * r->rank; /* everything takes 98,304 */
    memo_status status = memo_session_create(&desc, &s, &error);
    r->faults.failing_call = 0; /* micro-batches do not agree, but the ends of steps do */
    for (i = 0; i < 6 && !status; i++) {
        status = memo_session_run(s, NULL, &error);
        if (!status) status = memo_session_update(s, &error);
    }
    if (!status) {
        CHECK_IS(r->n_wrong, ==, 0);
        info = memo_session_get_info(s);
        for (i = 0, *digest = 0; i < SESSION_LAYERS * 2; i++)
            *digest = *digest * 31 % 1000003 + info.plan->swap.rows[i];
        CHECK_IS(info.plan->device_bytes, <=, 60000);
        CHECK(info.plan->times && info.plan->sizes.swapped_bytes > 0);
    }
    *why = error;
    memo_session_destroy(s);
    memo_host_device_destroy(device);
    return status;
}

static void session_rank_check_same(session_rank* r, int64_t value) {
    int64_t values[2];
    memo_error error;
    values[0] = value;
    values[1] = -value;
    CHECK_OK(r->agree(r->user, values, 2, &error));
    CHECK_CASE(values[0] == -values[1], "rank %d: %lld, others %lld to %lld", (int)r->rank,
               (long long)value, (long long)-values[1], (long long)values[0]);
}

static void session_ranks_agree(session_rank* r) {
    memo_error error;
    int64_t digest = 0;
    CHECK_OK(session_rank_run(r, 0, &digest, &error));
    session_rank_check_same(r, digest);
    int64_t n_calls = r->faults.n_calls;
    CHECK_OK(r->agree(r->user, &n_calls, 1, &error));

    /* The victim's call fails; nobody waits for it for ever.  The calls are spread over ranks. */
    const int64_t n_faults = memo_test_all() ? 24 : 8, n_each = (n_faults - 1) / r->n_ranks + 1;
    for (int32_t victim = 0; victim < r->n_ranks; victim++)
        for (int64_t i = 0; i < n_each; i++) {
            const int64_t call = 1 + (i * r->n_ranks + victim) * n_calls / (n_each * r->n_ranks);
            memset(&error, 0, sizeof error);
            memo_status status = session_rank_run(r, r->rank == victim ? call : 0, &digest, &error);
            session_rank_check_same(r, status != MEMO_STATUS_OK);
            CHECK_CASE(!status || r->rank == victim ||
                           strstr(error.message, "another rank failed") != NULL,
                       "%s", error.message);
        }
}

#endif
