/* checkpoint.h - saves a model to a file, and resumes from it on any number of ranks.
 *
 * The file has the elements of the unsplit model in their order: of each tensor the weights in full
 * precision, then Adam's two moments.  Each rank writes the elements that it updates, and reads
 * those that it needs.  So ranks may split the model otherwise when it is resumed.  All ranks open
 * the same path.
 *
 * A file is written aside and renamed when it is complete: an earlier file is kept until then.  The
 * digest of a file covers all bytes.  PATH.lock is locked while a run saves to PATH. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H

#include "gpt/model/gpt.h"

enum { GPT_FILE_NUMBERS = 11 }; /* that state a model */

/* The first bytes of the file.  Numbers have this machine's byte order; `order` shows it. */
typedef struct gpt_file_head {
    char magic[32];
    int64_t order, file_bytes, step, n_updates;
    int64_t model[GPT_FILE_NUMBERS]; /* names below */
    int64_t run[GPT_RUN_NUMBERS];    /* gpt_save.run */
    uint64_t digest;                 /* of all bytes, with 0 here */
} gpt_file_head;

int64_t gpt_checkpoint_bytes(const gpt_config* config);

/* Writes the folder of a path. */
void gpt_file_folder(const char* path, char* folder, size_t n_folder);
memo_status gpt_check_checkpoint(const gpt_config* config, const char* path, int is_whole,
                                 gpt_file_head* head, memo_error* error);

#endif
