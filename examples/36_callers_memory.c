/* 36_callers_memory.c - two sessions in one block of another allocator, by turns: a teacher that
 * only runs forwards, and a student that trains.
 *
 * A framework's allocator keeps what it has taken, so memory that memo takes beside it is missing
 * there.  Here the framework gives one block of device memory and one of pinned memory.  Sessions,
 * also while they time copies, and the trainer's arrays lie in these blocks.
 *
 * The layers are row kernels, which run on a host device and on a GPU alike.
 * examples/pytorch/session_in_tensor.py gives torch tensors as blocks.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/36_callers_memory.c -o 36_callers_memory -lpthread -lm
 * or for a GPU:
 *     nvcc -arch=native -I. -x cu examples/36_callers_memory.c -o 36_callers_memory
 * Expected output:
 *     own memory:   student ... KiB and ... KiB pinned, teacher ... KiB; the device gave ... KiB
 *     in the block: student ... KiB and ... KiB pinned, teacher ... KiB; the device gave 0 KiB
 *     gradients are bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#ifdef __CUDACC__
#include "memo_cuda.cuh"
#endif
#include <stdio.h>
#include <stdlib.h>

enum { L = 16, T = 1024, C = 32, TILE = 32, STEPS = 3 };
enum { ROWS_BYTES = T * C * 4, SESSION_BYTES = 1 << 20 };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};

/* The trainer's arrays of (T, C), and dots, which stand for gradients.  They lie in one block. */
typedef struct trainer {
    memo_device* device;
    memo_stream compute;
    float *x, *d_x, *noise, *taught, *dots; /* dots: (L, T) */
    int is_teacher;
} trainer;
enum { TRAINER_BYTES = 4 * ROWS_BYTES + L * T * 4 };

/* to = a + b, or a if b is NULL; rows [begin, end). */
static void add_rows(trainer* t, memo_session* session, float* to, const float* a, const float* b,
                     int64_t begin, int64_t end) {
    memo_add_desc add = MEMO_ZERO(memo_add_desc);
    memo_error error;
    add.to = to + begin * C, add.a = a + begin * C;
    add.b = b ? b + begin * C : NULL;
    add.n_rows = end - begin, add.n_columns = C;
    if (b ? memo_row_add(t->device, t->compute, &add, &error)
          : memo_row_cast(t->device, t->compute, &add, &error))
        memo_session_fail(session, error.status, error.message);
}
static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    trainer* t = (trainer*)user;
    add_rows(t, session, at(session, l, tensor), at(session, l, INP), t->noise, begin, end);
}
static void forward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    if (l == 0) add_rows(t, session, t->x, t->noise, NULL, 0, T);
    add_rows(t, session, at(session, l, INP), t->x, NULL, 0, T);
    recompute(user, session, l, HIDDEN, 0, T);
    add_rows(t, session, t->x, t->x, at(session, l, HIDDEN), 0, T);
}
/* The teacher keeps its output; the student's gradient begins with it. */
static void between(void* user, memo_session* session) {
    trainer* t = (trainer*)user;
    if (t->is_teacher)
        add_rows(t, session, t->taught, t->x, NULL, 0, T);
    else
        add_rows(t, session, t->d_x, t->x, t->taught, 0, T);
}
static void backward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    memo_add_desc sums = MEMO_ZERO(memo_add_desc);
    memo_error error;
    sums.to = t->dots + (int64_t)l * T, sums.a = at(session, l, HIDDEN), sums.b = t->d_x;
    sums.n_rows = T, sums.n_columns = C;
    if (memo_row_sums(t->device, t->compute, &sums, &error))
        memo_session_fail(session, error.status, error.message);
    add_rows(t, session, t->d_x, t->d_x, at(session, l, HIDDEN), 0, T);
}

/* A session of the trainer's functions; device_memory NULL: it takes memory of its own. */
static memo_status open_session(trainer* t, int is_teacher, void* device_memory, void* host_memory,
                                int64_t host_bytes, memo_session** session, memo_error* error) {
    static const memo_shape forwards = {T, 1};
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    desc.user = t, desc.device = t->device, desc.compute_stream = t->compute;
    desc.tensors = acts, desc.n_tensors = 2, desc.n_layers = L;
    desc.n_rows = T, desc.tile_rows = TILE;
    desc.forward = forward, desc.between = between;
    desc.backward = backward, desc.recompute = recompute;
    if (is_teacher) desc.shapes = &forwards, desc.n_shapes = 1;
    desc.device_bytes = SESSION_BYTES, desc.device_memory = device_memory;
    desc.host_bytes = host_bytes, desc.host_memory = host_memory;
    return memo_session_create(&desc, session, error);
}

/* Trains in the given blocks.  dots: (L, T) of the last step, on the host. */
static memo_status train(trainer* t, void* device_memory, void* host_memory, int64_t host_bytes,
                         float* dots, memo_error* error) {
    memo_session* sessions[2] = {NULL, NULL}; /* student, teacher */
    memo_session_info info[2];
    int64_t free_bytes[2] = {0, 0}, total_bytes; /* before and after */
    memo_status status = memo_memory_info(t->device, &free_bytes[0], &total_bytes, error);
    for (int i = 0; i < 2 && !status; i++) {
        t->is_teacher = i;
        status = open_session(t, i, device_memory, host_memory, host_bytes, &sessions[i], error);
        if (!status) info[i] = memo_session_get_info(sessions[i]);
    }
    if (!status) status = memo_memory_info(t->device, &free_bytes[1], &total_bytes, error);
    if (!status)
        printf("student %d KiB and %d KiB pinned, teacher %d KiB; the device gave %d KiB\n",
               (int)(info[0].plan->device_bytes >> 10), (int)(info[0].plan->host_bytes >> 10),
               (int)(info[1].plan->device_bytes >> 10),
               (int)((free_bytes[0] - free_bytes[1]) >> 10));
    for (int k = 0; k < 2 * STEPS && !status; k++) {
        t->is_teacher = k % 2 == 0;
        status = memo_session_run(sessions[t->is_teacher], NULL, error);
    }
    if (!status)
        status =
            memo_copy(t->device, t->compute, MEMO_COPY_TO_HOST, dots, t->dots, L * T * 4, error);
    if (!status) status = memo_stream_synchronize(t->device, t->compute, error);
    for (int i = 0; i < 2; i++) memo_session_destroy(sessions[i]);
    return status;
}

#ifdef __cplusplus
extern "C"
#endif
    /* The example in blocks of another allocator: SESSION_BYTES + TRAINER_BYTES of device memory and
 * host_bytes of pinned memory, 512-aligned.  device_memory NULL: it takes both itself.  Exit status
 * of a program. */
    int
    run_in_blocks(void* device_memory, void* host_memory, int64_t host_bytes);
int run_in_blocks(void* device_memory, void* host_memory, int64_t host_bytes) {
    static float noise[T * C], dots[2][L * T];
    void *own = NULL, *pinned = NULL;
    memo_error error;
    trainer t = MEMO_ZERO(trainer);
    char* block;
    memo_status status;
#ifdef __CUDACC__
    memo_cuda_device_desc device = MEMO_ZERO(memo_cuda_device_desc);
    status = memo_cuda_device_create(&device, &t.device, &error);
#else
    memo_host_device_desc device = MEMO_ZERO(memo_host_device_desc);
    device.device_memory_bytes = 1 << 24;
    status = memo_host_device_create(&device, &t.device, &error);
#endif
    if (!status) status = memo_stream_create(t.device, "compute", 0, &t.compute, &error);

    /* Stands for a framework. */
    if (!status && !device_memory)
        status = memo_device_alloc(t.device, SESSION_BYTES + TRAINER_BYTES, &own, &error);
    if (!status && !host_memory) status = memo_host_alloc(t.device, host_bytes, &pinned, &error);
    if (!device_memory) device_memory = own;
    if (!host_memory) host_memory = pinned;

    /* The trainer's arrays lie behind the sessions. */
    block = (char*)device_memory + SESSION_BYTES;
    t.x = (float*)(void*)block, t.d_x = t.x + T * C, t.noise = t.d_x + T * C;
    t.taught = t.noise + T * C, t.dots = t.taught + T * C;
    for (int i = 0; i < T * C; i++) noise[i] = (float)((i * 7919) % 1000 - 500) * 1e-3f;
    if (!status)
        status =
            memo_copy(t.device, t.compute, MEMO_COPY_TO_DEVICE, t.noise, noise, ROWS_BYTES, &error);

    if (!status) printf("own memory:   ");
    if (!status) status = train(&t, NULL, NULL, host_bytes, dots[0], &error);
    if (!status) printf("in the block: ");
    if (!status) status = train(&t, device_memory, host_memory, host_bytes, dots[1], &error);
    if (!status)
        printf("gradients are %s\n",
               memcmp(dots[0], dots[1], sizeof dots[0]) ? "DIFFERENT" : "bitwise the same");
    fflush(stdout);
    if (status) fprintf(stderr, "36_callers_memory: %s\n", error.message);

    if (pinned) memo_host_free(t.device, pinned, NULL);
    if (own) memo_device_free(t.device, own, NULL);
    if (t.compute) memo_stream_destroy(t.device, t.compute, NULL);
#ifdef __CUDACC__
    memo_cuda_device_destroy(t.device);
#else
    memo_host_device_destroy(t.device);
#endif
    return status || memcmp(dots[0], dots[1], sizeof dots[0]);
}

int main(void) { return run_in_blocks(NULL, NULL, 4 << 20); }
