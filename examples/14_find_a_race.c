/* 14_find_a_race.c - records a program of your own, in which one line announces each launch, and
 * checks its order.
 *
 * Stream `compute` fills a buffer and stream `copy` copies it to the host, twice.  A wait is
 * missing: `compute` fills the buffer again while `copy` may still read it.  memo checks the order,
 * not the result, so it finds the race even in a run with right results.  The lines are the same on
 * a GPU (memo_look.h, chapter 6).
 *
 * With an argument the first schedule is written to that file, for build/examples/check_schedule.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/14_find_a_race.c -o 14_find_a_race -lpthread -lm
 * Expected output:
 *     without the wait, 1 race: "fill" (operation 5, on compute) writes bytes 0..4096 of x that ...
 *     with the wait, 0 races
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include <stdio.h>

enum { N = 1024, BYTES = N * sizeof(float) };

typedef struct fill_args {
    float *x, value;
} fill_args;

static memo_status fill(void* args, memo_error* error) {
    const fill_args* a = (const fill_args*)args;
    (void)error;
    for (int i = 0; i < N; i++) a->x[i] = a->value;
    return MEMO_STATUS_OK;
}

/* d is the recorder's device; host runs the launches. */
static memo_status work(memo_device* host, memo_device* d, float** x, int with_wait,
                        memo_error* error) {
    memo_stream compute, copy;
    memo_event filled, copied;
    void *buffer, *result;
    if (memo_stream_create(d, "compute", 0, &compute, error) ||
        memo_stream_create(d, "copy", 0, &copy, error) || memo_event_create(d, &filled, error) ||
        memo_event_create(d, &copied, error) || memo_device_alloc(d, BYTES, &buffer, error) ||
        memo_host_alloc(d, 2 * BYTES, &result, error))
        return error->status;

    /* The buffer may be filled again only after the copy has read it. */
    *x = (float*)buffer;
    for (int k = 0; k < 2; k++) {
        fill_args args;
        args.x = *x;
        args.value = (float)k;
        if (k && with_wait && memo_event_wait(d, copied, compute, error)) return error->status;
        if (MEMO_ANNOTATE(d, compute, "fill", error, memo_writes(*x, BYTES)) ||
            memo_host_device_launch(host, compute, fill, &args, sizeof args, error) ||
            memo_event_record(d, filled, compute, error) ||
            memo_event_wait(d, filled, copy, error) ||
            memo_copy(d, copy, MEMO_COPY_TO_HOST, (char*)result + k * BYTES, *x, BYTES, error) ||
            memo_event_record(d, copied, copy, error))
            return error->status;
    }
    return memo_stream_synchronize(d, copy, error);
}

static memo_status find_races(int with_wait, const char* path, memo_error* error) {
    memo_host_device_desc host_desc = {0};
    memo_recorder_desc desc = {0};
    memo_device* host = NULL;
    memo_recorder* recorder = NULL;
    memo_schedule* schedule;
    memo_check* check = NULL;
    memo_range bytes;
    float* x = NULL;
    char why[512];
    memo_status status = memo_host_device_create(&host_desc, &host, error);

    /* The recorder passes everything on to the device. */
    desc.device = host;
    if (!status) status = memo_recorder_create(&desc, &recorder, error);
    if (!status) status = work(host, memo_recorder_get_device(recorder), &x, with_wait, error);
    if (!status) status = memo_recorder_get_schedule(recorder, &schedule, error);

    /* Names make the explanation readable. */
    if (!status) {
        bytes = memo_writes(x, BYTES).bytes;
        status = memo_schedule_name_bytes(schedule, bytes, "x", error);
    }
    if (!status && path) status = memo_schedule_write(schedule, path, error);

    if (!status) status = memo_schedule_check(schedule, &check, error);
    if (!status && check->n_races)
        printf("without the wait, %d race: %s\n", (int)check->n_races,
               memo_race_explain(schedule, check->races, why, sizeof why));
    else if (!status)
        printf("with the wait, 0 races\n");

    memo_check_destroy(check);
    memo_recorder_destroy(recorder);
    memo_host_device_destroy(host); /* frees what is still allocated, streams too */
    return status;
}

int main(int argc, char** argv) {
    memo_error error;
    memo_status status;
    if (argc > 2 || (argc > 1 && *argv[1] == '-')) {
        fprintf(stderr, "usage: 14_find_a_race [FILE]   FILE: for the first schedule\n");
        return 2;
    }
    status = find_races(0, argc > 1 ? argv[1] : NULL, &error);
    if (!status) status = find_races(1, NULL, &error);
    if (status) fprintf(stderr, "14_find_a_race: %s\n", error.message);
    return status ? 1 : 0;
}
