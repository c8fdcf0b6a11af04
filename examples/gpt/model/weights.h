/* weights.h - the weights of a model in a folder: model.safetensors with the names of the library
 * transformers, and config.json; adapters in a folder: adapter_model.safetensors with the names of
 * the library peft, and adapter_config.json.
 *
 * Of a config with adapters, the parameters are these: each function is about them then, but for
 * those that read frozen weights.
 *
 * The trainer's tensors are those of the files, but for the product up: its rows are up_proj and
 * gate_proj in turn.  Ranks read the elements that they have.  An optimizer's state is not in these
 * files: checkpoint.h has it. */
#ifndef GPT_WEIGHTS_H
#define GPT_WEIGHTS_H

#include "gpt/model/config.h"
#include "gpt/model/safetensors.h"

/* Returns whether the files have the tensors of a model, in their shapes, and no others but copies
 * of RoPE's frequencies and of a tied table.  Errors: FORMAT, with file and tensor. */
memo_status gpt_check_weights(const gpt_config* config, const gpt_stored* stored,
                              memo_error* error);

/* Sets the parameters, rounded to config.type, and master weights, between two steps.  Waits.
 * Errors: as gpt_stored_read; the device's.  After an error some are set. */
memo_status gpt_load_weights(gpt_model* model, const gpt_stored* stored, memo_error* error);

/* Callback of the session, from any thread: bytes of frozen weights of a layer, of config.type. */
memo_status gpt_fetch_weights(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                              int64_t n_bytes, memo_error* error);
/* Copies a frozen tied table to the device. */
memo_status gpt_load_table(gpt_model* model, memo_error* error);

/* The names of the two files of a model, or of adapters. */
typedef struct gpt_weight_files {
    const char *weights, *config;
} gpt_weight_files;
gpt_weight_files gpt_weight_files_of(const gpt_config* config);

/* Returns the bytes of the file of weights. */
int64_t gpt_weights_bytes(const gpt_config* config);

/* Writes both files to a folder: weights, of config.type, or adapters, in F32; and this text.  Both
 * are written aside, and renamed when both are complete.  All ranks call it.  aside: as
 * gpt_save.aside, of the file of weights.  Errors: IO, OUT_OF_HOST_MEMORY; as
 * gpt_write_checkpoint. */
memo_status gpt_save_weights(gpt_model* model, const char* folder, const char* config_text,
                             int64_t aside, memo_error* error);

#endif
