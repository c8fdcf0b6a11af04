/* checkpoint.h - saves a model to a file, and resumes from it on any number of ranks.
 *
 * The file has the elements of the unsplit model in their order: of each tensor the weights in full
 * precision, then Adam's two moments, and scales if these have 8 bits.  Each rank writes the elements that it updates, and reads
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
    int64_t slice_rows;              /* 0: all rows at once */
    double squares;                  /* of the last step's gradient, for GPT_CLIP_BEFORE */
    uint64_t digest;                 /* of all bytes, with 0 here */
} gpt_file_head;

int64_t gpt_checkpoint_bytes(const gpt_config* config);

/* ---- a file that all ranks write together, or read -------------------------------------------- */

enum { GPT_FILE_PIECE = 1 << 20 }; /* bytes */
typedef struct gpt_file {
    gpt_model* model; /* NULL: the file is only checked */
    const char* path;
    int fd;
    char *host, *cast; /* pieces */
    memo_status status;
    memo_error* error;
} gpt_file;

/* Opens nothing yet.  gpt_file_close returns the first fault of the file. */
void gpt_file_open(gpt_file* f, gpt_model* model, const char* path, memo_error* error);
memo_status gpt_file_close(gpt_file* f);
/* The first fault of a file stays. */
MEMO_PRINTF(3, 4)
void gpt_file_refuse(gpt_file* f, memo_status status, const char* format, ...);
/* All bytes, however many calls that takes. */
void gpt_file_transfer(gpt_file* f, int is_write, char* host, int64_t at, int64_t n_bytes);

/* The first rank begins a file aside of file_bytes bytes with a head; then all ranks write. */
memo_status gpt_file_begin_aside(gpt_file* f, int64_t name, const char* head, int64_t n_head,
                                 int64_t file_bytes, char aside[GPT_PATH_BYTES]);
/* All bytes are written: the file is on disk, and the first rank may rename it.  Waits for all
 * ranks. */
void gpt_file_end_aside(gpt_file* f);
/* In the first rank: gives the file its name, or removes it after a fault. */
void gpt_file_rename(gpt_file* f, const char* aside);
/* Waits for all ranks. */
void gpt_file_meet(gpt_file* f);
int gpt_file_is_first(const gpt_file* f);

/* Writes the folder of a path. */
void gpt_file_folder(const char* path, char* folder, size_t n_folder);
memo_status gpt_check_checkpoint(const gpt_config* config, const char* path, int is_whole,
                                 gpt_file_head* head, memo_error* error);

#endif
