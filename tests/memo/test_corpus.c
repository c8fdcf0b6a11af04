/* test_corpus.c - replays tests/corpus/{trace,plan,schedule,solve} and tests/races: seeds of the
 * fuzzers and every input that once broke something.
 *
 * Each file goes through the fuzz target unchanged, cut after each of its bytes, and with each byte
 * altered.  It must be refused with a message or be usable.  Run from the project's root. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define FUZZ_REPLAY
#include "extras/memo_look.h"
#include "memo_test.h"
#include "fuzz_trace.c"
#include "fuzz_plan.c"
#include "../look/fuzz_schedule.c"
#include "../plan/fuzz_solve.c"
#include "../plan/fuzz_profile.c"

#include <dirent.h>

typedef void (*fuzz_target)(const uint8_t* data, size_t size);

static int n_accepted; /* files of a folder */

static void replay_file(const char* path, fuzz_target target) {
    static uint8_t bytes[1 << 16], altered[1 << 16];
    const int64_t n_before = fuzz_n_accepted;
    size_t step;
    FILE* file = fopen(path, "rb");
    CHECK_CASE(file != NULL, "%s", path);
    if (!file) return;
    fuzz_input = path;
    size_t n_bytes = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    target(bytes, n_bytes);
    n_accepted += fuzz_n_accepted > n_before;
    step = 1 + n_bytes / (memo_test_all() ? 300 : 150); /* a large file would take its square */
    for (size_t i = 0; i < n_bytes; i += step) target(bytes, i);
    for (size_t i = 0; i < n_bytes; i += step) {
        memcpy(altered, bytes, n_bytes);
        altered[i] = (uint8_t)memo_test_random();
        target(altered, n_bytes);
    }
}

static void replay_folder(const char* folder, fuzz_target target) {
    char path[512];
    struct dirent* entry;
    int n_files = 0;
    n_accepted = 0;
    DIR* listing = opendir(folder);
    CHECK_CASE(listing != NULL, "%s is not there; run from the project's root", folder);
    if (!listing) return;
    while ((entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        replay_file(path, target);
        n_files++;
    }
    closedir(listing);
    CHECK_CASE(n_files > 0, "%s is empty", folder);
    CHECK_CASE(n_accepted > 0, "%s: all are refused, so a fuzzer finds no way in", folder);
}

TEST(corpus_of_traces) { replay_folder("tests/corpus/trace", fuzz_trace); }
TEST(corpus_of_plans) { replay_folder("tests/corpus/plan", fuzz_plan); }
TEST(corpus_of_schedules) {
    replay_folder("tests/corpus/schedule", fuzz_schedule);
    replay_folder("tests/races", fuzz_schedule);
}
TEST(corpus_of_profiles) { replay_folder("tests/corpus/profile", fuzz_profile); }
TEST(corpus_of_problems) { replay_folder("tests/corpus/solve", fuzz_solve); }
