#include "gpt/model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpt/model/enqueue.h"
#include "gpt/model/lora.h"
#include "gpt/model/parallel.h"

enum { GPT_FILE_HEAD = 512 }; /* bytes */
enum { GPT_FILE_MAGIC = 20 }; /* bytes before the version */

static const char gpt_file_magic[32] = "memo gpt checkpoint 6\n";
static const char* const gpt_file_names[] = {
    "--seed", "--layers",      "--hidden", "--heads", "--kv-heads", "--vocabulary",
    "--mlp",  "--mlp-columns", "--model",  "--type",  "--states"};
MEMOB_TABLE_OF(GPT_FILE_NUMBERS, gpt_file_names);

/* ---- layout of the file --------------------------------------------------------------------- */

/* Arrays of a tensor: weights, two moments, scales. */
enum { GPT_FILE_ARRAYS = 4 };
static int64_t gpt_file_array_bytes(const gpt_config* config, int array, int64_t n) {
    const int64_t n_blocks = (n + GPT_BLOCK - 1) / GPT_BLOCK;
    if (array == 0) return n * memo_type_bytes(gpt_full_type(config));
    if (array < 3) return n * memo_type_bytes(gpt_state_type(config));
    return config->states == MEMO_TYPE_U8 ? 2 * n_blocks * (int64_t)sizeof(float) : 0;
}

/* Where an array of a tensor begins.  array 0 of the tensor after the last one is the end of the
 * file. */
static int64_t gpt_file_at(const gpt_config* config, int64_t tensor, int array) {
    const gpt_config whole = gpt_whole_config(config);
    int64_t at = GPT_FILE_HEAD;
    for (int64_t t = 0; t <= tensor; t++)
        for (int a = 0; a < GPT_FILE_ARRAYS && (t < tensor || a < array); a++)
            at += gpt_round_up(gpt_file_array_bytes(config, a, gpt_parameter_at(&whole, t).n), 64);
    return at;
}

int64_t gpt_checkpoint_bytes(const gpt_config* config) {
    return gpt_file_at(config, gpt_n_parameter_tensors(config), 0);
}

/* A digest of what no option states: 0 without --model, or of a model that needs no more. */
static int64_t gpt_file_architecture(const gpt_config* c) {
    const double numbers[] = {(double)gpt_head_size(c),
                              (double)c->has_biases,
                              (double)c->has_head_norms,
                              (double)c->is_tied,
                              gpt_norm_epsilon(c),
                              c->rope.theta > 0 ? c->rope.theta : 1e4,
                              (double)c->rope.kind,
                              c->rope.factor,
                              c->rope.low_factor,
                              c->rope.high_factor,
                              c->rope.original,
                              (double)c->lora.rank,
                              c->lora.alpha,
                              (double)gpt_lora_targets(&c->lora)};
    const double of_experts[] = {(double)c->experts.n, (double)c->experts.n_chosen,
                                 (double)c->experts.is_normed};
    uint64_t digest = 0, bits;
    const size_t n = sizeof numbers / sizeof *numbers - (c->lora.rank ? 0 : 3);
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &numbers[i], sizeof bits);
        digest = gpt_mix(digest ^ bits);
    }
    for (int i = 0; i < 3 && c->experts.n; i++) {
        memcpy(&bits, &of_experts[i], sizeof bits);
        digest = gpt_mix(digest ^ bits);
    }

    const int is_plain = c->hidden == c->n_heads * gpt_head_size(c) && !c->has_biases &&
                         !c->has_head_norms && !c->is_tied && !(c->norm_epsilon > 0) &&
                         !(c->rope.theta > 0) && !c->rope.kind && !c->lora.rank && !c->experts.n;
    return is_plain ? 0 : (int64_t)(digest >> 1);
}

/* --states as a number. */
enum { GPT_FILE_PURE = 256 };
static int64_t gpt_file_states(const gpt_config* c) {
    return (int64_t)c->states + (c->is_pure ? GPT_FILE_PURE : 0);
}

static gpt_file_head gpt_file_head_make(const gpt_config* c, int64_t step, int64_t n_updates) {
    const int64_t model_numbers[] = {(int64_t)c->seed, c->n_layers,       c->hidden,
                                     c->n_heads,       c->n_kv_heads,     c->vocabulary,
                                     (int64_t)c->mlp,  gpt_wide(c),       gpt_file_architecture(c),
                                     (int64_t)c->type, gpt_file_states(c)};
    MEMOB_TABLE_OF(GPT_FILE_NUMBERS, model_numbers);
    gpt_file_head head = MEMO_ZERO(gpt_file_head);
    memcpy(head.magic, gpt_file_magic, sizeof head.magic);
    head.order = 1;
    head.file_bytes = gpt_checkpoint_bytes(c);
    head.step = step;
    head.n_updates = n_updates;
    head.slice_rows = c->slice_rows;
    memcpy(head.model, model_numbers, sizeof head.model);
    return head;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

void gpt_file_refuse(gpt_file* f, memo_status status, const char* format, ...) {
    char text[256];
    va_list values;
    if (f->status) return;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    f->status = memo_error_set(f->error, status, "%.300s: %s", f->path, text);
}
static void gpt_file_fail(gpt_file* f, const char* what) {
    gpt_file_refuse(f, MEMO_STATUS_IO, "cannot be %s: %s", what, strerror(errno));
}

void gpt_file_transfer(gpt_file* f, int is_write, char* host, int64_t at, int64_t n_bytes) {
    while (n_bytes > 0 && !f->status) {
        const ssize_t n = is_write ? pwrite(f->fd, host, (size_t)n_bytes, (off_t)at)
                                   : pread(f->fd, host, (size_t)n_bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* somebody cuts it short */
        if (n <= 0) {
            gpt_file_fail(f, is_write ? "written" : "read");
            return;
        }
        host += n;
        at += n;
        n_bytes -= n;
    }
}

/* The digest of the file, read from its begin to its end. */
static uint64_t gpt_file_digest(gpt_file* f, int64_t file_bytes) {
    uint64_t digest = 14695981039346656037u, word;
    int64_t n;
    for (int64_t at = 0; at < file_bytes && !f->status; at += n) {
        n = gpt_min(GPT_FILE_PIECE, file_bytes - at);
        gpt_file_transfer(f, 0, f->host, at, n);
        if (at == 0) memset(f->host + offsetof(gpt_file_head, digest), 0, sizeof word);
        for (int64_t i = 0; i < n;
             i += (int64_t)sizeof word) { /* arrays begin at multiples of 64 */
            memcpy(&word, f->host + i, sizeof word);
            digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
            digest ^= digest >> 32;
        }
    }
    return digest;
}

/* Elements [begin, end) of a tensor, of this rank's numbers, between f->host and the array that
 * begins at `array` in the file. */
static void gpt_file_elements(gpt_file* f, int is_write, const gpt_parameter* p, int64_t array,
                              int64_t element_bytes, int64_t begin, int64_t end) {
    char* host = f->host;
    int64_t n;
    for (int64_t i = begin; i < end; i += n, host += n * element_bytes) {
        const int64_t whole = gpt_element_of_whole(p, f->model->share.tensor_rank, i);
        n = end - i;
        if (p->n_columns != p->stride) n = gpt_min(n, p->n_columns - i % p->n_columns);
        gpt_file_transfer(f, is_write, host, array + whole * element_bytes, n * element_bytes);
    }
}

/* Parameters `rows` of a tensor between an array of this rank and the file, where the tensor's
 * begins at `at`.  Weights are rounded if the file has master weights. */
static void gpt_file_array(gpt_file* f, int is_write, const gpt_parameter* p, int64_t at, int array,
                           gpt_rows rows) {
    gpt_model* model = f->model;
    const int full = array == GPT_WEIGHTS ? gpt_full_weights(model) : array, casts = full != array;
    const int64_t element_bytes = gpt_array_bytes(model, full, 1);
    GPT_EACH_PIECE(piece, rows, GPT_FILE_PIECE / element_bytes) {
        if (f->status) return;
        if (is_write) gpt_copy_array(model, 0, array, piece, f->host);
        if (!model->status && array == GPT_SCALES) /* of a whole tensor */
            gpt_file_transfer(f, is_write, f->host,
                              at + gpt_array_bytes(model, array, piece.begin - p->offset),
                              gpt_array_bytes(model, array, gpt_count(piece)));
        else if (!model->status)
            gpt_file_elements(f, is_write, p, at, element_bytes, piece.begin - p->offset,
                              piece.end - p->offset);
        for (int64_t k = 0; k < gpt_count(piece) && casts; k++)
            ((uint16_t*)(void*)f->cast)[k] = memo_bf16_from_f32(((float*)(void*)f->host)[k]);
        if (!is_write && !f->status)
            gpt_copy_array(model, 1, array, piece, casts ? f->cast : f->host);
        if (model->status && !f->status) f->status = gpt_finish(model, f->error);
    }
}

/* All of this rank's elements.  It writes its part of each bucket; it reads all weights, and the
 * master weights and moments that it updates. */
static void gpt_file_model(gpt_file* f, int is_write) {
    gpt_model* model = f->model;
    const gpt_config* config = &model->config;
    const int arrays[] = {gpt_full_weights(model), GPT_MOMENTS1, GPT_MOMENTS2, GPT_SCALES};
    const int n_arrays = config->states == MEMO_TYPE_U8 ? GPT_FILE_ARRAYS : GPT_FILE_ARRAYS - 1;
    MEMOB_TABLE_OF(GPT_FILE_ARRAYS, arrays);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(config) && !f->status; t++) {
        const gpt_parameter p = gpt_parameter_at(config, t);
        const int64_t bucket = gpt_bucket_of(model, p.offset);
        const gpt_rows part = is_write ? gpt_part_at(model, bucket, model->share.rank)
                                       : gpt_updated_part(model, bucket);
        if (!is_write)
            gpt_file_array(f, 0, &p, gpt_file_at(config, t, 0), GPT_WEIGHTS,
                           gpt_rows_make(p.offset, p.offset + p.n));

        /* Ranks with copies of the tensor leave it to the first of them. */
        if (is_write && model->share.tensor_rank >= p.degree) continue;
        for (int a = is_write || gpt_has_masters(config) ? 0 : 1; a < n_arrays; a++)
            gpt_file_array(f, is_write, &p, gpt_file_at(config, t, a), arrays[a],
                           gpt_part_rows_of(part, &p));
    }
}

/* ---- all ranks ------------------------------------------------------------------------------ */

int gpt_file_is_first(const gpt_file* f) { return !f->model->mesh || f->model->mesh->rank == 0; }

/* Waits for all ranks.  A rank that has failed does not come: its caller aborts the
 * communicator. */
void gpt_file_meet(gpt_file* f) {
    gpt_model* model = f->model;
    if (f->status || !model->mesh || model->mesh->size == 1) return;
    f->status = memo_barrier(model->mesh->world, model->compute, f->error);
    if (!f->status) f->status = gpt_wait(model, f->error);
}

void gpt_file_open(gpt_file* f, gpt_model* model, const char* path, memo_error* error) {
    memset(f, 0, sizeof *f);
    f->model = model;
    f->path = path;
    f->fd = -1;
    f->error = error;
    if (model) model->status = MEMO_STATUS_OK;
    f->host = (char*)malloc(2 * GPT_FILE_PIECE);
    if (f->host)
        f->cast = f->host + GPT_FILE_PIECE;
    else
        gpt_file_refuse(f, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for a checkpoint");
}

memo_status gpt_file_close(gpt_file* f) {
    if (f->fd >= 0 && close(f->fd)) gpt_file_fail(f, "written");
    free(f->host);
    return f->status;
}

void gpt_file_folder(const char* path, char* folder, size_t n_folder) {
    const char* slash = strrchr(path, '/');
    const int n = slash ? (int)(slash - path) + (slash == path) : 1;
    snprintf(folder, n_folder, "%.*s", n, slash ? path : ".");
}

/* Writes the name of the file aside.  Returns 0 if it is too long. */
static int gpt_file_aside(const char* path, int64_t name, char aside[GPT_PATH_BYTES]) {
    return snprintf(aside, GPT_PATH_BYTES, "%s.part-%llx", path, (long long)name) < GPT_PATH_BYTES;
}

/* The folder of a path is on disk, too, after a renaming. */
static void gpt_file_settle(const char* path) {
    char folder[1024];
    gpt_file_folder(path, folder, sizeof folder);
    int fd = open(folder, O_RDONLY);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

/* ---- one run saves to a path ----------------------------------------------------------------- */

/* Opens and locks PATH.lock, an empty file.  Errors: IO, INVALID_ARGUMENT (another run has it). */
static memo_status gpt_lock_open(gpt_lock* lock, const char* path, struct stat* info,
                                 memo_error* error) {
    struct stat named;
    int is_locked;
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (lock->fd < 0 || fstat(lock->fd, info))
        return memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be written: %s", path,
                              strerror(errno));
    is_locked = flock(lock->fd, LOCK_EX | LOCK_NB) == 0;
    if (!is_locked && errno == EWOULDBLOCK)
        return gpt_invalid(error, "%.300s: another run saves to this file; another name would work",
                           path);
    if (!S_ISREG(info->st_mode) || info->st_size)
        return gpt_invalid(error, "%.300s: %.300s is no lock of a run; another name would work",
                           path, lock->path);

    /* A run that ended meanwhile has removed the file. */
    if (lstat(lock->path, &named) == 0 && named.st_dev == info->st_dev &&
        named.st_ino == info->st_ino)
        return MEMO_STATUS_OK;
    close(lock->fd);
    return gpt_lock_open(lock, path, info, error);
}

memo_status gpt_lock_checkpoint(const char* path, gpt_lock* lock, int64_t* name,
                                memo_error* error) {
    struct stat info;
    char aside[GPT_PATH_BYTES];
    memo_status status;
    lock->fd = -1;
    if (snprintf(lock->path, sizeof lock->path, "%s.lock", path) >= GPT_PATH_BYTES)
        return gpt_invalid(error, "%.300s: a shorter name works", path);
    if ((status = gpt_lock_open(lock, path, &info, error))) {
        if (lock->fd >= 0) close(lock->fd);
        lock->fd = -1;
        return status;
    }

    /* A killed run has left its lock, and a file aside whose name follows from the lock. */
    *name = (int64_t)(gpt_mix((uint64_t)info.st_ino) >> 2);
    if (gpt_file_aside(path, *name, aside)) unlink(aside);
    return MEMO_STATUS_OK;
}

void gpt_unlock_checkpoint(gpt_lock* lock) {
    if (lock->fd < 0) return;
    unlink(lock->path); /* before others can lock it */
    close(lock->fd);
    lock->fd = -1;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Creates the file aside in its full length, without a digest.  Never opens a file that is there.
 * The mode is that of the file that it replaces.  Otherwise the umask decides, but others than
 * owner and group cannot read it. */
static void gpt_file_create(gpt_file* f, const char* aside, const char* head, int64_t n_head,
                            int64_t file_bytes) {
    struct stat old, made;
    const int replaces = stat(f->path, &old) == 0;
    mode_t mode = replaces ? old.st_mode & 0777 : 0;
    f->fd = open(aside, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, replaces ? 0600 : 0660);
    if (f->fd < 0) {
        gpt_file_fail(f, "written");
        return;
    }

    /* Another group must not read what the group of the old file may. */
    if (replaces && fstat(f->fd, &made) == 0 && made.st_gid != old.st_gid &&
        fchown(f->fd, (uid_t)-1, old.st_gid))
        mode &= (mode_t)~070;
    if (replaces && fchmod(f->fd, mode)) gpt_file_fail(f, "written");
    if (!f->status && ftruncate(f->fd, (off_t)file_bytes)) gpt_file_fail(f, "written");
    gpt_file_transfer(f, 1, (char*)(uintptr_t)head, 0, n_head);
    if (f->status) unlink(aside);
}

memo_status gpt_file_begin_aside(gpt_file* f, int64_t name, const char* head, int64_t n_head,
                                 int64_t file_bytes, char aside[GPT_PATH_BYTES]) {
    if (!gpt_file_aside(f->path, name, aside))
        gpt_file_refuse(f, MEMO_STATUS_INVALID_ARGUMENT, "a shorter name works");
    if (gpt_file_is_first(f) && !f->status) gpt_file_create(f, aside, head, n_head, file_bytes);
    if (f->status) *aside = 0; /* none is there */
    gpt_file_meet(f);
    if (!gpt_file_is_first(f) && !f->status &&
        (f->fd = open(aside, O_WRONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        gpt_file_fail(f, "written");
    return f->status;
}

void gpt_file_end_aside(gpt_file* f) {
    if (!f->status && fsync(f->fd)) gpt_file_fail(f, "written");
    gpt_file_meet(f);
}

void gpt_file_rename(gpt_file* f, const char* aside) {
    if (!gpt_file_is_first(f) || !*aside) return;
    if (!f->status && (fsync(f->fd) || rename(aside, f->path))) gpt_file_fail(f, "written");
    if (f->status)
        unlink(aside);
    else
        gpt_file_settle(f->path);
}

memo_status gpt_write_checkpoint(gpt_model* model, const gpt_save* save, int64_t step,
                                 memo_error* error) {
    gpt_file_head head = gpt_file_head_make(&model->config, step, model->n_updates);
    char aside[GPT_PATH_BYTES];
    gpt_file f;
    memcpy(head.run, save->run, sizeof head.run);
    head.squares = model->squares_before;
    gpt_file_open(&f, model, save->path, error);
    if (!gpt_file_begin_aside(&f, save->aside, (const char*)&head, (int64_t)sizeof head,
                              head.file_bytes, aside))
        gpt_file_model(&f, 1);
    gpt_file_end_aside(&f);

    /* The digest makes it complete, and the new name makes it the checkpoint. */
    if (gpt_file_is_first(&f) && !f.status) {
        head.digest = gpt_file_digest(&f, head.file_bytes);
        gpt_file_transfer(&f, 1, (char*)&head, 0, (int64_t)sizeof head);
    }
    gpt_file_rename(&f, aside);
    gpt_file_meet(&f);
    return gpt_file_close(&f);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Returns the word that sets the option to a number of gpt_file_head.model, or the number. */
static const char* gpt_file_value(int i, int64_t number, char text[24]) {
    const int is_type = i >= GPT_FILE_NUMBERS - 2; /* --type and --states */
    snprintf(text, 24, "%lld", (long long)number);
    if (is_type && number == GPT_FILE_PURE + MEMO_TYPE_BF16) return "pure-bf16";
    if (is_type && number == GPT_FILE_PURE + MEMO_TYPE_U8) return "8bit";
    if (is_type && (number == MEMO_TYPE_F32 || number == MEMO_TYPE_BF16))
        return memo_type_name((memo_type)number);
    if (strcmp(gpt_file_names[i], "--mlp")) return text;
    return number == GPT_MLP_GELU ? "gelu" : number == GPT_MLP_SWIGLU ? "swiglu" : text;
}

/* Opens a checkpoint and reads its head.  Refuses a file that is none, is cut short, or is of
 * another model.  A pipe is refused without waiting for its writer. */
static void gpt_file_begin_read(gpt_file* f, const gpt_config* config, gpt_file_head* head) {
    const gpt_file_head expected = gpt_file_head_make(config, 0, 0);
    struct stat info;
    char was[24], now[24];
    ssize_t n;
    memset(head, 0, sizeof *head);
    if (f->status) return;
    f->fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    n = f->fd < 0 || fstat(f->fd, &info) ? -1 : 0;
    if (!n && !S_ISREG(info.st_mode)) {
        gpt_file_refuse(f, MEMO_STATUS_FORMAT, "not a regular file, as a checkpoint is");
        return;
    }
    if (!n) n = pread(f->fd, head, sizeof *head, 0);
    if (n < 0) {
        gpt_file_fail(f, "read");
        return;
    }

    if (!memcmp(head->magic, expected.magic, GPT_FILE_MAGIC) &&
        strncmp(head->magic, expected.magic, sizeof head->magic))
        gpt_file_refuse(f, MEMO_STATUS_FORMAT,
                        "a checkpoint of format %.1s; this program reads format %.1s",
                        head->magic + GPT_FILE_MAGIC, expected.magic + GPT_FILE_MAGIC);
    if (!memcmp(head->magic, expected.magic, sizeof head->magic) && n < (ssize_t)sizeof *head)
        gpt_file_refuse(f, MEMO_STATUS_FORMAT,
                        "cut short: it has %lld bytes, fewer than the %lld of a checkpoint's head",
                        (long long)n, (long long)sizeof *head);
    if (memcmp(head->magic, expected.magic, sizeof head->magic) || head->order != 1)
        gpt_file_refuse(f, MEMO_STATUS_FORMAT, "not a checkpoint of this version and byte order");
    for (int i = 0; i < GPT_FILE_NUMBERS; i++)
        if (head->model[i] != expected.model[i])
            gpt_file_refuse(f, MEMO_STATUS_INVALID_ARGUMENT,
                            "a checkpoint of another model: its %s is %s, not %s",
                            gpt_file_names[i], gpt_file_value(i, head->model[i], was),
                            gpt_file_value(i, expected.model[i], now));
    if (head->file_bytes != expected.file_bytes || info.st_size != expected.file_bytes)
        gpt_file_refuse(f, MEMO_STATUS_FORMAT, "cut short or altered: it has %lld bytes of %lld",
                        (long long)info.st_size, (long long)expected.file_bytes);
    if (head->step < 0 || head->n_updates < 0 || head->n_updates > head->step)
        gpt_file_refuse(f, MEMO_STATUS_FORMAT, "altered: saved after step %lld and %lld updates",
                        (long long)head->step, (long long)head->n_updates);
}

static void gpt_file_check_digest(gpt_file* f, const gpt_file_head* head) {
    if (!f->status && gpt_file_digest(f, head->file_bytes) != head->digest)
        gpt_file_refuse(f, MEMO_STATUS_FORMAT, "altered: its digest is another");
}

memo_status gpt_check_checkpoint(const gpt_config* config, const char* path, int is_whole,
                                 gpt_file_head* head, memo_error* error) {
    gpt_file f;
    gpt_file_open(&f, NULL, path, error);
    gpt_file_begin_read(&f, config, head);
    if (is_whole) gpt_file_check_digest(&f, head);
    return gpt_file_close(&f);
}

memo_status gpt_read_checkpoint(gpt_model* model, const char* path, uint64_t digest, int64_t* step,
                                memo_error* error) {
    gpt_file_head head;
    gpt_file f;
    gpt_file_open(&f, model, path, error);

    /* Nothing of the model changes before the whole file is known to be right. */
    gpt_file_begin_read(&f, &model->config, &head);
    if (digest && head.digest != digest)
        gpt_file_refuse(&f, MEMO_STATUS_FORMAT, "replaced after it was checked");
    if (!digest && gpt_file_is_first(&f)) gpt_file_check_digest(&f, &head);
    gpt_file_meet(&f);

    gpt_file_model(&f, 0);
    gpt_file_meet(&f);
    if (!f.status) {
        model->n_updates = model->first_update = head.n_updates;
        model->squares_before = head.squares;
        *step = head.step;
    }
    return gpt_file_close(&f);
}
