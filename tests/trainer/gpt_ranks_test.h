/* gpt_ranks_test.h - trains the trainer's model for a few steps on ranks that are threads, and
 * returns losses, gradients of the first step, and parameters of every rank. */
#ifndef GPT_RANKS_TEST_H
#define GPT_RANKS_TEST_H

#include "extras/memo_look.h"
#include "gpt_test.h"
#include "thread_ranks.h"

enum { N_STEPS = 3 };

/* The training to run; on one rank if the config's degrees are 0. */
typedef struct training {
    gpt_desc desc;
    int64_t accumulate;
    int32_t records; /* count races in the last step, and sums beside the backward */

    gpt_test_run planned; /* trace and plan, of every rank */
    memo_swap_sizes sizes;
    gpt_layout layout;

    double losses[N_STEPS], norms[N_STEPS]; /* rank 0's */
    int64_t n_races, n_sums, n_sums_beside;
    /* (ranks, parameters): after the first step's micro-batches; after the last step. */
    gpt_real *gradients, *parameters;
    int32_t failing_rank; /* -1: none */
    int32_t fails_later;  /* in the second step, not at its begin */
    /* Checkpoints, by file; NULL: none.  Read before the first step; written then, or after the
     * last. */
    const char *resumed, *saved_first, *saved_last;
} training;

static inline int64_t n_ranks_of(const training* t) {
    return (int64_t)gpt_n_ranks(&t->desc.config) * gpt_degree(t->desc.config.tensor);
}

static inline memo_status train_step(training* t, const thread_rank* rank, gpt_model* model,
                                     int64_t step, memo_error* error) {
    gpt_real* gradients = t->gradients + rank->comm->rank * t->layout.n;
    double loss = 0, norm = 0;
    if (step == 1 && t->fails_later && rank->comm->rank == t->failing_rank)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "a rank that gives up");
    memo_status status = gpt_test_step(model, &t->desc.config, step, t->accumulate,
                                       step ? NULL : gradients, NULL, &loss, &norm, error);
    if (status || rank->comm->rank) return status;
    t->losses[step] = loss;
    t->norms[step] = norm;
    return status;
}

static inline int is_sum_of_gradients(const memo_schedule* schedule, int64_t op) {
    return !strcmp(schedule->text + schedule->streams[schedule->ops[op].stream], "gradients") &&
           strstr(memo_schedule_op_name(schedule, op), ": sum over ");
}

/* Counts the sums of gradients, and those that run beside an operation of the backward if a sum
 * takes as long as 8 other operations. */
static inline memo_status count_sums(training* t, memo_schedule* schedule, memo_error* error) {
    memo_simulation* times;
    memo_status status;
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (schedule->ops[i].kind == MEMO_OP_RUN)
            schedule->ops[i].duration_s = is_sum_of_gradients(schedule, i) ? 8 : 1;
    if ((status = memo_schedule_simulate(schedule, &times, error))) return status;
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        int is_beside = 0;
        if (!is_sum_of_gradients(schedule, i)) continue;
        for (int64_t k = 0; k < schedule->n_ops; k++)
            is_beside |= schedule->ops[k].kind == MEMO_OP_RUN &&
                         schedule->ops[k].stream != schedule->ops[i].stream &&
                         !strncmp(memo_schedule_op_name(schedule, k), "backward", 8) &&
                         times->start_s[i] < times->end_s[k] && times->start_s[k] < times->end_s[i];
        t->n_sums++;
        t->n_sums_beside += is_beside;
    }
    memo_simulation_destroy(times);
    return status;
}

static inline memo_status train_steps(training* t, const thread_rank* rank, gpt_model* model,
                                      memo_recorder* recorder, memo_error* error) {
    memo_schedule* schedule;
    memo_check* check;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t step = 0; step < N_STEPS && !status; step++) {
        if (recorder && step == N_STEPS - 1) memo_recorder_resume(recorder);
        status = train_step(t, rank, model, step, error);
    }
    if (!status)
        status = gpt_get_parameters(model, t->parameters + rank->comm->rank * t->layout.n, error);
    if (status || !recorder || rank->comm->rank) return status;
    status = memo_recorder_get_schedule(recorder, &schedule, error);
    if (!status) status = memo_schedule_check(schedule, &check, error);
    if (status) return status;
    t->n_races = check->n_races;
    memo_check_destroy(check);
    return count_sums(t, schedule, error);
}

static inline memo_status train_on_rank(thread_rank* rank, memo_error* error) {
    training* t = (training*)rank->user;
    memo_recorder* recorder = NULL;
    memo_mesh* mesh = NULL;
    gpt_model* model = NULL;
    gpt_desc desc = t->desc;
    gpt_host_kernels host;
    const gpt_kernels kernels = gpt_kernels_host(&host, rank->device);
    void* taken;
    int64_t resumed_step = 0;
    const gpt_save first = {.path = t->saved_first}, last = {.path = t->saved_last};
    memo_mesh_desc degrees = {.data = desc.config.data,
                              .ring = desc.config.ring,
                              .ulysses = desc.config.ulysses,
                              .tensor = desc.config.tensor};
    memo_status status = memo_mesh_create(rank->comm, &degrees, &mesh, error);
    memo_recorder_desc recorder_desc = {.device = rank->device};
    if (!status && t->records) status = memo_recorder_create(&recorder_desc, &recorder, error);
    if (recorder) memo_recorder_pause(recorder);
    if (!status && rank->comm->rank == t->failing_rank && !t->fails_later)
        status = memo_device_alloc(rank->device, t->planned.plan->peak_bytes - 512, &taken, error);
    desc.kernels = &kernels;
    desc.device = recorder ? memo_recorder_get_device(recorder) : rank->device;
    desc.mesh = mesh;
    if (!status) status = gpt_create(&desc, &model, error);
    if (!status && t->resumed)
        status = gpt_read_checkpoint(model, t->resumed, 0, &resumed_step, error);
    if (!status && t->saved_first)
        status = gpt_write_checkpoint(model, &first, resumed_step, error);
    if (!status) status = train_steps(t, rank, model, recorder, error);
    if (!status && t->saved_last) status = gpt_write_checkpoint(model, &last, N_STEPS, error);
    if (status) memo_comm_abort(rank->comm);
    gpt_destroy(model);
    memo_mesh_destroy(mesh);
    memo_recorder_destroy(recorder);
    return status;
}

/* Each rank's device has the bytes that the plan promises and not one more. */
static inline memo_status train_all(training* t, memo_error* error) {
    const int64_t n = n_ranks_of(t);
    memo_status status;
    t->layout = gpt_layout_make(&t->desc.config);
    t->gradients = (gpt_real*)calloc((size_t)(n * t->layout.n), sizeof(gpt_real));
    t->parameters = (gpt_real*)calloc((size_t)(n * t->layout.n), sizeof(gpt_real));
    if (!t->gradients || !t->parameters) abort();
    if ((status = gpt_test_plan(&t->desc, &t->planned, error))) return status;
    t->sizes = t->planned.step->sizes;
    memo_host_device_desc desc = {.device_memory_bytes = t->planned.plan->peak_bytes,
                                  .host_memory_bytes =
                                      t->sizes.host_bytes +
                                      gpt_staging_bytes(&t->desc.config, t->desc.n_micro_batches)};
    memo_comm_threads_desc comm_desc = {.timeout_s = 120};
    return thread_ranks_run_on(&desc, &comm_desc, (int32_t)n, train_on_rank, t, error);
}

static inline training training_of(gpt_config config, memo_policy policy, int64_t accumulate) {
    training t = {0};
    CHECK_IS(N_STEPS * accumulate * config.batch * config.sequence, <, 2048);
    t.desc = gpt_test_desc(config, policy, 0.5);
    t.accumulate = t.desc.n_micro_batches = accumulate;
    t.failing_rank = -1;
    (void)gpt_test_text(); /* before ranks read it */
    return t;
}

static inline training trained(gpt_config config, memo_policy policy, int64_t accumulate) {
    training t = training_of(config, policy, accumulate);
    memo_error error;
    CHECK_OK(train_all(&t, &error));
    return t;
}

static inline void training_free(training* t) {
    free(t->gradients);
    free(t->parameters);
    gpt_test_close(&t->planned);
}
#define own_training OWNED(training_free) training /* of owned.h */

/* ---- comparison ---- */

static inline double loss_difference(const training* a, const training* b) {
    double largest = 0;
    for (int64_t i = 0; i < N_STEPS; i++)
        largest = memo_test_worst(largest, fabs(a->losses[i] - b->losses[i]));
    return largest;
}

/* Of a parameter of tensor rank r.  If ranks have parts of the gradients, the other parts are 0. */
static inline double gradient_of(const training* t, int32_t r, int64_t i) {
    const int32_t tensor = gpt_degree(t->desc.config.tensor);
    double sum = 0;
    int64_t g, n = t->desc.config.zero ? n_ranks_of(t) / tensor : 1;
    for (g = 0; g < n; g++) sum += (double)t->gradients[(g * tensor + r) * t->layout.n + i];
    return sum;
}

/* The largest of a parameter, over the norm of one's gradient; one has no tensor ranks. */
static inline double gradient_difference(const training* one, const training* t) {
    double largest = 0, norm = 0;
    for (int64_t k = 0; k < gpt_n_parameter_tensors(&one->desc.config); k++) {
        const gpt_parameter a = gpt_parameter_at(&one->desc.config, k);
        const gpt_parameter b = gpt_parameter_at(&t->desc.config, k);
        for (int64_t i = 0; i < a.n; i++) norm += pow(gradient_of(one, 0, a.offset + i), 2);
        for (int32_t r = 0; r < gpt_degree(t->desc.config.tensor); r++)
            for (int64_t i = 0; i < b.n; i++) {
                const int64_t at = gpt_element_of_whole(&b, r, i);
                largest = memo_test_worst(largest, fabs(gradient_of(t, r, b.offset + i) -
                                                        gradient_of(one, 0, a.offset + at)));
            }
    }
    return largest / sqrt(norm);
}

/* Bit by bit; 0 and -0 are the same if the ranks of one have parts of the gradients. */
static inline int have_equal_gradients(const training* a, const training* b) {
    if (a->desc.config.zero == b->desc.config.zero)
        return !memcmp(a->gradients, b->gradients,
                       (size_t)(n_ranks_of(a) * a->layout.n) * sizeof(gpt_real));
    for (int64_t i = 0; i < a->layout.n; i++)
        if (!(gradient_of(a, 0, i) - gradient_of(b, 0, i) == 0)) return 0;
    return 1;
}

/* Losses, norms, gradients, and the parameters of every rank. */
static inline int are_the_same(const training* a, const training* b) {
    return !memcmp(a->losses, b->losses, sizeof a->losses) &&
           !memcmp(a->norms, b->norms, sizeof a->norms) && have_equal_gradients(a, b) &&
           !memcmp(a->parameters, b->parameters,
                   (size_t)(n_ranks_of(a) * a->layout.n) * sizeof(gpt_real));
}

/* Copies of a parameter have stayed copies. */
static inline int copies_are_equal(const training* t) {
    const int32_t tensor = gpt_degree(t->desc.config.tensor);
    for (int64_t k = 0; k < gpt_n_parameter_tensors(&t->desc.config); k++) {
        const gpt_parameter p = gpt_parameter_at(&t->desc.config, k);
        for (int64_t r = 1; r < n_ranks_of(t); r++) {
            const int64_t of = r % tensor % p.degree;
            if (memcmp(t->parameters + of * t->layout.n + p.offset,
                       t->parameters + r * t->layout.n + p.offset, (size_t)p.n * sizeof(gpt_real)))
                return 0;
        }
    }
    return 1;
}

#endif
