/* test_descs.c - public structs with extreme numbers (fuzz_descs.c): random ones, and
 * tests/corpus/descs, the inputs that once broke something.  Each is refused with a message or
 * works; make asan-ubsan also shows overflows and overruns. */
#define FUZZ_REPLAY
#include "fuzz_descs.c"
#include "memo_test.h"

#include <dirent.h>

/* One of three words is not the default, so that most checks before it pass. */
TEST(random_descs_are_refused_or_work) {
    uint8_t bytes[400];
    int round, n_rounds = memo_test_cases(30000, 3000000);
    for (round = 0; round < n_rounds; round++) {
        size_t size = (size_t)memo_test_int(20, (int64_t)sizeof bytes), i;
        int some = (int)memo_test_int(1, 12);
        for (i = 0; i < size; i++)
            bytes[i] = memo_test_int(0, some) ? 63 : (uint8_t)memo_test_random();
        bytes[0] = (uint8_t)memo_test_random();
        fuzz_descs(bytes, size);
    }
}

TEST(corpus_of_descs) {
    char path[512];
    struct dirent* entry;
    int n_files = 0;
    DIR* listing = opendir("tests/corpus/descs");
    CHECK(listing != NULL);
    while (listing && (entry = readdir(listing)) != NULL) {
        int64_t n_bytes;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/corpus/descs/%s", entry->d_name);
        fuzz_input = path;
        char* bytes = memo_test_file(path, &n_bytes);
        CHECK(bytes != NULL);
        if (bytes) fuzz_near_descs((const uint8_t*)bytes, (size_t)n_bytes);
        free(bytes);
        n_files++;
    }
    if (listing) closedir(listing);
    CHECK(n_files > 0);
}
