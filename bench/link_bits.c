/* link_bits.c - how many bits of swapped bf16 rows a lossless code would send over the link.
 *
 *     link_bits [STEPS]        default 400
 *
 * Runs the trainer on the text of `make run` with --policy swap --type bf16.  The device around its
 * host device looks at the rows of a few passes as they arrive in host memory.  A row is coded in
 * groups of 32 elements:
 *
 *     1 byte     the largest exponent of the group
 *     12 bytes   32 codes of 3 bits, bit by bit in three words: by how much an exponent is smaller,
 *                0 to 6; 7 is an escape
 *     32 bytes   sign and mantissa of each element
 *
 * and after all groups a byte for each escape, its exponent.  Every row is decoded and compared.
 * With a place of fixed size for each row, rows with more escapes overflow.  The place of a tensor
 * is what 99.9 % of its rows need in the pass before the last one looked at; rows of the last pass
 * that overflow are counted.  bench/results/link-bits.md has figures and the decision. */
struct memo_device;
static struct memo_device* bits_around(struct memo_device* device);
#define TRAIN_DEVICE_AROUND(device) bits_around(device)
#include "tests/trainer/gpt_trainer_unit.h"

/* ---- the code ---- */

enum { GROUP = 32, GROUP_BYTES = 1 + 12 + GROUP, MOST_COLUMNS = 1024, MOST_BYTES = 2 * 1024 };

/* Returns the bytes of the code of n elements, n a multiple of GROUP. */
static int64_t encode_row(const uint16_t* x, int64_t n, uint8_t* code) {
    uint8_t* escapes = code + n / GROUP * GROUP_BYTES;
    for (int64_t g = 0; g < n; g += GROUP, x += GROUP, code += GROUP_BYTES) {
        uint32_t words[3] = {0, 0, 0};
        int largest = 0;
        for (int i = 0; i < GROUP; i++) {
            const int exponent = x[i] >> 7 & 255;
            largest = exponent > largest ? exponent : largest;
        }

        for (int i = 0; i < GROUP; i++) {
            const int exponent = x[i] >> 7 & 255, less = largest - exponent;
            const uint32_t symbol = (uint32_t)(less < 7 ? less : 7);
            for (int bit = 0; bit < 3; bit++) words[bit] |= (symbol >> bit & 1) << i;
            code[13 + i] = (uint8_t)((x[i] >> 8 & 128) | (x[i] & 127));
            *escapes = (uint8_t)exponent; /* stays if it is an escape */
            escapes += less >= 7;
        }
        code[0] = (uint8_t)largest;
        memcpy(code + 1, words, sizeof words);
    }
    return escapes - (code - n / GROUP * GROUP_BYTES);
}

static void decode_row(const uint8_t* code, int64_t n, uint16_t* x) {
    const uint8_t* escapes = code + n / GROUP * GROUP_BYTES;
    for (int64_t g = 0; g < n; g += GROUP, x += GROUP, code += GROUP_BYTES) {
        uint32_t words[3];
        memcpy(words, code + 1, sizeof words);
        for (int i = 0; i < GROUP; i++) {
            const uint32_t symbol =
                (words[0] >> i & 1) | (words[1] >> i & 1) << 1 | (words[2] >> i & 1) << 2;
            const int exponent = symbol < 7 ? code[0] - (int)symbol : *escapes++;
            x[i] = (uint16_t)((code[13 + i] & 128) << 8 | exponent << 7 | (code[13 + i] & 127));
        }
    }
}

/* ---- rows of a pass ---- */

static const char* const names[] = {"input", "norm1",  "rstd1", "q",     "k",  "v",   "attention",
                                    "lse",   "middle", "norm2", "rstd2", "up", "gelu"};
enum { N_NAMES = 13, N_LOOKED = 4 };
static const int64_t columns[N_NAMES] = {96, 96, 0, 96, 96, 96, 96, 0, 96, 96, 0, 384, 384};

typedef struct tensor_bits {
    int64_t symbols[65536], sizes[MOST_BYTES + 1]; /* how often; of the last pass looked at */
    int64_t n_rows, n_bytes, coded_bytes, n_escapes, place_bytes, n_overflown, n_wrong;
} tensor_bits;
static tensor_bits tensors[N_NAMES];
static int64_t looked[N_LOOKED], n_passes, n_copies, raw_bytes;
static double encode_s, decode_s;
static int was_to_device = 1;

static double entropy_bits(const int64_t* counts, int64_t total) {
    double bits = 0;
    for (int s = 0; s < 65536; s++)
        if (counts[s]) bits -= (double)counts[s] * log2((double)counts[s] / (double)total);
    return bits / (double)total;
}

static int pass_looked(void) {
    for (int i = 0; i < N_LOOKED; i++)
        if (n_passes == looked[i]) return i + 1;
    return 0;
}

static void look_at_rows(const uint16_t* x, int64_t n_bytes, tensor_bits* t, int64_t n) {
    static uint8_t code[MOST_BYTES];
    static uint16_t back[MOST_COLUMNS];
    enum { REPEATS = 8 }; /* so that the clock's reading does not count */
    for (int64_t row = 0; row < n_bytes / (2 * n); row++, x += n) {
        int64_t size = 0;
        const double begin_s = clock_s();
        for (int64_t i = 0; i < REPEATS; i++) size = encode_row(x, n, code);
        const double middle_s = clock_s();
        for (int64_t i = 0; i < REPEATS; i++) decode_row(code, n, back);
        decode_s += (clock_s() - middle_s) / REPEATS;
        encode_s += (middle_s - begin_s) / REPEATS;
        t->n_wrong += memcmp(back, x, (size_t)(2 * n)) != 0;
        for (int64_t i = 0; i < n; i++) t->symbols[x[i]]++;
        t->sizes[size]++;
        t->n_rows++;
        t->coded_bytes += size;
        t->n_escapes += size - n / GROUP * GROUP_BYTES;
        t->n_overflown += t->place_bytes > 0 && size > t->place_bytes;
    }
    t->n_bytes += n_bytes;
}

/* ---- a device that looks ---- */

static memo_device inner, around;

/* A table of all tensors, and their places for the next pass. */
static void print_pass(int is_last) {
    double entropy = 0, bytes = 0, coded = 0, places = 0, rows = 0, overflown = 0, wrong = 0;
    if (is_last)
        printf("| tensor | order-0 entropy | code | escapes | place | rows that overflow "
               "|\n|---|---|---|---|---|---|\n");
    for (int k = 0; k < N_NAMES; k++) {
        tensor_bits* t = &tensors[k];
        const double n = (double)t->n_bytes;
        if (!t->n_rows) continue;
        const double bits = entropy_bits(t->symbols, t->n_bytes / 2);
        const double place = (double)(t->place_bytes * t->n_rows);
        if (is_last)
            printf("| %s | %.3f | %.3f | %.2f %% | %.3f | %.3f %% |\n", names[k], bits / 16,
                   (double)t->coded_bytes / n, 200 * (double)t->n_escapes / n, place / n,
                   100 * (double)t->n_overflown / (double)t->n_rows);
        entropy += bits / 16 * n, bytes += n, coded += (double)t->coded_bytes, places += place;
        rows += (double)t->n_rows, overflown += (double)t->n_overflown;
        wrong += (double)t->n_wrong;

        /* What 99.9 % of the rows need. */
        int64_t size = MOST_BYTES, above = 0;
        while (size > 0 && (above += t->sizes[size]) * 1000 <= t->n_rows) size--;
        memset(t, 0, sizeof *t);
        t->place_bytes = size;
    }
    printf("pass %lld: %.1f MB of bf16 and %.2f MB of fp32, entropy %.3f, code %.3f, ",
           (long long)n_passes, bytes / 1e6, (double)raw_bytes / 1e6, entropy / bytes,
           coded / bytes);
    if (places > 0)
        printf("places %.3f, rows that overflow %.3f %%, ", places / bytes, 100 * overflown / rows);
    printf("%.0f of %.0f rows decoded to other bits; coding %.2f GB/s, decoding %.2f GB/s\n", wrong,
           rows, bytes / encode_s * 1e-9, bytes / decode_s * 1e-9);
    encode_s = decode_s = 0;
    raw_bytes = 0;
}

/* Copies of a pass to the host are tensors of layers, in the order of `names`.  A pass ends with its
 * first copy to the device. */
static memo_status look_at_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                const void* from, int64_t n_bytes, memo_error* error) {
    memo_status status = inner.copy(context, stream, kind, to, from, n_bytes, error);
    if (status || kind == MEMO_COPY_ON_DEVICE || n_bytes < 4096) return status; /* not of rows */
    if (kind == MEMO_COPY_TO_HOST && was_to_device) n_passes++, n_copies = 0;
    if (kind == MEMO_COPY_TO_DEVICE && !was_to_device && pass_looked())
        print_pass(pass_looked() == N_LOOKED);
    was_to_device = kind == MEMO_COPY_TO_DEVICE;
    if (was_to_device || !pass_looked()) return status;
    const int k = (int)(n_copies++ % N_NAMES);
    status = inner.stream_synchronize(context, stream, error);
    if (!status && columns[k]) look_at_rows((const uint16_t*)to, n_bytes, &tensors[k], columns[k]);
    raw_bytes += columns[k] ? 0 : n_bytes;
    return status;
}

static memo_device* bits_around(memo_device* device) {
    inner = around = *device;
    around.copy = look_at_copy;
    return &around;
}

int main(int argc, char** argv) {
    char steps[24];
    char* arguments[] = {argv[0],   "--policy", "swap",      "--type", "bf16",
                         "--steps", steps,      "--dropout", "0.02",   NULL};
    const long long n_steps = argc > 1 ? atoll(argv[1]) : 400;
    if (n_steps < 8) {
        fprintf(stderr, "usage: %s [STEPS]; at least 8\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < N_LOOKED; i++) looked[i] = n_steps * (1 << i) / 8;
    snprintf(steps, sizeof steps, "%lld", n_steps);
    return train_gpt_main(9, arguments);
}
