/* test_safetensors.c - files of models: read as an independent writer has written them; bad files are
 * refused by the name of the file and the field. */
#include "memo.h"

#include "gpt/model/mapped.c"
#include "gpt/model/safetensors.c"
#include "gpt/model/json.c"

#include <math.h>
#include <stdarg.h>

#include "owned.h"

static MEMO_UNUSED char folder[200];

#ifndef GPT_JSON
TEST(files_are_read) {
    SKIP("built without cJSON (apt-get install libcjson-dev, then make setup)");
}
#else

static const char* path_of(const char* name) {
    static char path[GPT_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}
static void write_bytes(const char* name, const void* bytes, size_t n_bytes) {
    FILE* file = fopen(path_of(name), "wb");
    if (!file || (n_bytes && fwrite(bytes, n_bytes, 1, file) != 1)) abort();
    fclose(file);
}
static void write_text(const char* name, const char* text) {
    write_bytes(name, text, strlen(text));
}

/* A file with this header and n_data bytes 0, 1, 2, ... */
static void write_model(const char* name, const char* header, int64_t n_data) {
    static unsigned char bytes[8192];
    const size_t n = strlen(header);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (int64_t i = 0; i < n_data; i++) bytes[8 + n + (size_t)i] = (unsigned char)i;
    write_bytes(name, bytes, 8 + n + (size_t)n_data);
}
static void remove_files(void) {
    static const char* const names[] = {"model.safetensors", "model.safetensors.index.json", "a",
                                        "b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(path_of(names[i]));
}
__attribute__((constructor)) static void make_folder(void) {
    snprintf(folder, sizeof folder, "%s/memo-safetensors-XXXXXX", memo_test_folder());
    if (!mkdtemp(folder)) abort();
}
__attribute__((destructor)) static void remove_folder(void) {
    remove_files();
    rmdir(folder);
}

/* A refusal is one line that names the file. */
static void check_refused(const char* part) {
    gpt_stored stored;
    memset(&error, 0, sizeof error);
    const memo_status status = gpt_stored_open(folder, &stored, &error);
    CHECK_CASE(status && status == error.status, "no error instead of `%s`", part);
    if (!status) {
        gpt_stored_close(&stored);
        return;
    }
    CHECK_TEXT(error.message, part);
    CHECK_TEXT(error.message, folder);
    CHECK(!strchr(error.message, '\n') && !stored.tensors && !stored.files);
}

TEST(bad_headers_are_refused) {
    static const struct {
        const char* header;
        int64_t n_data;
        const char* part;
    } cases[] = {
        {"", 0, "not JSON"},
        {"{", 0, "not JSON"},
        {"[]", 0, "its JSON is no object"},
        {"{} x", 0, "text follows its JSON"},
        {"{\"a\":1}", 0, "tensor `a`: not an object"},
        {"{\"a\":{}}", 0, "tensor `a`: dtype: not the name"},
        {"{\"a\":{\"dtype\":\"F33\"}}", 0, "tensor `a`: dtype: an unknown type"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor `a`: shape: not up to 8 numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}}", 0, "not up to 8 numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1]}}", 0, "shape: not whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5]}}", 0, "shape: not whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e300]}}", 0, "shape: not whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296]}}", 0,
         "shape: more elements"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets: not two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
         "not two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
         "data_offsets: outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
         "data_offsets: outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "not the bytes of its"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "leave a gap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9,
         "bytes behind its last"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[6,10]}}",
         10, "tensor `b`: data_offsets: overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "its JSON has a name twice"},
        {"{\"\\u001b[2J\":1}", 0, "tensor `?[2J`: not an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        IN_CASE("%s", cases[i].header);
        write_model("model.safetensors", cases[i].header, cases[i].n_data);
        check_refused(cases[i].part);
    }
    write_bytes("model.safetensors", "1234567", 7);
    check_refused("no safetensors");
    write_bytes("model.safetensors", "\377\377\377\377\377\377\377\377{}", 10);
    check_refused("no safetensors");
    write_bytes("model.safetensors", "", 0);
    check_refused("no safetensors");
    remove_files();
    check_refused("model.safetensors: cannot be read: No such file");
}

static const char two_tensors[] =
    " {\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[4,12]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  ";

TEST(indexes_are_checked) {
    static const struct {
        const char *index, *part;
    } cases[] = {
        {"{}", "weight_map: not an object"},
        {"{\"weight_map\":{\"a\":1}}", "tensor `a`: weight_map: not the name of a file"},
        {"{\"weight_map\":{\"a\":\"../a\"}}", "tensor `a`: weight_map: not the name of a file"},
        {"{\"weight_map\":{\"a\":\"c\"}}", "/c: cannot be read"},
        {"{\"weight_map\":{\"x\":\"a\"}}", "tensor `x`: weight_map: not in the file"},
        {"{\"weight_map\":{\"c\":\"a\",\"a\":\"b\"}}", "weight_map: not in the file"},
        {"{\"weight_map\":{\"a\":\"a\",\"a\":\"b\"}}", "weight_map: not in the file"},
        {"x", "index.json: not JSON"},
    };
    write_model("a", two_tensors, 12);
    write_model("b", "{\"c\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        IN_CASE("%s", cases[i].index);
        write_text("model.safetensors.index.json", cases[i].index);
        check_refused(cases[i].part);
    }
    write_text("model.safetensors.index.json",
               "{\"metadata\":{},\"weight_map\":{\"a\":\"a\",\"b\":\"a\",\"c\":\"b\"}}");
    gpt_stored stored;
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    CHECK_IS(stored.n_files, ==, 2);
    CHECK_IS(stored.n_tensors, ==, 3);
    const gpt_stored_tensor *b = gpt_stored_find(&stored, "b"), *c = gpt_stored_find(&stored, "c");
    CHECK(b && b->n == 4 && b->n_dims == 2 && b->dims[1] == 2 && b->bytes[0] == 4);
    CHECK(c && c->n == 0 && !gpt_stored_find(&stored, "d"));
    gpt_stored_close(&stored);
    write_model("b", two_tensors, 12);
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"a\",\"b\":\"b\"}}");
    check_refused("another tensor has this name");
    remove_files();
}

/* Any file that is cut short, and any byte that is altered: refused or read, never more. */
TEST(damaged_files_do_no_harm) {
    unsigned char bytes[512], altered[512];
    int n_read = 0, n_refused = 0;
    write_model("model.safetensors", two_tensors, 12);
    FILE* file = fopen(path_of("model.safetensors"), "rb");
    const size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file) fclose(file);
    CHECK_IS(n, ==, 8 + strlen(two_tensors) + 12);
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes("model.safetensors", bytes, cut);
        check_refused("");
    }
    for (int trial = 0; trial < 2000; trial++) {
        gpt_stored stored;
        memcpy(altered, bytes, n);
        for (int64_t k = memo_test_int(1, 3); k > 0; k--)
            altered[memo_test_int(0, (int64_t)n - 13)] =
                (unsigned char)(memo_test_int(0, 1) ? memo_test_int(0, 255)
                                                    : "0123456789{}[],:\"ab"[memo_test_int(0, 18)]);
        write_bytes("model.safetensors", altered, n);
        if (gpt_stored_open(folder, &stored, &error)) {
            n_refused++;
            continue;
        }
        for (int64_t i = 0; i < stored.n_tensors; i++) { /* all its elements are in the file */
            own_memory float* to = (float*)malloc((size_t)(stored.tensors[i].n + 1) * sizeof *to);
            IGNORE(gpt_stored_read(&stored.tensors[i], 0, stored.tensors[i].n, to, &error));
        }
        gpt_stored_close(&stored);
        n_read++;
    }
    CHECK(n_read > 10 && n_refused > 100);
    remove_files();
}

/* What the bits of a number mean, by its definition. */
static double plain_value(uint32_t bits, int n_exponent, int n_fraction) {
    const int exponent = (int)(bits >> n_fraction) & ((1 << n_exponent) - 1);
    const int bias = (1 << (n_exponent - 1)) - 1;
    const double fraction = ldexp((double)(bits & ((1u << n_fraction) - 1)), -n_fraction);
    const double sign = bits >> (n_exponent + n_fraction) & 1 ? -1 : 1;
    return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

TEST(every_16_bit_number_is_read) {
    static unsigned char bytes[2 * 65536];
    static float values[65536];
    for (int i = 0; i < 65536; i++)
        bytes[2 * i] = (unsigned char)i, bytes[2 * i + 1] = (unsigned char)(i >> 8);
    for (int is_f16 = 0; is_f16 < 2; is_f16++) {
        const int n_exponent = is_f16 ? 5 : 8, n_fraction = is_f16 ? 10 : 7;
        gpt_stored_tensor tensor = {0};
        char name[] = "x";
        tensor.name = name;
        tensor.path = "file";
        tensor.bytes = bytes;
        snprintf(tensor.type, sizeof tensor.type, is_f16 ? "F16" : "BF16");
        for (int i = 0; i < 65536; i++) {
            const int is_finite =
                (i >> n_fraction & ((1 << n_exponent) - 1)) != (1 << n_exponent) - 1;
            const memo_status status = gpt_stored_read(&tensor, i, 1, &values[i], &error);
            CHECK(is_finite == !status);
            if (is_finite)
                CHECK_IS((double)values[i], ==, plain_value((uint32_t)i, n_exponent, n_fraction));
            else
                CHECK_TEXT(error.message, "file: tensor `x`: element");
        }
        CHECK_IS(signbit(values[0x8000]), !=, 0);
    }
}

TEST(other_types_are_refused_when_they_are_read) {
    gpt_stored stored;
    float value[3];
    write_model("model.safetensors",
                "{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8);
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    CHECK_IS(gpt_stored_read(&stored.tensors[0], 0, 1, value, &error), ==, MEMO_STATUS_FORMAT);
    CHECK_TEXT(error.message, "tensor `a`: type I64; F32, BF16 or F16 would work");
    gpt_stored_close(&stored);
    remove_files();
}

/* Through a header of our own writing, with shapes and bytes in between. */
TEST(what_is_written_is_read) {
    char names[5][16];
    gpt_stored_tensor tensors[5], *read;
    gpt_stored stored;
    int64_t n_header = 0, n_data = 0;
    memset(tensors, 0, sizeof tensors);
    for (int i = 0; i < 5; i++) {
        snprintf(names[i], sizeof names[i], "t%d.weight", 4 - i);
        tensors[i].name = names[i];
        snprintf(tensors[i].type, sizeof tensors[i].type, i % 2 ? "BF16" : "F32");
        tensors[i].n_dims = i % 3;
        tensors[i].n = 1;
        for (int d = 0; d < tensors[i].n_dims; d++)
            tensors[i].n *= tensors[i].dims[d] = memo_test_int(1, 5);
        tensors[i].n_bytes = tensors[i].n * (i % 2 ? 2 : 4);
        n_data += tensors[i].n_bytes;
    }
    own_memory char* header = gpt_stored_header(tensors, 5, &n_header);
    CHECK(header && n_header % 8 == 0);
    if (!header) return; /* there was no memory */
    own_memory char* bytes = (char*)calloc((size_t)(n_header + n_data), 1);
    memcpy(bytes, header, (size_t)n_header);
    for (int64_t i = 0; i < n_data; i++) bytes[n_header + i] = (char)(i % 50);
    write_bytes("model.safetensors", bytes, (size_t)(n_header + n_data));
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    CHECK_IS(stored.n_tensors, ==, 5);
    n_data = 0;
    for (int i = 0; i < 5; i++) {
        read = &stored.tensors[4 - i]; /* sorted by name */
        CHECK(!strcmp(read->name, names[i]) && !strcmp(read->type, tensors[i].type));
        CHECK_IS(read->n, ==, tensors[i].n);
        CHECK(!memcmp(read->dims, tensors[i].dims, sizeof read->dims));
        CHECK_IS((int64_t)read->bytes[0], ==, n_data % 50);
        n_data += read->n_bytes;
    }
    gpt_stored_close(&stored);
    remove_files();
}
#endif
