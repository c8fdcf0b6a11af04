#pragma once
#include "cuda/state.h"
/* ---- >>pinned memory ----------------------------------------------------------------------------
 * Knows: pages, processors, control groups, registration.  Knows nothing of copies, but that freed
 * memory must not be under way.
 *
 * 1. Pinned memory is either CUDA's, with a base, or mapped and registered as whole huge pages.
 * 2. Pieces follow each other from the block's address on and cover it; all are registered or none.
 * 3. Threads touch each byte once: together no more than there are, and all unless one is refused.
 * 4. n_cut_blocks counts the listed blocks of several pieces. */

#define MEMOI_CUDA_HUGE_BYTES  ((int64_t)2 << 20)
#define MEMOI_CUDA_TOUCH_BYTES ((int64_t)32 << 20) /* that a thread takes at a time */

/* --- touching: several threads, each takes the next bytes --- */

typedef struct memoi_cuda_touch {
    char* address;
    int64_t size_bytes;
    int64_t next, touched_bytes; /* atomic; next: where the next thread begins */
    int32_t is_refused;          /* atomic */
    cpu_set_t near_gpu;
    int32_t has_near_gpu;
} memoi_cuda_touch;

/* 0: the system has no page left.  A container may reserve more huge pages than its limit allows.
 * A write would then end the program by SIGBUS; madvise returns instead. */
MEMOI int memoi_cuda_touch_pages(char* address, int64_t size_bytes) {
    const int64_t page_bytes = 4096; /* the smallest */
    const int populate_write = 23;   /* MADV_POPULATE_WRITE, Linux 5.14 */
    if (madvise(address, (size_t)size_bytes, populate_write) == 0) return 1;
    if (errno == EFAULT || errno == ENOMEM) return 0;
    for (int64_t at = 0; at < size_bytes; at += page_bytes) *(volatile char*)(address + at) = 0;
    return 1;
}

MEMOI void* memoi_cuda_touch_run(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&touch->next, MEMOI_CUDA_TOUCH_BYTES, __ATOMIC_RELAXED);
        int64_t end = begin + MEMOI_CUDA_TOUCH_BYTES;
        if (begin >= touch->size_bytes || __atomic_load_n(&touch->is_refused, __ATOMIC_RELAXED))
            return NULL;
        if (end > touch->size_bytes) end = touch->size_bytes;
        MEMO_ASSERT(begin >= 0 && begin < end); /* 3 */
        if (!memoi_cuda_touch_pages(touch->address + begin, end - begin)) {
            __atomic_store_n(&touch->is_refused, 1, __ATOMIC_RELAXED);
            return NULL;
        }
        __atomic_fetch_add(&touch->touched_bytes, end - begin, __ATOMIC_RELEASE);
    }
}

MEMOI void* memoi_cuda_touch_thread(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    /* Pages come from the node of the thread that touches them first. */
    if (touch->has_near_gpu) (void)sched_setaffinity(0, sizeof touch->near_gpu, &touch->near_gpu);
    return memoi_cuda_touch_run(touch);
}

/* Parses "0-7,16,20-23". */
MEMOI void memoi_cuda_parse_processors(const char* text, cpu_set_t* set) {
    CPU_ZERO(set);
    while (*text >= '0' && *text <= '9') {
        char* end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++) CPU_SET((size_t)first, set);
        if (*end != ',') return;
        text = end + 1;
    }
}

/* The processors of the GPU's node that this process may use; 0: unknown, or none. */
MEMOI int32_t memoi_cuda_near_processors(int ordinal, cpu_set_t* near_gpu) {
    char bus[32], path[96], text[1024] = "";
    cpu_set_t allowed;
    FILE* file;
    char* p;
    if (MEMOI_CUDA_CALL(cudaDeviceGetPCIBusId, (bus, (int)sizeof bus, ordinal), NULL)) return 0;
    for (p = bus; *p; p++)
        if (*p >= 'A' && *p <= 'F') *p = (char)(*p - 'A' + 'a');
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", bus);
    file = fopen(path, "r");
    if (!file) return 0;
    if (!fgets(text, (int)sizeof text, file)) text[0] = 0;
    fclose(file);
    memoi_cuda_parse_processors(text, near_gpu);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
    (void)CPU_AND(near_gpu, near_gpu, &allowed);
    return CPU_COUNT(near_gpu) > 0;
}

/* --- the process's share --- */

/* The number behind key in a file, times unit_bytes; -1: none, or not a size ("max"). */
MEMOI int64_t memoi_cuda_read_number(const char* path, const char* key, int64_t unit_bytes) {
    char line[160];
    int64_t result = -1;
    FILE* file = fopen(path, "r");
    if (!file) return -1;
    while (result < 0 && fgets(line, (int)sizeof line, file)) {
        const char* number = line + strlen(key);
        if (strncmp(line, key, strlen(key))) continue;
        number += strspn(number, " ");
        if (*number >= '0' && *number <= '9') result = (int64_t)strtoll(number, NULL, 10);
    }
    fclose(file);
    return result >= 0 && result < MEMOB_BYTES_MAX / unit_bytes ? result * unit_bytes : -1;
}

/* Bytes, of the host or of one control group; negative: no limit, or unknown. */
typedef struct memoi_cuda_room {
    int64_t total_bytes, available_bytes;
} memoi_cuda_room;

/* Lowers room to the limits of the control group in folder; without its files nothing happens.
 * Cached files count as available: the system drops them when memory is short. */
MEMOI void memoi_cuda_group_room(const char* folder, int is_v2, memoi_cuda_room* room) {
    static const char* const files[2][2] = {{"memory.limit_in_bytes", "memory.usage_in_bytes"},
                                            {"memory.max", "memory.current"}};
    static const char* const keys[2][2] = {{"total_inactive_file", "total_active_file"},
                                           {"inactive_file", "active_file"}};
    char path[400];
    int64_t limit_bytes, used_bytes, cached_bytes;

    snprintf(path, sizeof path, "%s/%s", folder, files[is_v2][0]);
    limit_bytes = memoi_cuda_read_number(path, "", 1);
    if (limit_bytes < 0) return;
    snprintf(path, sizeof path, "%s/%s", folder, files[is_v2][1]);
    used_bytes = memoi_cuda_read_number(path, "", 1);
    if (used_bytes < 0) used_bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (int k = 0; k < 2; k++) {
        cached_bytes = memoi_cuda_read_number(path, keys[is_v2][k], 1);
        if (cached_bytes > 0) used_bytes -= cached_bytes;
    }

    used_bytes = memob_min(memob_max(used_bytes, 0), limit_bytes);
    if (room->total_bytes < 0 || limit_bytes < room->total_bytes) room->total_bytes = limit_bytes;
    if (room->available_bytes < 0 || limit_bytes - used_bytes < room->available_bytes)
        room->available_bytes = limit_bytes - used_bytes;
}

/* Lowers room to the limits of a group and all groups around it.  Inside a container the path may
 * be the host's: its folders are then missing and only the mount's root counts. */
MEMOI void memoi_cuda_nested_room(const char* mount, const char* group, int is_v2,
                                  memoi_cuda_room* room) {
    char folder[360];
    size_t root = strlen(mount);
    snprintf(folder, sizeof folder, "%s%s", mount, group);
    for (;;) {
        char* slash;
        memoi_cuda_group_room(folder, is_v2, room);
        slash = strrchr(folder, '/');
        if (strlen(folder) <= root || !slash) return;
        *slash = 0;
    }
}

/* Reads the groups of a process from lines such as "0::/user/job" (v2) and "4:memory:/job" (v1). */
MEMOI void memoi_cuda_groups_room(const char* groups_path, const char* mount,
                                  memoi_cuda_room* room) {
    char line[300], folder[320];
    FILE* file = fopen(groups_path, "r");
    while (file && fgets(line, (int)sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group;
        line[strcspn(line, "\n")] = 0;
        group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        if (!*controllers) {
            memoi_cuda_nested_room(mount, group, 1, room);
        } else if (strcmp(controllers, "memory") == 0 || strstr(controllers, ",memory") ||
                   strncmp(controllers, "memory,", 7) == 0) {
            snprintf(folder, sizeof folder, "%s/memory", mount);
            memoi_cuda_nested_room(folder, group, 0, room);
        }
    }
    if (file) fclose(file);
}

/* Usual pages, or the pool of huge ones if that is more. */
MEMOI memoi_cuda_room memoi_cuda_host_room(void) {
    int64_t n_huge = memoi_cuda_read_number("/proc/meminfo", "HugePages_Free:", 1);
    int64_t huge_bytes = memoi_cuda_read_number("/proc/meminfo", "Hugepagesize:", 1024);
    memoi_cuda_room room;
    room.total_bytes = memoi_cuda_read_number("/proc/meminfo", "MemTotal:", 1024);
    room.available_bytes = memoi_cuda_read_number("/proc/meminfo", "MemAvailable:", 1024);
    if (room.available_bytes >= 0 && huge_bytes == MEMOI_CUDA_HUGE_BYTES &&
        n_huge > room.available_bytes / huge_bytes)
        room.available_bytes = n_huge * huge_bytes;
    memoi_cuda_groups_room("/proc/self/cgroup", "/sys/fs/cgroup", &room);
    return room;
}

MEMOI int32_t memoi_cuda_local_ranks(const memo_cuda_device_desc* desc) {
    static const char* const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
    if (desc->local_ranks) return desc->local_ranks;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const char* text = getenv(names[k]);
        int n = text ? atoi(text) : 0;
        if (n > 0) return n;
    }
    return 1;
}

/* Does a request fit?  If not, error says what does.  Available memory alone would not do: ranks
 * that start together all see the same free bytes. */
MEMOI memo_status memoi_cuda_check_room(const memoi_cuda* cuda, memoi_cuda_room room,
                                        int64_t size_bytes, memo_error* error) {
    int32_t n_ranks = memoi_cuda_local_ranks(&cuda->desc);
    int64_t share_bytes = room.total_bytes < 0 ? MEMOB_BYTES_MAX : room.total_bytes / n_ranks;
    int64_t left_bytes = share_bytes - cuda->stats.host_bytes;
    char asked[32], left[32], share[32];
    if (size_bytes > left_bytes)
        return memo_error_set(
            error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
            "host memory: %s (%lld bytes) requested, %s available of this process's share, %s (1 "
            "of %d); memo_cuda_device_desc.local_ranks and host_limit change the limit",
            memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
            memob_bytes_text(left, (double)(left_bytes > 0 ? left_bytes : 0)),
            memob_bytes_text(share, (double)share_bytes), (int)n_ranks);
    if (room.available_bytes >= 0 && size_bytes > room.available_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "host memory: %s (%lld bytes) requested, %s (%lld bytes) available; "
                              "if memory grows with use, set memo_cuda_device_desc.host_limit",
                              memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
                              memob_bytes_text(left, (double)room.available_bytes),
                              (long long)room.available_bytes);
    return MEMO_STATUS_OK;
}

/* --- address space --- */

/* size_bytes is a multiple of 2 MiB, and so is the address.  NULL: the system refuses. */
MEMOI char* memoi_cuda_map(int64_t size_bytes, int without_huge_pages, int without_pool,
                           memo_cuda_host_kind* kind) {
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t wanted = (size_t)size_bytes, slack = (size_t)MEMOI_CUDA_HUGE_BYTES, before;
    char* address;

    /* The pool reserves all pages at once or refuses.  Pages have 2 MiB, even if the system's
     * default huge page is larger, because munmap needs multiples of the page. */
#ifdef MAP_HUGETLB
    if (!without_huge_pages && !without_pool) {
        const int huge_2mb = 21 << 26; /* MAP_HUGE_2MB */
        address = (char*)mmap(NULL, wanted, protection, flags | MAP_HUGETLB | huge_2mb, -1, 0);
        if (address != (char*)MAP_FAILED) {
            if ((uintptr_t)address % slack == 0) {
                *kind = MEMO_CUDA_HOST_HUGETLB;
                return address;
            }
            munmap(address, wanted);
        }
    }
#endif

    /* Usual pages, aligned for transparent huge ones. */
    address = (char*)mmap(NULL, wanted + slack, protection, flags, -1, 0);
    if (address == (char*)MAP_FAILED) return NULL;
    before = (slack - (uintptr_t)address % slack) % slack;
    if (before) munmap(address, before);
    address += before;
    if (slack > before) munmap(address + wanted, slack - before);
    MEMO_ASSERT((uintptr_t)address % slack == 0 && wanted % slack == 0); /* 1 */
    *kind = MEMO_CUDA_HOST_PAGES;
#ifdef MADV_HUGEPAGE
    if (!without_huge_pages && madvise(address, wanted, MADV_HUGEPAGE) == 0)
        *kind = MEMO_CUDA_HOST_TRANSPARENT;
#endif
    return address;
}

/* --- registration --- */

/* Threads that touch pages; 0: none could be started. */
MEMOI int32_t memoi_cuda_start_touching(const memoi_cuda* cuda, memoi_cuda_touch* touch,
                                        pthread_t* threads, int32_t n_most) {
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n_parts = touch->size_bytes / MEMOI_CUDA_TOUCH_BYTES + 1;
    int32_t n_wanted = cuda->desc.host_threads, n = 0;
    if (n_wanted == 0) n_wanted = (int32_t)memob_min(memob_max(n_processors, 1), 16);
    n_wanted = (int32_t)memob_min(memob_min(n_wanted, n_most), n_parts);
    touch->has_near_gpu = memoi_cuda_near_processors(cuda->desc.ordinal, &touch->near_gpu);
    while (n < n_wanted && !memob_thread_create(&threads[n], 0, memoi_cuda_touch_thread, touch))
        n++;
    return n;
}

/* Ends the registration of the block's first n_bytes. */
MEMOI void memoi_cuda_unregister(const memoi_cuda_block* block, int64_t n_bytes) {
    MEMO_ASSERT(n_bytes >= 0 && n_bytes <= block->mapped_bytes); /* 2 */
    for (int64_t at = 0; at < n_bytes; at += MEMOI_CUDA_PIECE_BYTES)
        (void)MEMOI_CUDA_CALL(cudaHostUnregister, (block->address + at), NULL);
}

/* All pieces, or none. */
MEMOI memo_status memoi_cuda_register(const memoi_cuda_block* block, memo_error* error) {
    int64_t at;
    memo_status status = MEMO_STATUS_OK;
    for (at = 0; at < block->mapped_bytes && !status; at += MEMOI_CUDA_PIECE_BYTES) {
        const int64_t n_bytes = memob_min(block->mapped_bytes - at, MEMOI_CUDA_PIECE_BYTES);
        status = MEMOI_CUDA_CALL(cudaHostRegister,
                                 (block->address + at, (size_t)n_bytes,
                                  cudaHostRegisterPortable | cudaHostRegisterMapped),
                                 error);
    }
    MEMO_ASSERT(status || at - block->mapped_bytes < MEMOI_CUDA_PIECE_BYTES); /* 2 */
    if (status) memoi_cuda_unregister(block, at - MEMOI_CUDA_PIECE_BYTES);
    return status;
}

/* Touches the pages of block and registers them.  Logs the progress once a second.  On failure the
 * mapping is undone. */
MEMOI memo_status memoi_cuda_pin(const memoi_cuda* cuda, const memoi_cuda_block* block,
                                 memo_error* error) {
    enum { THREADS_MAX = 64 };
    const double begin_s = memob_now_s();
    const memo_log* log = &cuda->desc.log;
    double told_s = begin_s, now_s;
    pthread_t threads[THREADS_MAX];
    int32_t n_threads;
    memoi_cuda_touch touch;
    char all[32], touched[32], message[160];
    memo_status status;

    memset(&touch, 0, sizeof touch);
    touch.address = block->address;
    touch.size_bytes = block->mapped_bytes;
    n_threads = memoi_cuda_start_touching(cuda, &touch, threads, THREADS_MAX);
    if (n_threads == 0) (void)memoi_cuda_touch_run(&touch);
    while (__atomic_load_n(&touch.touched_bytes, __ATOMIC_ACQUIRE) < touch.size_bytes &&
           !__atomic_load_n(&touch.is_refused, __ATOMIC_RELAXED)) {
        struct timespec nap = {0, 200000};
        nanosleep(&nap, NULL);
        if (!log->write || (now_s = memob_now_s()) - told_s < 1) continue;
        told_s = now_s;
        snprintf(message, sizeof message, "pinning %s: %s touched after %.1f s",
                 memob_bytes_text(all, (double)touch.size_bytes),
                 memob_bytes_text(touched,
                                  (double)__atomic_load_n(&touch.touched_bytes, __ATOMIC_RELAXED)),
                 now_s - begin_s);
        memoi_cuda_log(log, message);
    }
    for (int32_t k = 0; k < n_threads; k++) pthread_join(threads[k], NULL);
    MEMO_ASSERT(touch.is_refused || touch.touched_bytes == touch.size_bytes); /* 3 */

    status = touch.is_refused
                 ? memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                  "%lld bytes were mapped, but the system has no pages for them",
                                  (long long)block->mapped_bytes)
                 : memoi_cuda_register(block, error);
    if (status) munmap(block->address, (size_t)block->mapped_bytes);
    return status;
}

/* Fills block with registered memory; size_bytes is at least 2 MiB. */
MEMOI memo_status memoi_cuda_register_memory(const memoi_cuda* cuda, memoi_cuda_block* block,
                                             memo_error* error) {
    memo_status status;
    int without_pool = 0;
    block->mapped_bytes = memob_align_up(block->size_bytes, MEMOI_CUDA_HUGE_BYTES);
    do {
        block->address = memoi_cuda_map(block->mapped_bytes, cuda->desc.without_huge_pages,
                                        without_pool++, &block->kind);
        if (!block->address)
            return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "mmap of %lld bytes: %s",
                                  (long long)block->mapped_bytes, strerror(errno));
        /* A child of fork would have to copy the pages at once, since CUDA has pinned them. */
        (void)madvise(block->address, (size_t)block->mapped_bytes, MADV_DONTFORK);
        status = memoi_cuda_pin(cuda, block, error);
    } while (status == MEMO_STATUS_OUT_OF_HOST_MEMORY && block->kind == MEMO_CUDA_HOST_HUGETLB);
    return status;
}

/* cudaHostAlloc, for small requests and as a way out.  first: why registering failed. */
MEMOI memo_status memoi_cuda_host_by_cuda(memoi_cuda_block* block, const char* first,
                                          memo_error* error) {
    memo_status status =
        MEMOI_CUDA_CALL(cudaHostAlloc,
                        (&block->base, (size_t)block->size_bytes + MEMOB_DEVICE_ALIGNMENT,
                         (unsigned)cudaHostAllocPortable),
                        error);
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "cudaHostAlloc: cudaErrorMemoryAllocation, %lld bytes of pinned "
                              "memory" MEMOI_CUDA_PLACE "%s%.300s",
                              (long long)block->size_bytes, first[0] ? "; before that " : "",
                              first);
    if (status) return status;
    block->mapped_bytes = 0;
    block->address = memoi_cuda_aligned(block->base); /* CUDA promises no alignment */
    block->kind = MEMO_CUDA_HOST_CUDA;
    return MEMO_STATUS_OK;
}

/* Lists a new block of pinned memory.  From least_bytes on CUDA registers it, if it can. */
MEMOI memo_status memoi_cuda_host_block(memoi_cuda* cuda, int64_t size_bytes, int64_t least_bytes,
                                        memoi_cuda_block** result, memo_error* error) {
    memoi_cuda_block* block = (memoi_cuda_block*)memob_calloc(1, sizeof *block);
    memo_error first;
    memo_status status = MEMO_STATUS_UNSUPPORTED;
    if (!block) return memob_no_memory(error, "the list of pinned memory");
    block->size_bytes = size_bytes;
    first.message[0] = 0;
    if (size_bytes >= least_bytes && cuda->can_register)
        status = memoi_cuda_register_memory(cuda, block, &first);
    if (status && first.message[0]) {
        char message[600];
        snprintf(message, sizeof message, "pinned memory: %s; using cudaHostAlloc instead",
                 first.message);
        memoi_cuda_log(&cuda->desc.log, message);
    }
    if (status) status = memoi_cuda_host_by_cuda(block, first.message, error);
    if (status) {
        MEMO_FREE(block);
        return status;
    }
    MEMO_ASSERT(!block->base == (block->mapped_bytes > 0));               /* 1 */
    MEMO_ASSERT(block->base || block->size_bytes <= block->mapped_bytes); /* 1 */
    block->next = cuda->host_blocks;
    cuda->host_blocks = *result = block;
    cuda->n_cut_blocks += block->mapped_bytes > MEMOI_CUDA_PIECE_BYTES;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_cuda_host_alloc(void* context, int64_t size_bytes, void** address,
                                        memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block* block;
    double begin_s = memob_now_s();
    memo_error first;
    memo_status status = on.status;
    *address = NULL;
    if (!status)
        status =
            memoi_cuda_check_request(MEMO_STATUS_OUT_OF_HOST_MEMORY, "host", size_bytes,
                                     cuda->stats.host_bytes, cuda->desc.host_memory_bytes, error);
    if (status) return status;

    /* This process's share of the host. */
    if (cuda->desc.host_limit != MEMO_CUDA_HOST_IGNORE) {
        status = memoi_cuda_check_room(cuda, memoi_cuda_host_room(), size_bytes, &first);
        if (status && cuda->desc.host_limit == MEMO_CUDA_HOST_REFUSE)
            return memo_error_set(error, status, "%s", first.message);
        if (status) memoi_cuda_log(&cuda->desc.log, first.message);
    }

    /* Registered memory, or CUDA's. */
    status = memoi_cuda_host_block(cuda, size_bytes, MEMOI_CUDA_HUGE_BYTES, &block, error);
    if (status) return status;
    memoi_cuda_count(size_bytes, &cuda->stats.host_bytes, &cuda->stats.host_peak_bytes);
    cuda->stats.host_kind = block->kind;
    cuda->stats.host_alloc_s = memob_now_s() - begin_s;
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more.  Memory of cudaHostAlloc is freed whether CUDA refuses or not.
 * Unregistering and unmapping do not wait for copies; if the device cannot be waited for, a copy
 * may still use the memory, so the block goes back to the list. */
MEMOI memo_status memoi_cuda_release_host(memoi_cuda* cuda, memoi_cuda_block* block,
                                          memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base)
        status = MEMOI_CUDA_CALL(cudaFreeHost, (block->base), error);
    else {
        status = MEMOI_CUDA_CALL(cudaDeviceSynchronize, (), error);
        if (status) {
            block->next = cuda->host_blocks;
            cuda->host_blocks = block;
            return status;
        }
        memoi_cuda_unregister(block, block->mapped_bytes);
        munmap(block->address, (size_t)block->mapped_bytes);
        cuda->n_cut_blocks -= block->mapped_bytes > MEMOI_CUDA_PIECE_BYTES;
        MEMO_ASSERT(cuda->n_cut_blocks >= 0); /* 4 */
    }
    memoi_cuda_count(-block->size_bytes, &cuda->stats.host_bytes, &cuda->stats.host_peak_bytes);
    MEMO_FREE(block);
    return status;
}

MEMOI memo_status memoi_cuda_host_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    return memoi_cuda_free(cuda, &cuda->host_blocks, "host", address, memoi_cuda_release_host,
                           error);
}
