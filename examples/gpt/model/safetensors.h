/* safetensors.h - reads and writes tensors in files of the format safetensors
 * (github.com/huggingface/safetensors): 8 bytes with the length of a header in JSON, the header, and
 * the elements.  The header has the type, the shape and the bytes of each tensor.
 *
 * A folder has model.safetensors, or several files and model.safetensors.index.json, which names
 * the file of each tensor.  Files are mapped.  A file must not shrink while it is open.
 *
 * Every byte of a header is checked: types, shapes, and that the tensors cover the file without
 * overlap.  The JSON library is cJSON, with -DGPT_JSON; without it gpt_stored_open returns
 * UNSUPPORTED. */
#ifndef GPT_SAFETENSORS_H
#define GPT_SAFETENSORS_H

#include "gpt/model/gpt.h"
#include "gpt/model/mapped.h"

enum { GPT_STORED_DIMS = 8, GPT_STORED_NAME = 256 };

typedef struct gpt_stored_file {
    char* path;
    gpt_mapped mapped;
} gpt_stored_file;

typedef struct gpt_stored_tensor {
    char* name;
    const char* path; /* of its file */
    char type[12];    /* as in the header: "F32" */
    int32_t n_dims;
    int64_t dims[GPT_STORED_DIMS], n; /* n: elements */
    const unsigned char* bytes;       /* little-endian */
    int64_t n_bytes;
} gpt_stored_tensor;

/* All tensors of a folder, sorted by name. */
typedef struct gpt_stored {
    gpt_stored_file* files;
    int32_t n_files;
    gpt_stored_tensor* tensors;
    int64_t n_tensors;
} gpt_stored;

/* Maps all files of a folder and checks their headers.  On failure nothing is open.  Errors: IO,
 * FORMAT, UNSUPPORTED, OUT_OF_HOST_MEMORY; each names the file, and the tensor if there is one. */
memo_status gpt_stored_open(const char* folder, gpt_stored* stored, memo_error* error);
/* The same of FOLDER/NAME alone. */
memo_status gpt_stored_open_file(const char* folder, const char* name, gpt_stored* stored,
                                 memo_error* error);
void gpt_stored_close(gpt_stored* stored);

/* Returns the tensor with this name; NULL: there is none. */
const gpt_stored_tensor* gpt_stored_find(const gpt_stored* stored, const char* name);

/* Reads elements [begin, begin + n) of a tensor of type F32, BF16 or F16.  Errors: FORMAT for
 * another type, and for an element that is not finite. */
memo_status gpt_stored_read(const gpt_stored_tensor* tensor, int64_t begin, int64_t n, float* to,
                            memo_error* error);
/* The same as numbers of another type, rounded: F32, BF16 or F64. */
memo_status gpt_stored_read_as(const gpt_stored_tensor* tensor, int64_t begin, int64_t n,
                               memo_type type, void* to, memo_error* error);

/* The header of a file to write: 8 bytes and JSON, padded to a multiple of 8.  n_bytes of each
 * tensor follow each other in the order of the table; bytes, path and the file are not used.
 * Returns the text; free it with free.  NULL: no memory. */
char* gpt_stored_header(const gpt_stored_tensor* tensors, int64_t n_tensors, int64_t* n_bytes);

/* A text from a file, for messages: at most 100 bytes, without control characters. */
typedef struct gpt_shown {
    char text[104];
} gpt_shown;
gpt_shown gpt_show(const char* text);

#endif
