/* bench/law/beside.c - compares the engine of rows with that of another commit: the same random
 * descriptions, drawn as tests/memo/test_swap.c of each commit draws them.
 *
 *   cc -w -pthread -I. -Itests/memo -Itests/support '-DMEMO_ASSERT(c)=((void)0)' bench/law/beside.c -o beside -lm -ldl
 *   ./beside SEED COUNT 1 > new.txt         rows, slices and a file; 2: with routed rows; 3: orders
 *   python3 bench/law/compare.py old.txt new.txt
 *
 * The other commit needs this file too, and its own headers and tests.  A line of the output says
 * what a description takes and moves, its races and waits, and the makespan of two micro-batches
 * of two steps with computation and links of the same speed. */
#define MEMO_TEST_OWN_MAIN
#include "test_swap.c"

int main(int argc, char** argv) {
    const int seed = atoi(argv[1]), count = atoi(argv[2]), mode = atoi(argv[3]);
    for (int round = 0; round < count; round++) {
        memo_test.state = (uint64_t)seed * 1000003 + (uint64_t)round;
        chain c;
        random_chain(&c, mode == 2 ? 2 : mode == 3 ? 0 : 1);
        if (mode == 3) {
            int32_t n_places = 0;
            int32_t n = (int32_t)memo_test_int(1, 4);
            c.desc.n_host_layers = 0;
            c.has_kinds = 0;
            chain_set_kinds(&c);
            for (int t = 0; t < c.desc.n_tensors; t++)
                if (c.tensors[t].scope || c.tensors[t].is)
                    c.tensors[t].scope = c.tensors[t].is = 0, c.tensors[t].away = MEMO_ROWS;
            c.desc.n_order = random_order(c.order, &n_places);
            c.desc.order = c.order;
            c.desc.n_places = n_places;
            c.desc.n_layers = n * n_places;
            if (c.desc.n_layers > CHAIN_LAYERS_MAX) continue;
            c.has_rows = 0;
            if (memo_test_int(0, 1)) random_table(&c);
        }
        c.desc.rows = c.has_rows ? c.rows : NULL;
        if (c.has_kinds) chain_set_kinds(&c);
        memo_profile times = {.n_rows = c.desc.n_rows, .n_tensors = c.desc.n_tensors};
        const memo_swap_plan_desc step = {.swap = &c.desc, .profile = &times, .micro_batches = 2};
        for (int t = 0; t < c.desc.n_tensors; t++)
            snprintf(times.tensors[t].name, sizeof times.tensors[t].name, "%s", c.tensors[t].name);
        for (int k = 0; k < 32; k++) {
            times.forward_s[k] = 1;
            times.backward_s[k] = 2;
            for (int t = 0; t < c.desc.n_tensors; t++)
                times.tensors[t].recompute_s_per_row[k] = 0.01;
        }
        memo_swap_sizes sizes;
        const uint64_t keep = memo_test.state;
        double r1 = memo_test_real();
        (void)keep;
        if (memo_swap_desc_get_sizes(&c.desc, &sizes, &error)) {
            printf("%d refused\n", round);
            continue;
        }
        int64_t rows = 0;
        for (int t = 0; t < c.desc.n_tensors; t++) rows += c.tensors[t].row_bytes;
        const memo_profile_transfer of_all = {rows * c.desc.n_rows + 300, 0.3 + 1.5 * r1,
                                              0.3 + 1.5 * r1};
        times.copies[1] = times.file = of_all;
        memo_schedule* s = NULL;
        memo_check* check = NULL;
        memo_simulation* sim = NULL;
        memo_status status = memo_swap_generate(&step, 2, &s, &error);
        if (!status) status = memo_schedule_check(s, &check, &error);
        if (!status) status = memo_schedule_simulate(s, &sim, &error);
        if (status) {
            printf("%d failed %s\n", round, error.message);
            continue;
        }
        int64_t moved = 0;
        for (int64_t i = 0; i < s->n_ops; i++) moved += s->ops[i].link_bytes;
        printf("%d ok races %lld redundant %lld waits %lld device %lld host %lld file %lld moved "
               "%lld makespan %.9g spilled %d table %d kinds %d slices %d\n",
               round, (long long)check->n_races, (long long)check->n_redundant_waits,
               (long long)check->n_waits, (long long)sizes.device_bytes,
               (long long)sizes.host_bytes, (long long)sizes.spill_bytes, (long long)moved,
               sim->makespan_s, sizes.n_spilled_layers, c.has_rows, c.has_kinds, c.desc.n_slices);
        memo_simulation_destroy(sim);
        memo_check_destroy(check);
        memo_schedule_destroy(s);
    }
    return 0;
}
