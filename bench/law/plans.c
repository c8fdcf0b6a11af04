/* bench/law/plans.c - plans of random sessions, beside those of another commit.
 *
 *   cc -O2 -w -pthread -std=gnu11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -I. -Iexamples
 *      -Itests/session -Itests/support '-DMEMO_ASSERT(c)=((void)0)' bench/law/plans.c -o plans -lm
 *   ./plans SEED FIRST END > new.txt    cases FIRST to END - 1
 *   ./plans toys                        small sessions whose plans take long
 *   python3 bench/law/plans.py old.txt new.txt
 *
 * The other commit needs this file too, and its own headers and tests.  A line of the output has
 * the predicted step of a plan, what leaves the device, and seconds of processor time. */
#define MEMO_TEST_OWN_MAIN
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "memo_test.h"
#include "owned.h"
#include "timed.h"
#include "trainer.h"
#include "fetched.h"

static double cpu_s(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void put_plan(const char* name, const memo_session_desc* d, const memo_profile* times) {
    const double begin_s = cpu_s();
    memo_step_plan* plan = NULL;
    const memo_status status = memo_session_plan(d, times, &plan, &error);
    const double end_s = cpu_s();
    if (status)
        printf("%s failed %s\n", name, error.message);
    else if (!plan->fits)
        printf("%s none cpu %.3f\n", name, end_s - begin_s);
    else
        printf("%s ok step %.12g streamed %lld spilled %lld at %d host %d group %d cpu %.3f\n",
               name, plan->times->step_s, (long long)plan->n_streamed, (long long)plan->n_spilled,
               (int)plan->update_at, (int)plan->update_is_on_host, (int)plan->n_group,
               end_s - begin_s);
    fflush(stdout);
    memo_step_plan_destroy(plan);
}

/* Bytes of the device with which all stays there. */
static int64_t most_of(const memo_session_desc* desc) {
    memo_session_desc d = *desc;
    int64_t n_bytes;
    memo_step_plan* plan = NULL;
    d.policy = MEMO_POLICY_KEEP;
    d.device_bytes = 0;
    CHECK_OK(memo_session_plan(&d, NULL, &plan, &error));
    n_bytes = plan->device_bytes;
    memo_step_plan_destroy(plan);
    return n_bytes;
}

/* A random step in random budgets: with states, also larger ones; an order; a file; slices;
 * groups. */
static void random_case(trainer* t, timed* times, int64_t i) {
    memo_session_desc* d = &t->desc;
    int64_t least, most;
    t_init_random(t, 40);
    d->n_shapes = 0;
    d->is_unadvised = 1;
    if (i % 8 == 3) t_take_fetched(t);
    if (i % 8 == 5)
        d->n_states = 0, d->update = NULL, d->update_host = NULL, d->update_on = 0,
        d->update_may = 0;
    if (i % 4 == 2 && d->n_states)
        for (int k = 0; k < T_N_STATES; k++) t->states[k].size_bytes *= 8;
    if (i % 8 == 7) t_take_order(t);
    take_random_times(times, d);
    if (!d->n_group && !d->n_order) d->micro_batches = (int32_t)memo_test_int(0, 3);
    if (i % 16 == 4 && d->n_layers > 1 && d->n_states) d->update_on = MEMO_UPDATE_PLANNED;
    if (i % 16 == 12) d->n_tensors = T_N_TENSORS - 3, d->n_layers = (int32_t)memo_test_int(1, 12);
    take_random_times(times, d);
    d->slice_rows = d->slice_rows ? d->slice_rows : d->n_rows;
    CHECK_OK(memo_session_get_least(d, &least, &error));
    most = most_of(d);
    d->device_bytes = memo_test_int(least, most + most / 8);
    d->host_bytes = memo_test_int(0, 1) ? 0 : memo_test_int(most / 8, most + most / 2);
    if (d->host_bytes && memo_test_int(0, 1)) {
        d->spill_directory = "/tmp";
        d->disk_bytes = memo_test_int(most / 4, most);
    }
}

/* --- toys --- */

typedef struct toy {
    const char* name;
    int32_t n_layers, n_tensors, n_slices, micro_batches, n_states, n_order;
} toy;
static const toy toys[] = {{"toy-4-layers", 4, 7, 2, 3, 2, 0},
                           {"toy-order", 2, 7, 5, 0, 2, 4},
                           {"toy-host", 4, 7, 1, 2, 4, 0},
                           {"toy-rows", 6, 7, 1, 1, 0, 0}};

static void toy_case(trainer* t, timed* times, const toy* of) {
    memo_session_desc* d = &t->desc;
    int64_t least, most;
    t_init(t, of->n_layers, 40, 40 / of->n_slices);
    const memo_state states[] = {{"weights", 2400, MEMO_STATE_WEIGHTS, 0},
                                 {"gradients", 2400, MEMO_STATE_GRADIENT, 0},
                                 {"moments", 4800, MEMO_STATE_UPDATE, 0},
                                 {"frozen", 1600, MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, 0}};
    memcpy(t->states, states, sizeof states);
    d->n_tensors = of->n_tensors;
    d->n_buffers = 0;
    d->routed_rows_layer = d->routed_rows_all = 0;
    d->layer_kinds = t->kinds;
    d->tile_rows = 4;
    d->micro_batches = of->micro_batches;
    d->n_group = of->n_order ? 0 : MEMO_GROUP_PLANNED;
    d->is_unadvised = 1;
    d->states = of->n_states ? t->states : NULL;
    d->n_states = of->n_states;
    d->update = of->n_states ? t_update : NULL;
    d->update_host = of->n_states > 2 ? t_update_host : NULL;
    d->update_may = of->n_states ? MEMO_MAY_DEFER | MEMO_MAY_FUSE : 0;
    for (int k = 0; k < of->n_order;
         k++) /* the forwards of two micro-batches, then their backwards */
        t->order[k] = (memo_turn){k % 2, 0, k > 1 ? MEMO_PASS_BACKWARD : MEMO_PASS_FORWARD};
    if (of->n_order) d->order = t->order, d->n_order = of->n_order, d->loss = t_loss;
    take_random_times(times, d);
    if (of->n_order || d->n_group) d->between = NULL, d->loss = loss_takes;
    CHECK_OK(memo_session_get_least(d, &least, &error));
    most = most_of(d);
    d->device_bytes = least + (most - least) / 3;
    d->host_bytes = most;
}

int main(int argc, char** argv) {
    static trainer t;
    static timed times;
    char name[32];
    if (argc < 2) return 2;
    for (size_t k = 0; !strcmp(argv[1], "toys") && k < sizeof toys / sizeof *toys; k++) {
        memo_test.state = 7;
        toy_case(&t, &times, &toys[k]);
        put_plan(toys[k].name, &t.desc, &times.times);
    }
    if (argc < 4) return argc < 4 && strcmp(argv[1], "toys");
    for (int64_t i = atoll(argv[2]); i < atoll(argv[3]); i++) {
        memo_test.state = (uint64_t)atoll(argv[1]) * 1000003 + (uint64_t)i;
        random_case(&t, &times, i);
        snprintf(name, sizeof name, "%lld", (long long)i);
        put_plan(name, &t.desc, &times.times);
    }
    return 0;
}
