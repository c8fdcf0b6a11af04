/* test_random_calls.c - random calls of sessions (fuzz_session.c), and tests/corpus/session: inputs that
 * once broke something, and seeds of the fuzzer. */
#include "scarce.h"
#define FUZZ_REPLAY
#include "fuzz_session.c"

#include <dirent.h>

TEST(random_calls_are_refused_or_work) {
    uint8_t bytes[400];
    const int n_rounds = memo_test_cases(100, 20000);
    for (int round = 0; round < n_rounds && !memo_test.failures; round++) {
        const size_t size = (size_t)memo_test_int(20, (int64_t)sizeof bytes);
        IN_CASE("round %d", round);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)memo_test_random();
        fuzz_session(bytes, size);
    }
}

TEST(corpus_of_sessions) {
    char path[512];
    struct dirent* entry;
    int n_files = 0;
    DIR* listing = opendir("tests/corpus/session");
    CHECK(listing != NULL);
    while (listing && (entry = readdir(listing)) != NULL) {
        int64_t n_bytes;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/corpus/session/%s", entry->d_name);
        IN_CASE("%s", path);
        char* bytes = memo_test_file(path, &n_bytes);
        CHECK(bytes != NULL);
        if (bytes) fuzz_session((const uint8_t*)bytes, (size_t)n_bytes);
        free(bytes);
        n_files++;
    }
    if (listing) closedir(listing);
    CHECK(n_files > 0);
}
