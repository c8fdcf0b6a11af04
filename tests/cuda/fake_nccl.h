/* fake_nccl.h - NCCL without a GPU.  Ranks are processes and send packets through rings in shared
 * memory.  A send is done when its bytes are copied.  Sums are taken in the order of NCCL's ring,
 * which depends on the place in the buffer and on the count.  Several threads of a rank may call;
 * one lock protects everything.
 *
 * Operations run on the streams of fake_cuda.h, buffers must be device memory, and an operation
 * that waits for a process that has ended fails.  Operations may be captured: on all their ranks or
 * on none, between ranks that have met before, and each after the previous one of the process.
 * Their graphs must be destroyed before a communicator is destroyed or aborted, which otherwise
 * hangs.
 *
 * Include after memo_cuda.cuh with MEMO_CUDA_NCCL, and after fake_cuda.h. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <fcntl.h>
#include <memory>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_RANKS = 8, FAKE_RING_BYTES = 1 << 17, FAKE_PARTS = 4096, FAKE_WORLDS = 16 };

typedef struct fake_ring { /* from one rank of the world to another */
    uint64_t n_written, n_read;
    char bytes[FAKE_RING_BYTES];
} fake_ring;

typedef struct fake_world {
    int32_t n_joined;
    fake_ring rings[FAKE_RANKS][FAKE_RANKS]; /* [from][to] */
} fake_world;

struct ncclComm {
    uint64_t id;
    int rank, size, n_splits;
    int* is_aborted; /* of the world and its parts, which share resources */
    int world_ranks[FAKE_RANKS];
    int n_captured; /* operations in graphs that exist */
    int has_met[FAKE_RANKS];
};

typedef struct fake_packet { /* on its way out, or in and not yet asked for */
    struct fake_packet* next;
    struct {
        uint64_t comm, n_bytes, is_captured;
    } header;
    uint64_t n_moved; /* header included */
    char* bytes;
} fake_packet;

typedef struct fake_part {
    char* address;
    uint64_t n_bytes;
    int peer, is_send, is_done;
} fake_part;

typedef struct fake_op {
    ncclComm_t comm;
    int n_tries, n_lost; /* tries; how often no other process of comm was there */
    int n_parts, is_started, is_reduction, is_parted, type, is_captured;
    fake_part* parts;
    char *temporary, *to; /* data goes to `to` when it is complete; NULL: is complete */
    size_t count;
    ncclRedOp_t reduction;
} fake_op;

static struct {
    fake_world* world;
    int rank, file;
    fake_packet *out[FAKE_RANKS], *in[FAKE_RANKS], *arriving[FAKE_RANKS];
    int depth, n_group;
    fake_part group[FAKE_PARTS];
    ncclComm_t group_comm;
    cudaStream_t group_stream;
    ncclComm_t latest; /* that began an operation */
    int n_running;     /* operations that have begun and not ended */
    int n_overlaps;    /* operations of two communicators under way at once */
    int is_aborted[FAKE_WORLDS], n_worlds;
    cudaEvent_t captured; /* after the latest captured operation */
} fake;

static pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
#define FAKE_LOCK()   pthread_mutex_lock(&fake_mutex)
#define FAKE_UNLOCK() pthread_mutex_unlock(&fake_mutex)

static uint64_t fake_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Moves bytes of a packet, header first, to (is_out) or from a ring, as many as possible; returns
 * their number. */
static int fake_move(fake_ring* ring, fake_packet* p, int is_out) {
    uint64_t written = __atomic_load_n(&ring->n_written, __ATOMIC_ACQUIRE);
    uint64_t read = __atomic_load_n(&ring->n_read, __ATOMIC_ACQUIRE);
    uint64_t n = is_out ? FAKE_RING_BYTES - (written - read) : written - read;
    uint64_t at = is_out ? written : read, size = sizeof p->header;
    while (n) {
        uint64_t end = p->n_moved < size ? size : size + p->header.n_bytes, piece;
        char *mine, *theirs = ring->bytes + at % FAKE_RING_BYTES;
        if (p->n_moved == size && !p->bytes) p->bytes = (char*)malloc(p->header.n_bytes + 1);
        if (p->n_moved == end) break;
        mine = p->n_moved < size ? (char*)&p->header + p->n_moved : p->bytes + (p->n_moved - size);
        piece = fake_least(fake_least(n, end - p->n_moved), FAKE_RING_BYTES - at % FAKE_RING_BYTES);
        memcpy(is_out ? theirs : mine, is_out ? mine : theirs, piece);
        p->n_moved += piece;
        at += piece;
        n -= piece;
    }
    __atomic_store_n(is_out ? &ring->n_written : &ring->n_read, at, __ATOMIC_RELEASE);
    if (p->n_moved == size && !p->bytes) p->bytes = (char*)malloc(p->header.n_bytes + 1);
    return p->n_moved >= size && p->n_moved == size + p->header.n_bytes;
}

static void fake_append(fake_packet** list, fake_packet* p) {
    while (*list) list = &(*list)->next;
    *list = p;
}
static void fake_free(fake_packet* p) {
    free(p->bytes);
    free(p);
}

static void fake_forget(fake_packet** list) {
    while (*list) {
        fake_packet* p = *list;
        *list = p->next;
        fake_free(p);
    }
}

static void fake_traffic(void) {
    for (int r = 0; fake.world && r < FAKE_RANKS; r++) {
        while (fake.out[r] && fake_move(&fake.world->rings[fake.rank][r], fake.out[r], 1)) {
            fake_packet* p = fake.out[r];
            fake.out[r] = p->next;
            fake_free(p);
        }
        for (;;) {
            if (!fake.arriving[r]) fake.arriving[r] = (fake_packet*)calloc(1, sizeof(fake_packet));
            if (!fake_move(&fake.world->rings[r][fake.rank], fake.arriving[r], 0)) break;
            fake_append(&fake.in[r], fake.arriving[r]);
            fake.arriving[r] = NULL;
        }
    }
}

static void fake_send(const fake_op* op, const fake_part* part) {
    fake_packet* p = (fake_packet*)calloc(1, sizeof *p);
    p->header.is_captured = (uint64_t)op->is_captured;
    p->header.comm = op->comm->id;
    p->header.n_bytes = part->n_bytes;
    p->bytes = (char*)malloc(part->n_bytes + 1);
    if (part->n_bytes) memcpy(p->bytes, part->address, part->n_bytes);
    fake_append(&fake.out[op->comm->world_ranks[part->peer]], p);
}

/* The oldest packet of comm from peer, if it is there; a wrong one ends the test. */
static int fake_receive(const fake_op* op, const fake_part* part) {
    fake_packet** p = &fake.in[op->comm->world_ranks[part->peer]];
    while (*p && (*p)->header.comm != op->comm->id) p = &(*p)->next;
    if (!*p) return 0;
    if ((*p)->header.is_captured != (uint64_t)op->is_captured) {
        fprintf(stderr, "fake NCCL: an operation is captured on some ranks only\n");
        abort();
    }
    if ((*p)->header.n_bytes != part->n_bytes) {
        fprintf(stderr, "fake NCCL: a message of %llu bytes met a receive of %llu\n",
                (unsigned long long)(*p)->header.n_bytes, (unsigned long long)part->n_bytes);
        abort();
    }
    if (part->n_bytes) memcpy(part->address, (*p)->bytes, part->n_bytes);
    {
        fake_packet* done = *p;
        *p = done->next;
        fake_free(done);
    }
    return 1;
}

/* Chunk c of a buffer, or the part of rank c, goes round the ring and ends at rank c. */
static void fake_reduce(const fake_op* op, uint64_t begin, uint64_t end, int c) {
    const uint64_t element = (uint64_t)memo_type_bytes((memo_type)op->type);
    const void* from[FAKE_RANKS];
    const int n = op->comm->size;
    for (int r = 0; r < n; r++)
        from[r] = op->temporary + ((uint64_t)((c + 1 + r) % n) * op->count + begin) * element;
    memo_comm_reduce(op->to + begin * element, from, n, 0, (int64_t)(end - begin),
                     (memo_type)op->type,
                     op->reduction == ncclSum ? MEMO_REDUCTION_SUM : MEMO_REDUCTION_MAX);
}

static void fake_finish(fake_op* op) {
    const uint64_t n = (uint64_t)op->comm->size;
    const uint64_t n_bytes = op->count * (uint64_t)memo_type_bytes((memo_type)op->type);
    if (op->is_reduction && op->is_parted)
        fake_reduce(op, 0, op->count, op->comm->rank);
    else if (op->is_reduction)
        for (uint64_t c = 0; c < n; c++)
            fake_reduce(op, op->count * c / n, op->count * (c + 1) / n, (int)c);
    else if (op->to && n_bytes)
        memcpy(op->to, op->temporary, n_bytes * n);
}

/* Part i of an operation waits for those before it with the same peer.  A send that has n sends
 * before it also waits for n receives: NCCL pairs sends to rank + d with receives from rank - d. */
static int fake_is_next(const fake_op* op, int i) {
    const fake_part* part = &op->parts[i];
    const int size = op->comm->size, pair = (2 * op->comm->rank - part->peer + size) % size;
    int n_sends = 0, n_received = 0, n_receives = 0;
    for (int k = 0; k < op->n_parts; k++) {
        const fake_part* other = &op->parts[k];
        const int is_before = other->is_send == part->is_send && other->peer == part->peer && k < i;
        if (is_before && !other->is_done) return 0;
        n_sends += is_before;
        n_receives += !other->is_send && other->peer == pair;
        n_received += !other->is_send && other->peer == pair && other->is_done;
    }
    return !part->is_send || n_received >= n_sends || n_received == n_receives;
}

/* Is the operation through? */
static int fake_step(fake_op* op) {
    int is_done = 1;
    if (*op->comm->is_aborted) {
        fake.n_running -= op->is_started;
        return 1;
    }
    if (!op->is_started) {
        fake.n_overlaps += fake.n_running && fake.latest != op->comm;
        fake.latest = op->comm;
        fake.n_running++;
    }
    for (int i = 0; i < op->n_parts; i++) {
        fake_part* part = &op->parts[i];
        if (!part->is_done && fake_is_next(op, i)) {
            if (part->is_send) fake_send(op, part);
            part->is_done = part->is_send || fake_receive(op, part);
        }
        is_done &= part->is_done;
    }
    op->is_started = 1;
    if (!is_done) return 0;
    fake_finish(op);
    fake.n_running--;
    return 1;
}

static void fake_op_free(fake_op* op) {
    free(op->parts);
    free(op->temporary);
    free(op);
}

/* Streams and packets move on. */
static void fake_progress(void) {
    fake_advance();
    FAKE_LOCK();
    fake_traffic();
    FAKE_UNLOCK();
}

/* A process holds a lock on a byte of the world's file until it ends. */
static struct flock fake_lock_of(int rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}
static int fake_is_alone(ncclComm_t comm) {
    for (int r = 0; r < comm->size; r++) {
        struct flock lock = fake_lock_of(comm->world_ranks[r]);
        if (r != comm->rank && fcntl(fake.file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
            return 1;
    }
    return 0;
}

/* On a stream, until it returns true.  What a rank has sent arrives after its end. */
static bool fake_try(fake_op* op) {
    const int is_alone = ++op->n_tries % 20 == 0 && fake_is_alone(op->comm);
    FAKE_LOCK();
    fake_traffic();
    const int is_done = fake_step(op);
    fake_traffic();
    op->n_lost += is_alone;
    if (!is_done && op->n_lost > 3) *op->comm->is_aborted = 1;
    FAKE_UNLOCK();
    if (!is_done && op->n_tries > 400000) {
        fprintf(stderr, "fake NCCL: a rank has waited too long for another\n");
        abort();
    }
    if (is_done) fake_op_free(op);
    return is_done;
}

/* As `from` before it runs. */
static fake_op* fake_copy(const fake_op* from) {
    fake_op* op = (fake_op*)malloc(sizeof *op);
    *op = *from;
    op->parts = (fake_part*)malloc((size_t)op->n_parts * sizeof *op->parts + 1);
    memcpy(op->parts, from->parts, (size_t)op->n_parts * sizeof *op->parts);
    if (op->temporary) {
        const size_t n_bytes = (size_t)op->n_parts / 2 * op->parts[0].n_bytes;
        op->temporary = (char*)malloc(n_bytes + 1);
        for (int i = 0; i < op->n_parts; i++)
            if (!op->parts[i].is_send)
                op->parts[i].address = op->temporary + (from->parts[i].address - from->temporary);
    }
    return op;
}

static int fake_is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

/* A captured operation runs at each launch of the graph, and waits for the captured one before it.
 * The event of an earlier capture is refused. */
static void fake_capture_op(cudaStream_t stream, fake_op* op) {
    std::shared_ptr<fake_op> kept(op, [](fake_op* last) {
        __atomic_fetch_sub(&last->comm->n_captured, 1, __ATOMIC_SEQ_CST);
        fake_op_free(last);
    });
    __atomic_fetch_add(&op->comm->n_captured, 1, __ATOMIC_SEQ_CST);
    if (fake.captured && cudaStreamWaitEvent(stream, fake.captured, 0) != cudaSuccess)
        (void)cudaGetLastError();
    if (!fake.captured) cudaEventCreateWithFlags(&fake.captured, cudaEventDisableTiming);
    fake_enqueue(stream, [kept] {
        fake_op* launched = fake_copy(kept.get());
        while (!fake_try(launched)) usleep(launched->n_tries < 20 ? 50 : 500);
    });
    cudaEventRecord(fake.captured, stream);
}

/* Connections are made by the first operation of two ranks, which is not captured. */
static ncclResult_t fake_append_op(cudaStream_t stream, fake_op* op) {
    op->is_captured = fake_is_capturing(stream);
    for (int i = 0; i < op->n_parts; i++) {
        int* has_met = &op->comm->has_met[op->parts[i].peer];
        if (op->is_captured && !*has_met) return ncclInvalidUsage;
        *has_met = 1;
    }
    if (op->is_captured)
        fake_capture_op(stream, op);
    else
        fake_enqueue_until(stream, [op] { return fake_try(op); });
    return ncclSuccess;
}

/* --- NCCL --- */

/* NCCL_COMM_ID, as NCCL: every rank has the same id then, and rank 0 opens the meeting when it
 * joins.  Here the id is a file of the world. */
static int fake_open_world(const ncclUniqueId* id, int rank) {
    int file, n_tries, has_address = getenv("NCCL_COMM_ID") != NULL;
    for (n_tries = 0; n_tries < 100000; n_tries++) {
        file = open(id->internal, rank == 0 && has_address ? O_RDWR | O_CREAT : O_RDWR, 0600);
        if (file >= 0 && rank == 0 && has_address && ftruncate(file, (off_t)sizeof(fake_world)))
            return -1;
        if (file >= 0 && lseek(file, 0, SEEK_END) == (off_t)sizeof(fake_world)) return file;
        if (file >= 0) close(file);
        usleep(100);
    }
    return -1;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const char *folder = getenv("TMPDIR"), *address = getenv("NCCL_COMM_ID");
    memset(id, 0, sizeof *id);
    if (address) {
        snprintf(id->internal, sizeof id->internal, "%.60s/fake_nccl.%.50s",
                 folder && *folder ? folder : "/tmp", address);
        return ncclSuccess;
    }
    snprintf(id->internal, sizeof id->internal, "%.100s/fake_nccl.XXXXXX",
             folder && *folder ? folder : "/tmp");
    int file = mkstemp(id->internal);
    if (file < 0) return ncclSystemError;
    int is_made = ftruncate(file, (off_t)sizeof(fake_world)) == 0;
    close(file);
    return is_made ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION(2, 27, 0);
    return ncclSuccess;
}

static ncclComm_t fake_comm(uint64_t id, int* is_aborted) {
    ncclComm_t comm = (ncclComm_t)calloc(1, sizeof *comm);
    comm->id = id;
    comm->is_aborted = is_aborted;
    return comm;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    int file = fake_open_world(&id, rank), r;
    void* memory;
    if (file < 0 || n > FAKE_RANKS || config->blocking || !config->splitShare)
        return ncclInvalidArgument;
    if (!fake_load("NCCL")) return ncclUnhandledCudaError;
    memory = mmap(NULL, sizeof(fake_world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return ncclSystemError;
    FAKE_LOCK();
    for (r = 0; r < FAKE_RANKS; r++) { /* what an aborted world has left */
        fake_forget(&fake.out[r]);
        fake_forget(&fake.in[r]);
        fake_forget(&fake.arriving[r]);
    }
    fake.world = (fake_world*)memory;
    fake.rank = rank;
    FAKE_UNLOCK();
    {
        struct flock lock = fake_lock_of(rank);
        fake.file = file;
        if (fcntl(file, F_SETLK, &lock)) return ncclSystemError;
    }
    if (fake.n_worlds == FAKE_WORLDS) abort();
    *comm = fake_comm(1, &fake.is_aborted[fake.n_worlds++]);
    (*comm)->rank = rank;
    (*comm)->size = n;
    for (r = 0; r < n; r++) (*comm)->world_ranks[r] = r;
    __atomic_fetch_add(&fake.world->n_joined, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&fake.world->n_joined, __ATOMIC_SEQ_CST) < n) usleep(100);
    if (!rank) unlink(id.internal);
    return ncclSuccess;
}

/* A split that ends only by an abort: then NCCL's thread stores the part, as at a split's end. */
static struct {
    int is_on; /* the next split is one */
    ncclComm_t comm, *part;
    int n_aborted; /* of the communicator and its part */
} fake_endless;

/* Ranks of equal color, by key, then by rank. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
    int mine[2], all[FAKE_RANKS][2], r, k, n_missing = comm->size, has[FAKE_RANKS] = {0};
    fake_part out = {(char*)mine, sizeof mine, 0, 1, 0};
    fake_op meeting = {};
    meeting.comm = comm;
    if (config->blocking || !config->splitShare) return ncclInvalidArgument;
    if (fake_endless.is_on) {
        *part = NULL;
        fake_endless.comm = comm;
        fake_endless.part = part;
        fake_endless.is_on = 0;
        return ncclInProgress;
    }
    if (!fake_load("NCCL's channels")) return ncclUnhandledCudaError;
    FAKE_LOCK();
    mine[0] = color;
    mine[1] = key;
    *part = NULL;
    comm->n_splits++;
    for (r = 0; r < comm->size; r++) {
        out.peer = r;
        fake_send(&meeting, &out);
    }
    FAKE_UNLOCK();
    while (n_missing) {
        fake_progress();
        FAKE_LOCK();
        for (r = 0; r < comm->size; r++) {
            fake_part in = {(char*)all[r], sizeof mine, r, 0, 0};
            if (has[r] || !fake_receive(&meeting, &in)) continue;
            has[r] = 1;
            n_missing--;
        }
        FAKE_UNLOCK();
        if (n_missing) usleep(50);
    }
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    *part = fake_comm((comm->id * 1009 + (uint64_t)comm->n_splits) * 1009 + (uint64_t)color,
                      comm->is_aborted);
    for (r = 0; r < comm->size; r++) {
        int place = 0;
        if (all[r][0] != color) continue;
        for (k = 0; k < comm->size; k++)
            place +=
                all[k][0] == color && (all[k][1] < all[r][1] || (all[k][1] == all[r][1] && k < r));
        (*part)->world_ranks[place] = comm->world_ranks[r];
        if (r == comm->rank) (*part)->rank = place;
        (*part)->size++;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
    *size = comm->size;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    *error = *comm->is_aborted           ? ncclSystemError
             : comm == fake_endless.comm ? ncclInProgress
                                         : ncclSuccess;
    return ncclSuccess;
}
static void fake_wait_for_graphs(const struct ncclComm* comm) {
    int n_tries = 0;
    while (__atomic_load_n(&comm->n_captured, __ATOMIC_SEQ_CST)) {
        if (n_tries++ > 600000) {
            fprintf(stderr, "fake NCCL: a communicator waits for the end of a graph\n");
            abort();
        }
        usleep(50);
    }
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    FAKE_LOCK();
    *comm->is_aborted = 1; /* waiting operations end; queued operations may still refer to it */
    FAKE_UNLOCK();
    fake_wait_for_graphs(comm);
    if (fake_endless.comm) __atomic_fetch_add(&fake_endless.n_aborted, 1, __ATOMIC_SEQ_CST);
    if (comm == fake_endless.comm && !*fake_endless.part)
        *fake_endless.part = fake_comm(comm->id * 1009, comm->is_aborted);
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { /* sent data arrives if a rank receives it */
    int r, n_tries, n_left = 1;
    (void)comm;
    for (n_tries = 0; n_left && n_tries < 2000; n_tries++) {
        fake_progress();
        for (r = 0, n_left = 0; r < FAKE_RANKS; r++) n_left += fake.out[r] != NULL;
        if (n_left) usleep(1000);
    }
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    fake_wait_for_graphs(comm);
    free(comm);
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) { return result ? "a fake error" : "none"; }
const char* ncclGetLastError(MEMO_UNUSED ncclComm_t comm) { return ""; }

/* NCCL takes what the GPU can reach: its memory, and pinned memory. */
static int fake_is_usable(const void* address, uint64_t n_bytes) {
    return fake_is_on_device(address, n_bytes) || fake_is_pinned(address, n_bytes);
}

/* Takes temporary. */
static ncclResult_t fake_submit(ncclComm_t comm, cudaStream_t stream, const fake_part* parts,
                                int n_parts, const fake_op* what) {
    fake_op* op = (fake_op*)malloc(sizeof *op);
    *op = *what;
    op->comm = comm;
    op->n_parts = n_parts;
    op->parts = (fake_part*)malloc((size_t)n_parts * sizeof *parts + 1);
    memcpy(op->parts, parts, (size_t)n_parts * sizeof *parts);
    return fake_append_op(stream, op);
}

ncclResult_t ncclGroupStart(void) {
    fake.depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
    int n = fake.n_group;
    if (--fake.depth || !n) return ncclSuccess;
    fake_op none = {};
    fake.n_group = 0;
    return fake_submit(fake.group_comm, fake.group_stream, fake.group, n, &none);
}

static memo_type fake_memo_type(ncclDataType_t type) {
    return type == ncclUint8      ? MEMO_TYPE_U8
           : type == ncclFloat16  ? MEMO_TYPE_F16
           : type == ncclBfloat16 ? MEMO_TYPE_BF16
           : type == ncclFloat64  ? MEMO_TYPE_F64
           : type == ncclInt64    ? MEMO_TYPE_I64
           : type == ncclInt32    ? MEMO_TYPE_I32
                                  : MEMO_TYPE_F32;
}
static size_t fake_type_bytes(ncclDataType_t type) {
    return (size_t)memo_type_bytes(fake_memo_type(type));
}

static ncclResult_t fake_message(void* address, size_t count, ncclDataType_t type, int peer,
                                 int is_send, ncclComm_t comm, cudaStream_t stream) {
    fake_part* part = &fake.group[fake.n_group];
    if (!fake.depth || fake.n_group == FAKE_PARTS || peer < 0 || peer >= comm->size)
        return ncclInvalidUsage; /* memo groups all such calls */
    if (!fake_is_usable(address, count * fake_type_bytes(type))) return ncclInvalidArgument;
    memset(part, 0, sizeof *part);
    part->address = (char*)address;
    part->n_bytes = count * fake_type_bytes(type);
    part->peer = peer;
    part->is_send = is_send;
    fake.n_group++;
    fake.group_comm = comm;
    fake.group_stream = stream;
    return ncclSuccess;
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    return fake_message((void*)(uintptr_t)from, count, type, peer, 1, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return fake_message(to, count, type, peer, 0, comm, stream);
}

/* Every rank to every rank: all of from (part_bytes 0), or a part each. */
static ncclResult_t fake_collective(const void* from, void* to, size_t count, ncclDataType_t type,
                                    int is_parted, int is_reduction, ncclRedOp_t reduction,
                                    ncclComm_t comm, cudaStream_t stream) {
    fake_part parts[2 * FAKE_RANKS];
    uint64_t n_bytes = count * fake_type_bytes(type);
    if (!fake_is_usable(from, (is_parted ? (uint64_t)comm->size : 1) * n_bytes) ||
        !fake_is_usable(to, (is_parted || is_reduction ? 1 : (uint64_t)comm->size) * n_bytes))
        return ncclInvalidArgument;
    fake_op op = {};
    memset(parts, 0, sizeof parts);
    op.temporary = (char*)malloc((size_t)comm->size * n_bytes + 1);
    op.to = (char*)to;
    op.count = count;
    op.is_reduction = is_reduction;
    op.is_parted = is_parted;
    op.reduction = reduction;
    op.type = fake_memo_type(type);
    for (int r = 0; r < comm->size; r++) {
        parts[2 * r].is_send = 1;
        parts[2 * r].address = (char*)(uintptr_t)from + (is_parted ? (uint64_t)r * n_bytes : 0);
        parts[2 * r + 1].address = op.temporary + (uint64_t)r * n_bytes;
        parts[2 * r].peer = parts[2 * r + 1].peer = r;
        parts[2 * r].n_bytes = parts[2 * r + 1].n_bytes = n_bytes;
    }
    return fake_submit(comm, stream, parts, 2 * comm->size, &op);
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return fake_collective(from, to, count, type, 0, 1, op, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return fake_collective(from, to, count, type, 0, 0, ncclSum, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return fake_collective(from, to, count, type, 1, 1, op, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    fake_part parts[FAKE_RANKS + 1];
    int n = 0;
    if (!fake_is_usable(to, count * fake_type_bytes(type))) return ncclInvalidArgument;
    fake_op none = {};
    memset(parts, 0, sizeof parts);
    for (int r = 0; r < comm->size && comm->rank == root; r++) {
        if (r == root) continue;
        parts[n].address = (char*)(uintptr_t)from;
        parts[n].n_bytes = count * fake_type_bytes(type);
        parts[n].peer = r;
        parts[n++].is_send = 1;
    }
    if (comm->rank != root) {
        parts[n].address = (char*)to;
        parts[n].n_bytes = count * fake_type_bytes(type);
        parts[n++].peer = root;
    }
    return fake_submit(comm, stream, parts, n, &none); /* memo's is in place */
}

#endif
