/* paper_tables - computes the tables of three papers from constants and prints them beside the
 * published figures: MEMO (swapping), unified sequence parallelism, Oases (overlapped tensor
 * parallelism).
 *
 *   paper_tables          prints all tables
 *
 * The first table lists all constants.  Each is stated by the paper, fitted (with its data) or
 * assumed (with its reason).  The tables with residuals follow.  The last table lists the targets
 * and the missed targets. */
#include "paper_common.h"
#include "paper_memo.h"
#include "paper_sp.h"
#include "paper_oases.h"
#include "../median.h"

int main(int argc, char** argv) {
    bench_help(argc, argv, "");
    if (argc > 1) {
        fprintf(stderr, "paper_tables: %s: unknown argument; --help shows the usage\n", argv[1]);
        return 2;
    }
    swap_hardware a800 = swap_a800(), h200 = swap_h200();
    swap_fit(&a800);

    printf("Constants\n");
    swap_print_constants(&a800, &h200);
    sp_print_constants();
    oases_print_constants();

    printf("\n==== MEMO ====\n");
    swap_report(&a800, &h200);

    printf("\n==== Unified sequence parallelism ====\n");
    sp_report();

    printf("\n==== Oases ====\n");
    oases_report();

    printf("\n%d criteria met, %d missed\n", paper_all.n - paper_all.n_missed, paper_all.n_missed);
    return 0;
}
