/* queues.h - what streams and events of fake_cuda.cpp consist of: a stream is a queue, and an event
 * that is recorded is a record.  There are two kinds of queues, for three modes:
 *   at once  turns: a call runs its operation, and whatever can go on
 *   late     turns: an operation runs when it is waited for; what nobody waits for runs last
 *   strict   threads: each queue has one.  Before each operation comes a random delay, copies take
 *            time, and what changes memory of a copy under way is a race, which fails the program
 *
 * Environment: FAKE_CUDA_MODE=late|strict.  In strict mode:
 *   STRICT_SEED=n      the delays' seed (1).  It fixes what is drawn, not what the scheduler makes
 *                      of it: a failure comes back in most runs, not in all
 *   STRICT_SCALE=x     delays are x times as long (1); 0: none
 *   STRICT_QUEUES=n    streams share n hardware queues (0: each has its own)
 *   STRICT_FAIL_OP=k   operation k meets an illegal address: from then on every call returns it
 *   STRICT_HANG_S=s    "HANG" and abort() after s seconds in which no operation began (60)
 *   STRICT_QUIET=1     no line at the end, unless there are races
 *   STRICT_ABORT=1     abort() at the first race, for a debugger */
#ifndef QUEUES_H
#define QUEUES_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Calls take turns; threads of strict queues do not take part. */
static std::recursive_mutex everything;
/* The error that every call returns. */
static std::atomic<cudaError_t> broken{cudaSuccess};

enum fake_mode { AT_ONCE, LATE, STRICT };
static fake_mode mode_of_environment(void) {
    const char* name = getenv("FAKE_CUDA_MODE");
    if (!name) return AT_ONCE;
    if (strcmp(name, "late") && strcmp(name, "strict")) {
        fprintf(stderr, "FAKE_CUDA_MODE: unknown (%s); late or strict would work\n", name);
        exit(2);
    }
    return *name == 'l' ? LATE : STRICT;
}
static fake_mode stream_mode = mode_of_environment();

/* --- the interface --- */

struct queue {
    virtual ~queue() {}
    /* An item that returns false is run again, and the items behind it wait. */
    virtual void push(std::function<bool()> item) = 0;
    virtual size_t n_pushed() = 0;
    /* As far as nothing has to be waited for; are the first n items done? */
    virtual bool advance(size_t n) = 0;
    /* Does the program know that n items are done?  No: it has asked, and may know the next time. */
    virtual bool ask(size_t n) = 0;
    /* The program knows what is done. */
    virtual void tell() {}
    /* Until it is worth to look again whether n items are done; n_looks: how often that was. */
    virtual void pause(size_t n, int n_looks) = 0;
    virtual void end() {} /* no item follows */
};

/* What a wait for an event waits for: the latest record at the moment of the wait.  A later record
 * changes no wait that came before it. */
struct record {
    std::shared_ptr<queue> work;
    size_t n;             /* done when so many items of work are */
    struct timespec time; /* when the stream came to it, not when the call was made */
};
static std::shared_ptr<record> push_record(const std::shared_ptr<queue>& work) {
    const std::shared_ptr<record> made(new record{work, work->n_pushed() + 1, {}});
    work->push([=] { return clock_gettime(CLOCK_MONOTONIC, &made->time) == 0; });
    return made;
}

/* --- turns --- */

static const std::thread::id main_thread = std::this_thread::get_id();

struct turns_queue : queue {
    std::deque<std::function<bool()>> items; /* that are not done */
    size_t n_done = 0, n_known = 0;
    static size_t n_waiting; /* items of all queues */
    void push(std::function<bool()> item) override {
        if (stream_mode == AT_ONCE && items.empty() && item()) {
            n_done++;
        } else {
            items.push_back(item);
            n_waiting++;
        }
    }
    size_t n_pushed() override { return n_done + items.size(); }
    bool advance(size_t n) override {
        while (n_done < n) {
            const std::function<bool()> next = items.front();
            if (!next()) return false;
            items.pop_front();
            n_waiting--;
            n_done++;
        }
        return true;
    }
    /* A watchdog must not run late operations: one may wait for a rank that waits for this one. */
    bool ask(size_t n) override {
        if (n <= n_known) return true;
        if (stream_mode == LATE && std::this_thread::get_id() != main_thread) return n <= n_done;
        if (advance(n)) n_known = n;
        return false;
    }
    void tell() override { n_known = n_done; }
    /* A long wait looks seldom: ranks that wait for others would take the processors from them. */
    void pause(size_t, int n_looks) override { usleep(n_looks < 20 ? 50 : 500); }
};

size_t turns_queue::n_waiting;

/* --- strict: settings, and a line at the end --- */

static double strict_setting(const char* name, double otherwise) {
    const char* value = getenv(name);
    return value ? atof(value) : otherwise;
}
static const unsigned strict_seed = (unsigned)strict_setting("STRICT_SEED", 1);
static const double strict_scale = strict_setting("STRICT_SCALE", 1);
static const int strict_hang_s = (int)strict_setting("STRICT_HANG_S", 60);
static const long strict_fail_op = (long)strict_setting("STRICT_FAIL_OP", 0);

static struct { std::atomic<long> operations{0}, copies{0}, races{0}; } strict_count;
static void strict_report(void) {
    const long races = strict_count.races;
    if (stream_mode != STRICT || (getenv("STRICT_QUIET") && !races)) return;
    fprintf(stderr, "# strict, seed %u: %ld operations, %ld copies watched, %ld races\n",
            strict_seed, strict_count.operations.load(), strict_count.copies.load(), races);
    fflush(NULL);
    if (races) _exit(99);
}
static const int strict_reports = atexit(strict_report);

static void strict_race(const char* what, const void* at, size_t n_bytes) {
    strict_count.races++;
    fprintf(stderr, "# strict: RACE: %s (%zu bytes at %p)\n", what, n_bytes, at);
    if (getenv("STRICT_ABORT")) abort();
}

/* --- strict: delays --- */

static uint64_t strict_draw(void) {
    static std::atomic<uint64_t> n_threads{0};
    static thread_local uint64_t x =
        ((uint64_t)strict_seed << 32) ^ (0x9e3779b97f4a7c15ull * ++n_threads);
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}
/* Of 100 operations, 60 start at once, 30 within 60 us, 8 within 500 us and 2 within 4 ms. */
static void strict_delay(void) {
    const uint64_t draw = strict_draw(), percentile = draw % 100;
    const uint64_t within_us = percentile < 60   ? 0
                               : percentile < 90 ? 60
                               : percentile < 98 ? 500
                                                 : 4000;
    const double us = within_us ? strict_scale * (double)(draw / 128 % within_us) : 0;
    if (us >= 1)
        usleep((useconds_t)us);
    else if (draw & 1024)
        std::this_thread::yield();
}

/* --- strict: threads --- */

struct strict_queue : queue, std::enable_shared_from_this<strict_queue> {
    size_t n_pushed() override {
        std::lock_guard<std::mutex> lock(mutex);
        return n_pushed_;
    }
    bool advance(size_t n) override {
        std::lock_guard<std::mutex> lock(mutex);
        return n_done >= n;
    }
    bool ask(size_t n) override { return advance(n); }
    /* The thread starts at the first item. */
    void push(std::function<bool()> item) override {
        std::lock_guard<std::mutex> lock(mutex);
        items.push_back(item);
        n_pushed_++;
        if (!is_started) std::thread([self = shared_from_this()] { self->work(); }).detach();
        is_started = true;
        changed.notify_all();
    }
    /* The thread ends when the items do; nobody waits for them. */
    void end() override {
        std::lock_guard<std::mutex> lock(mutex);
        is_ending = true;
        changed.notify_all();
    }
    /* Until they are done.  It hangs if no queue has done anything for long. */
    void pause(size_t n, int) override {
        std::unique_lock<std::mutex> lock(mutex);
        for (long before = -1; before != strict_count.operations;) {
            before = strict_count.operations;
            if (changed.wait_for(lock, std::chrono::seconds(strict_hang_s),
                                 [&] { return n_done >= n; }))
                return;
        }
        fprintf(stderr, "# strict: HANG: %zu of %zu operations done, %zu are waited for\n", n_done,
                n_pushed_, n);
        abort();
    }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<bool()>> items;
    size_t n_pushed_ = 0, n_done = 0;
    bool is_started = false, is_ending = false;

    void work() {
        for (;;) {
            std::function<bool()> item;
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return !items.empty() || is_ending; });
                if (items.empty()) return;
                item.swap(items.front());
                items.pop_front();
            }
            strict_delay();
            if (++strict_count.operations == strict_fail_op) broken = cudaErrorIllegalAddress;
            while (!broken && !item()) usleep(30);
            item = nullptr;
            std::lock_guard<std::mutex> lock(mutex);
            n_done++;
            changed.notify_all();
        }
    }
};

/* --- strict: copies ---
 *
 * A copy takes time: its destination holds rubbish until its bytes come, half by half.  Meanwhile
 * nobody may change the source, or touch the destination. */

struct row {
    char* to;
    const char* from;
    size_t n_bytes;
};
static void strict_copy(const std::vector<row>& rows) {
    std::vector<std::vector<char>> bytes;
    strict_count.copies++;
    for (const row& each : rows) {
        bytes.emplace_back(each.from, each.from + each.n_bytes);
        memset(each.to, 0xee, each.n_bytes);
    }
    strict_delay();
    for (size_t k = 0; k < rows.size(); k++) {
        const size_t half = rows[k].n_bytes / 2;
        memcpy(rows[k].to, bytes[k].data(), half);
        if (k == rows.size() / 2) strict_delay();
        memcpy(rows[k].to + half, bytes[k].data() + half, rows[k].n_bytes - half);
    }
    strict_delay();
    for (size_t k = 0; k < rows.size(); k++) {
        const row& each = rows[k];
        if (memcmp(each.from, bytes[k].data(), each.n_bytes))
            strict_race("the source of a copy under way has changed", each.from, each.n_bytes);
        if (memcmp(each.to, bytes[k].data(), each.n_bytes))
            strict_race("the destination of a copy under way has changed", each.to, each.n_bytes);
    }
}
static void copy_now(const std::vector<row>& rows) {
    if (stream_mode == STRICT) return strict_copy(rows);
    for (const row& each : rows) memcpy(each.to, each.from, each.n_bytes);
}
static void fill_now(char* to, int value, size_t n_bytes) {
    if (stream_mode == STRICT) {
        const std::vector<char> bytes(n_bytes, (char)value);
        strict_copy({{to, bytes.data(), n_bytes}});
    } else {
        memset(to, value, n_bytes);
    }
}

#endif
