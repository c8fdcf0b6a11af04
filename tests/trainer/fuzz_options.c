/* fuzz_options.c - gives any command line to the trainer: it is refused with one line that says why,
 * or accepted, before anything is opened, read or computed.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; tests/trainer/test_train_faults.c gives it random lines. */
#ifndef FUZZ_REPLAY
#define FUZZ_BYTES
#include "gpt/memo.c"
#include "gpt_trainer_unit.h"
#endif
#include "fuzz.h"

/* Values between `|`; most options take the first ten. */
static const char fuzz_values[] =
    "1|2|4|8|16|64|128|256|3|0.5||0|-1|7|4096|65536|1e3|1.5|1e18|1e19|1e-300|1e308|nan|-nan|inf|"
    "-inf|0x10|+1| 1|1 |1,5|1KiB|1kB|3MiB|8EiB|1 "
    "MB|1KiBKiBKiBKiBKiB|-1MiB|1e30GB|1e18MiB|%s%n|a\nb|\x1b[2J|f32|bf16|"
    "memo|keep|swap|alpha|cross|fine|swiglu|h200|/no/such|/dev/null|/|.|--|-|9223372036854775807|"
    "9223372036854775808|4294967296|2147483648|18446744073709551616";

/* Every second value is one of the first ten.  Valid until the next call. */
static const char* fuzz_value(uint8_t byte) {
    static char value[64];
    const char* at = fuzz_values;
    int skipped = byte % 2 ? byte / 2 % 10 : byte / 2;
    for (; skipped > 0; skipped--) {
        at = strchr(at, '|');
        at = at ? at + 1 : fuzz_values;
    }
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "|"), at);
    return value;
}

/* One word of a command line: an option of the table, such an option with a value, a value, or any
 * bytes. */
static size_t fuzz_word(const uint8_t* data, size_t size, char* word, size_t most) {
    const char* name = option_table[size > 1 ? data[1] % N_OPTIONS : 0].name;
    const char* value = fuzz_value(size > 2 ? data[2] : 0);
    size_t n;
    switch (data[0] % 8) {
    case 0: snprintf(word, most, "%s=%s", name, value); return 3;
    case 1: snprintf(word, most, "%s", value); return 3;
    case 2: /* some bytes as they are */
        for (n = 0; n + 1 < most && n + 1 < size && data[n + 1]; n++) word[n] = (char)data[n + 1];
        word[n] = 0;
        return n + 2;
    default: snprintf(word, most, "%s", name); return 3;
    }
}

static void fuzz_options(const uint8_t* data, size_t size) {
    enum { MOST_WORDS = 40, MOST_BYTES = 1100 };
    static char words[MOST_WORDS][MOST_BYTES];
    char* argv[MOST_WORDS + 1] = {(char*)(uintptr_t) "train_gpt"};
    int argc = 1;
    train_options options;

    /* After an option that takes a value comes a value. */
    while (size > 0 && argc < MOST_WORDS - 1) {
        const size_t used = fuzz_word(data, size, words[argc], MOST_BYTES);
        argv[argc] = words[argc];
        const train_option* o = option_find(argv[argc]);
        argc++;
        if (o && o->kind != OPTION_FLAG && size > 2) {
            snprintf(words[argc], MOST_BYTES, "%s", fuzz_value(data[2]));
            argv[argc] = words[argc];
            argc++;
        }
        data += used < size ? used : size;
        size -= used < size ? used : size;
    }
    argv[argc] = NULL;

    memo_error error = {0};
    memo_status status = train_parse(argc, argv, &options, &error);
    if (!status && !options.is_help) status = train_check_ranks(&options, &error);
    if (!status && !options.is_help) status = train_device_check(&options, &error);
    if (!status && !options.is_help) status = train_check_effects(&options, &error);
    memo_degrees_free(options.block_degrees);
    FUZZ_CHECK(argc > 1 || !status); /* all defaults together are a run */
    if (status) {                    /* one line, without what a terminal would obey */
        FUZZ_CHECK(status == error.status && *error.message);
        for (const char* c = error.message; *c; c++)
            FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 127);
    } else if (!options.is_help) {
        FUZZ_CHECK(options.layers >= 1 && options.hidden >= 1 && options.heads >= 1);
        FUZZ_CHECK(options.sequence >= 1 && options.batch >= 1 && options.steps >= 1);
        FUZZ_CHECK(options.kv_heads >= 1 && options.heads % options.kv_heads == 0);
        FUZZ_CHECK(options.data * options.ring * options.ulysses * options.tensor == options.ranks);
        FUZZ_CHECK(options.dropout >= 0 && options.dropout < 1 && options.learning_rate >= 0);
    }
}

FUZZ_TARGET(fuzz_options)
