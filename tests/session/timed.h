/* timed.h - a session whose functions only take time, on a device that writes down what is
 * enqueued: what a step takes by memo_schedule_simulate.
 *
 * Include after memo_plan.h, memo_look.h and owned.h. */
#ifndef TIMED_H
#define TIMED_H
#include "item_choices.h"

typedef struct timed {
    memo_session_desc* desc; /* its `user` is this */
    memo_profile times;
    int64_t copied_bytes[2]; /* in the last step of simulate_steps: to the host, to the device */
} timed;

static void take_time(const timed* t, double duration_s) {
    memo_op_desc op = {.name = "compute", .duration_s = duration_s};
    CHECK_OK(memo_annotate(t->desc->device, t->desc->compute_stream, &op, &error));
    if (t->desc->computes_on_host) /* the thread, which goes on afterwards */
        CHECK_OK(memo_stream_synchronize(t->desc->device, t->desc->compute_stream, &error));
}
static void take_layer(const timed* t, const memo_session* s, int32_t layer,
                       const double* times_s) {
    const memo_slice slice = memo_session_get_slice(s);
    take_time(t, times_s[t->desc->layer_kinds[layer]] * (double)(slice.end - slice.begin) /
                     (double)t->times.n_rows);
}

static void forward_takes(void* user, memo_session* s, int32_t layer) {
    take_layer((const timed*)user, s, layer, ((const timed*)user)->times.forward_s);
}
static void between_takes(void* user, MEMO_UNUSED memo_session* s) {
    take_time((const timed*)user, ((const timed*)user)->times.between_s);
}
static void loss_takes(void* user, memo_session* s) {
    if (memo_session_get_slice(s).end ==
        memo_session_get_batch(s).n_rows) /* the first slice of a backward */
        between_takes(user, s);
}
static void backward_takes(void* user, memo_session* s, int32_t layer) {
    take_layer((const timed*)user, s, layer, ((const timed*)user)->times.backward_s);
}
static void recompute_takes(void* user, MEMO_UNUSED memo_session* s, int32_t layer, int32_t tensor,
                            int64_t begin, int64_t end) {
    const timed* t = (const timed*)user;
    take_time(t, t->times.tensors[tensor].recompute_s_per_row[t->desc->layer_kinds[layer]] *
                     (double)(end - begin));
}
static void update_takes(void* user, memo_session* s, int32_t layer) {
    const timed* t = (const timed*)user;
    double n_bytes = 0;
    for (int32_t i = 0; i < t->desc->n_states; i++)
        if (t->desc->states[i].uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT) &&
            memo_session_get_state(s, layer, i))
            n_bytes += (double)t->desc->states[i].size_bytes;
    take_time(t, n_bytes * t->times.update_s_per_byte);
}

static memo_status fetch_zeros(MEMO_UNUSED void* user, MEMO_UNUSED int32_t layer,
                               MEMO_UNUSED int32_t state, MEMO_UNUSED int64_t at, void* to,
                               int64_t n_bytes, MEMO_UNUSED memo_error* e) {
    memset(to, 0, (size_t)n_bytes);
    return MEMO_STATUS_OK;
}

/* Random times of the desc's two kinds of layers; its functions take them. */
static void take_random_times(timed* t, memo_session_desc* d) {
    memo_profile* p = &t->times;
    const double rate = 3000 * (0.3 + 2 * memo_test_real());
    memset(t, 0, sizeof *t);
    t->desc = d;
    p->n_rows = d->slice_rows ? d->slice_rows : d->n_rows;
    p->n_kinds = 2;
    p->n_tensors = d->n_tensors;
    p->between_s = memo_test_real();
    p->update_s_per_byte = memo_test_int(0, 1) ? 1e-4 * memo_test_real() : 0;
    p->update_host_s_per_byte = 2e-4 * memo_test_real();
    if (d->fetch) p->fetch_s_per_byte = 3e-4 * memo_test_real();
    for (int k = 0; k < 2; k++) {
        p->forward_s[k] = memo_test_real();
        p->backward_s[k] = 2 * memo_test_real();
        p->copies[k].size_bytes = k ? 64000 : 1000;
        p->copies[k].out_s = 0.001 + (double)p->copies[k].size_bytes / rate;
        p->copies[k].back_s = 0.001 + (double)p->copies[k].size_bytes / (1.2 * rate);
    }
    for (int i = 0; i < d->n_tensors; i++) {
        const int is_fixed = !item_recomputes(d->tensors, i) || d->tensors[i].is;
        snprintf(p->tensors[i].name, sizeof p->tensors[i].name, "%s", d->tensors[i].name);
        for (int k = 0; k < 2; k++)
            p->tensors[i].recompute_s_per_row[k] = is_fixed ? -1 : 0.01 * memo_test_real();
    }
    p->file.size_bytes = 1000;
    p->file.out_s = 0.3 * memo_test_real() + 0.001;
    p->file.back_s = 0.3 * memo_test_real() + 0.001;
    d->user = t;
    d->computes_on_host = 0;
    d->forward = forward_takes;
    d->between = d->n_group ? NULL : between_takes;
    d->loss = d->n_group ? loss_takes : NULL;
    d->backward = backward_takes;
    d->recompute = recompute_takes;
    d->update = d->n_states ? update_takes : NULL;
    if (d->fetch) d->fetch = fetch_zeros;
}

static int64_t mark_time(const timed* t, memo_recorder* recorder, memo_schedule** schedule) {
    take_time(t, 0);
    CHECK_OK(memo_recorder_get_schedule(recorder, schedule, &error));
    return (*schedule)->n_ops - 1;
}

/* What the micro-batches of the last of four steps take, and its update if it is not fused. */
static MEMO_UNUSED void simulate_steps(timed* t, const memo_step_plan* plan, double* step_s,
                                       double* update_s) {
    memo_session_desc* d = t->desc;
    const memo_profile* p = &t->times;
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
    memo_schedule* schedule = NULL;
    int64_t marks[3] = {0, 0, 0};
    d->device = memo_recorder_get_device(recorder);
    d->compute_stream = new_stream(d->device, "compute");
    memo_session* s = session_of_plan(d, plan);
    for (int step = 0; step < 16 && s; step++) {
        marks[0] = marks[2];
        const int32_t n_all = d->micro_batches ? d->micro_batches : 1;
        const int32_t n = d->n_order ? d->n_order : n_all / plan->n_group;
        for (int32_t k = 0; k < n; k++) {
            memo_batch batch = {.more_follow = !d->n_order && k < n - 1};
            if (d->n_order) batch.turn = d->order[k];
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        marks[1] = mark_time(t, recorder, &schedule);
        if (d->n_states) CHECK_OK(memo_session_update(s, &error));
        marks[2] = mark_time(t, recorder, &schedule);
    }
    memo_recorder_pause(recorder);
    memo_session_destroy(s);
    memo_stream_destroy(host, d->compute_stream, NULL);

    time_copies(schedule, "to host", 1000 / (p->copies[0].out_s - 0.001), 0.001);
    time_copies(schedule, "to device", 1000 / (p->copies[0].back_s - 0.001), 0.001);
    time_copies(schedule, "to file", 1000 / p->file.out_s, 0);
    time_copies(schedule, "from file", 1000 / p->file.back_s, 0);
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        if (!strcmp(memo_schedule_op_name(schedule, i), "update on host"))
            schedule->ops[i].duration_s =
                p->update_host_s_per_byte * (double)schedule->ops[i].link_bytes;
        if (!strcmp(memo_schedule_op_name(schedule, i), "fetch"))
            schedule->ops[i].duration_s = p->fetch_s_per_byte * (double)schedule->ops[i].link_bytes;
    }
    t->copied_bytes[0] = t->copied_bytes[1] = 0;
    for (int64_t i = marks[0] + 1; i <= marks[2]; i++)
        for (int way = 0; way < 2; way++)
            if (!strcmp(memo_schedule_op_name(schedule, i), way ? "to device" : "to host"))
                t->copied_bytes[way] += schedule->ops[i].link_bytes;
    own_times* times = times_of(schedule);
    *step_s = times->end_s[marks[1]] - times->end_s[marks[0]];
    *update_s = times->end_s[marks[2]] - times->end_s[marks[1]];
}

#endif
