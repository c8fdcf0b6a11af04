/* test_pipeline.c - sessions with an order: several micro-batches in flight, in chunks of layers.
 * Random legal orders under random budgets give the gradients of a plain loop; device memory is
 * that of the formula in memo_plan.h; recorded operations have no race. */
#include "scarce.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"
#include "pipeline.h"

/* A stage alone, with any legal order, 1F1B or GPipe. */
static void random_stage(pipeline* p, stage* s) {
    p_random(p, 1, (int32_t)memo_test_int(1, P_CHUNKS_MAX));
    p_open_stage(s, p, 0);
    if (memo_test_int(0, 3))
        p_random_order(s);
    else
        p_interleaved(s, (int32_t)memo_test_int(0, 2 * P_MICRO_BATCHES_MAX));
}

/* --- device memory --- */

static int64_t up(int64_t n_bytes) { return (n_bytes + 511) / 512 * 512; }

/* The most that are in flight at once, of each class of chunks. */
static int32_t places_of(const stage* s) {
    const int32_t n = s->p->n_of_chunk;
    int32_t sum = 0;
    for (int32_t of = 0; of < s->p->n_chunks; of++) {
        int32_t now = 0, most = 0, is_first = 1;
        for (int32_t c = 0; c < of; c++)
            is_first &= memcmp(s->layer_kinds + c * n, s->layer_kinds + of * n,
                               (size_t)n * sizeof *s->layer_kinds) != 0;
        for (int32_t k = 0; k < s->desc.n_order && is_first; k++) {
            const memo_turn* turn = &s->order[k];
            if (memcmp(s->layer_kinds + turn->chunk * n, s->layer_kinds + of * n,
                       (size_t)n * sizeof *s->layer_kinds))
                continue;
            now += turn->pass == MEMO_PASS_FORWARD ? 1 : -1;
            if (now > most) most = now;
        }
        sum += most;
    }
    return sum;
}

static void check_bytes(const stage* s, const memo_step_plan* plan) {
    const int64_t rows = s->p->n_rows, x = up(8 * P_WORDS * rows);
    CHECK_IS(plan->swap.n_places, ==, places_of(s));
    CHECK_IS(plan->swap.n_layers, ==, plan->swap.n_places * s->p->n_of_chunk);
    CHECK_IS(plan->device_bytes, ==,
             plan->sizes.device_bytes + plan->swap.n_places * (up(8 * rows) + x) + 2 * x);
}

TEST(any_order_gives_the_same_gradients) {
    const int64_t n = memo_test_all() ? 2000 : 20;
    int64_t n_moved = 0, n_deep = 0, n_recomputed = 0;
    for (int64_t i = 0; i < n; i++) {
        static pipeline p;
        static stage s;
        int64_t least = 0;
        random_stage(&p, &s);
        s.desc.policy = MEMO_POLICY_KEEP;
        own_step_plan *kept = NULL, *plan = NULL;
        CHECK_OK(memo_session_plan(&s.desc, NULL, &kept, &error));
        if (!kept) continue;
        check_bytes(&s, kept);
        s.desc.policy = (memo_policy)memo_test_int(0, MEMO_POLICY_ALPHA);
        s.desc.is_checked = memo_test_int(0, 3) == 0;
        if (s.desc.policy == MEMO_POLICY_MEMO) {
            CHECK_OK(memo_session_get_least(&s.desc, &least, &error));
            s.desc.device_bytes = memo_test_int(least, kept->device_bytes);
        }
        CHECK_OK(memo_session_plan(&s.desc, NULL, &plan, &error));
        if (!plan || !plan->fits) {
            CHECK_CASE(0, "case %lld: %s", (long long)i, plan ? plan->shortage : error.message);
            continue;
        }
        if (s.desc.device_bytes) CHECK_IS(plan->device_bytes, <=, s.desc.device_bytes);
        check_bytes(&s, plan);
        own_session* session = NULL;
        CHECK_OK(memo_session_open(&s.desc, plan, &session, &error));
        for (int step = 0; step < 2 && session; step++) CHECK_OK(p_step(&s, session));
        CHECK_CASE(p_n_wrong(&s, 2) == 0, "case %lld: %lld gradients of %d layers differ",
                   (long long)i, (long long)p_n_wrong(&s, 2), (int)s.desc.n_layers);
        n_moved += plan->sizes.swapped_bytes > 0;
        n_deep += plan->swap.n_places > 2;
        n_recomputed += s.desc.policy == MEMO_POLICY_RECOMPUTE;
    }
    CHECK_IS(n_moved, >, n / 8);
    CHECK_IS(n_deep, >, n / 8);
    CHECK_CASE(n_recomputed > 0 || n < 100, "none is recomputed");
}
