#pragma once
#include "memo/plan_validation.h"
#include "memo/arena.h"
/* ---- >>arena creation ---------------------------------------------------------------------------
 * Knows: a plan, the device, and the slots that follow from both.  Knows nothing of what is
 * requested when.
 *
 * 1. Events are in order, frees before mallocs of the same time, those of the body last.
 * 2. A bought wait is two steps with one event, of which the record is due first.
 * 3. Slots lie in the memory, at aligned addresses; `first` is the first slot at the address.
 * 4. Regions follow each other, and their sum is what a checked arena takes. */

MEMOI memo_status memoi_arena_check(const memo_arena_desc* desc, memo_error* error) {
    memo_status status;
    if (desc->device && (!desc->device->device_alloc || !desc->device->device_free))
        return MEMOB_INVALID(
            error, "memo_arena_desc.device: device_alloc or device_free is NULL; set both");
    if (desc->n_streams < 0 || (desc->n_streams && !desc->streams))
        return MEMOB_INVALID(error, "memo_arena_desc.n_streams: %d without streams; set both, or 0",
                             (int)desc->n_streams);
    if (!desc->plan == !desc->trace)
        return MEMOB_INVALID(error,
                             "memo_arena_desc: set either trace, to record, or plan, to replay");

    /* Recording: an empty trace. */
    if (desc->trace) {
        if (desc->memory && desc->device)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory: not used while recording on a device; set one");
        if (desc->trace->n_requests)
            return MEMOB_INVALID(
                error, "memo_arena_desc.trace: it already has %lld requests; pass an empty trace",
                (long long)desc->trace->n_requests);
        return MEMO_STATUS_OK;
    }

    /* Replay: memory, and a valid plan. */
    if (!desc->device && !desc->memory)
        return MEMOB_INVALID(
            error, "memo_arena_desc: device and memory are NULL; replay needs one of them");
    status = memo_plan_validate(desc->plan, error);
    for (int64_t i = 0; i < desc->plan->n_waits && !status; i++) {
        const memo_wait* wait = &desc->plan->waits[i];
        if (!desc->device || !desc->device->event_wait || !desc->streams ||
            memob_max(wait->from, wait->to) >= desc->n_streams)
            status = MEMOB_INVALID(error,
                                   "memo_arena_desc.streams: the plan buys a wait of stream %d for "
                                   "stream %d; pass both streams, and a device with events",
                                   (int)wait->to, (int)wait->from);
    }
    return status;
}

/* The order of requests and frees in replay, which follows from the lifetimes. */
MEMOI memo_status memoi_arena_events(memo_arena* arena, memo_error* error) {
    const memo_plan* plan = arena->plan;
    const int64_t n = arena->n_buffers;
    memob_keyed* list = MEMOB_ARRAY(&arena->arrays, memob_keyed, 2 * n + 1);
    arena->events = list;
    if (!list) return memob_no_memory(error, "an arena");

    /* Frees come first: lifetimes are half-open.  Persistent buffers are requested before
     * the body, and their frees are not planned: they may come at any time. */
    for (int64_t i = 0; i < n; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        const int is_persistent = buffer->memory_class == MEMO_CLASS_PERSISTENT;
        list[arena->n_events++] = memob_keyed_of(
            is_persistent ? memob_min(buffer->begin, plan->body_begin - 1) : buffer->begin, n + i);
        if (!is_persistent) list[arena->n_events++] = memob_keyed_of(buffer->end, i);
    }
    qsort(list, (size_t)arena->n_events, sizeof(memob_keyed), memob_keyed_compare);
    list[arena->n_events].index = n; /* behind the last: no free */

    /* Two requests of the body at one time would leave their order open. */
    for (int64_t i = 0; i < arena->n_events; i++) {
        const memob_keyed* event = &list[i];
        const int in_body = event->key >= plan->body_begin;
        if (in_body && i > 0 && event[-1].index >= n && event[-1].key == event->key)
            return MEMOB_INVALID(
                error,
                "buffers %lld and %lld begin at the same time (%lld), so their order of "
                "requests is ambiguous; replay a plan made by memo_plan_from_trace",
                (long long)(event[-1].index - n), (long long)(event->index - n),
                (long long)event->key);
        MEMO_ASSERT(i == 0 || memob_keyed_compare(event - 1, event) < 0); /* 1 */
        MEMO_ASSERT(in_body || i == arena->body_event);                   /* 1 */
        arena->body_event += !in_body;
    }
    return MEMO_STATUS_OK;
}

MEMOI int memoi_arena_compare_steps(const void* a, const void* b) {
    const memoi_step* x = (const memoi_step*)a;
    const memoi_step* y = (const memoi_step*)b;
    return x->at != y->at ? memob_compare(x->at, y->at) : x->is_wait - y->is_wait;
}

/* The waits that the plan buys, as steps between events. */
MEMOI memo_status memoi_arena_buy(memo_arena* arena, const memo_stream* streams,
                                  memo_error* error) {
    const memo_plan* plan = arena->plan;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    int64_t* place = MEMOB_ARRAY(&arrays, int64_t, 2 * arena->n_buffers); /* of an event's index */
    memo_status status = MEMO_STATUS_OK;
    arena->steps = MEMOB_ARRAY(&arena->arrays, memoi_step, 2 * plan->n_waits);
    if (!place || !arena->steps) status = memob_no_memory(error, "an arena");
    for (int64_t i = 0; i < arena->n_events && !status; i++) place[arena->events[i].index] = i;

    /* A wait is two steps: an event is recorded after the free, and awaited before the request. */
    for (int64_t i = 0; i < plan->n_waits && !status; i++) {
        const memo_wait* wait = &plan->waits[i];
        const int64_t requested = arena->n_buffers + wait->requested;
        memoi_step record = {place[wait->freed] + 1, 0, streams[wait->from], NULL};
        memoi_step awaited = {place[requested], 1, streams[wait->to], NULL};
        status = memo_event_create_untimed(arena->device, &record.event, error);
        if (status) break;
        MEMO_ASSERT(record.at <= awaited.at && record.at > 0); /* 2 */
        awaited.event = record.event;
        arena->steps[arena->n_steps++] = record;
        arena->steps[arena->n_steps++] = awaited;
    }
    if (arena->steps)
        qsort(arena->steps, (size_t)arena->n_steps, sizeof(memoi_step), memoi_arena_compare_steps);
    MEMO_ASSERT(status || arena->n_steps == 2 * plan->n_waits); /* 2 */
    memob_arrays_free(&arrays);
    return status;
}

MEMOI memo_status memoi_arena_slots(memo_arena* arena, memo_error* error) {
    const memo_plan* plan = arena->plan;
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0;
    arena->slots = MEMOB_ARRAY(&arena->arrays, memoi_slot, plan->n_buffers);
    if (!arena->slots) return memob_no_memory(error, "an arena");

    for (int64_t i = 0; i < plan->n_buffers; i++) {
        memoi_slot* slot = &arena->slots[i];
        slot->size_bytes = plan->buffers[i].size_bytes;
        /* A request without bytes gets an address that no other request has: the address of its
         * slot. */
        slot->address =
            slot->size_bytes ? arena->memory + plan->buffers[i].offset_bytes : (char*)slot;
        if (slot->size_bytes && arena->is_checked) {
            memoi_region* r = &arena->regions[i];
            slot->address = r->begin = arena->memory + at;
            at += r->room_bytes;
            status = memob_probe_sweep(&arena->probe, r->begin, r->room_bytes, 1, NULL, error);
            if (status) return status;
        }

        MEMO_ASSERT(arena->is_checked || /* 3 */
                    plan->buffers[i].offset_bytes + slot->size_bytes <= arena->reserved_bytes);
        MEMO_ASSERT(
            !slot->size_bytes || /* 3 */
            (uintptr_t)slot->address %
                    (uintptr_t)memob_max(plan->alignment_bytes, plan->buffers[i].alignment_bytes) ==
                0);
        slot->first = memob_map_get(&arena->addresses, memoi_arena_address_key(slot->address));
        MEMO_ASSERT(slot->first < i && /* 3 */
                    (slot->first < 0 || arena->slots[slot->first].address == slot->address));
        if (slot->first >= 0) continue;
        slot->first = i;
        if (!memob_map_put(&arena->addresses, memoi_arena_address_key(slot->address), i))
            return memob_no_memory(error, "an arena");
    }
    MEMO_ASSERT(!arena->is_checked || at == arena->reserved_bytes); /* 4 */
    return MEMO_STATUS_OK;
}

/* Sizes of regions, which follow each other.  Returns their sum. */
MEMOI int64_t memoi_arena_size_regions(memo_arena* arena, int64_t alignment_bytes) {
    int64_t sum = 0;
    for (int64_t i = 0; i < arena->n_buffers; i++) {
        const int64_t room = memoi_arena_room(arena->plan->buffers[i].size_bytes, alignment_bytes);
        arena->regions[i].room_bytes = memob_min(room, MEMOB_BYTES_MAX - sum);
        sum += arena->regions[i].room_bytes;
    }
    return sum;
}

MEMOI memo_status memoi_arena_take_memory(memo_arena* arena, const memo_arena_desc* desc,
                                          memo_error* error) {
    const memo_device* device = desc->device;
    const char* what = arena->is_checked ? "a checked arena" : "the plan";
    int64_t needed = arena->plan->peak_bytes, alignment = arena->plan->alignment_bytes;
    memo_error reason;
    memo_status status;
    char name[32];
    for (int64_t i = 0; i < arena->plan->n_buffers; i++)
        alignment = memob_max(alignment, arena->plan->buffers[i].alignment_bytes);
    if (arena->is_checked)
        needed = memoi_arena_size_regions(arena, memob_max(alignment, MEMOB_DEVICE_ALIGNMENT));
    arena->reserved_bytes = needed;

    /* The caller's memory must suffice. */
    if (arena->memory) {
        if (desc->memory_bytes < needed)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory_bytes: too small (%lld); %s needs %lld bytes",
                (long long)desc->memory_bytes, what, (long long)needed);
        if ((uintptr_t)desc->memory % (uintptr_t)alignment)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory: not aligned (%p); the plan needs %lld bytes",
                desc->memory, (long long)alignment);
        return MEMO_STATUS_OK;
    }

    /* The device's memory, with room to align it. */
    if (needed == 0) return MEMO_STATUS_OK;
    if (alignment > MEMOB_DEVICE_ALIGNMENT) needed += alignment;
    reason.message[0] = 0;
    status = memo_device_alloc(device, needed, &arena->own_memory, &reason);
    if (status) {
        int64_t free_bytes = -1, total_bytes = 0;
        char free_name[32], there[96] = "";
        arena->own_memory = NULL;
        /* Free bytes are stated only if they explain the failure: a device without a capacity does
         * not know how much memory the machine has. */
        if (device->memory_info && !memo_memory_info(device, &free_bytes, &total_bytes, NULL) &&
            free_bytes < needed)
            snprintf(there, sizeof there, ", %s (%lld bytes) are free",
                     memob_bytes_text(free_name, (double)free_bytes), (long long)free_bytes);
        return memo_error_set(error, status, "%s needs %s (%lld bytes) in one block%s: %s", what,
                              memob_bytes_text(name, (double)needed), (long long)needed, there,
                              reason.message);
    }

    arena->memory = (char*)arena->own_memory;
    if ((uintptr_t)arena->memory % (uintptr_t)alignment)
        arena->memory += (uintptr_t)alignment - (uintptr_t)arena->memory % (uintptr_t)alignment;
    return MEMO_STATUS_OK;
}

/* With a plan the arena has memory, slots and, if the plan buys waits, events.  What is made of an
 * arena that fails is given back by memo_arena_destroy. */
memo_status memo_arena_create(const memo_arena_desc* desc, memo_arena** arena, memo_error* error) {
    memo_arena* made;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    *arena = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_arena_check(desc, error);
    if (status) return status;
    made = (memo_arena*)memob_calloc(1, sizeof(memo_arena));
    if (!made) return memob_no_memory(error, "an arena");

    made->device = desc->device;
    made->plan = desc->plan;
    made->trace = desc->trace;
    made->memory = (char*)desc->memory;
    made->memory_bytes = desc->memory_bytes;
    made->n_buffers = desc->plan ? desc->plan->n_buffers : 0;
    made->is_checked = desc->is_checked && (desc->plan || desc->device);
    made->dry_address = made->dry_address_begin = MEMOI_DRY_ADDRESS;

    if (made->is_checked)
        status = memob_probe_create(&made->probe, desc->device, "memo_arena_desc.device",
                                    desc->streams, desc->n_streams, error);
    if (made->is_checked && made->plan && !status) {
        made->regions = MEMOB_ARRAY(&made->arrays, memoi_region, made->n_buffers);
        if (!made->regions) status = memob_no_memory(error, "an arena");
    }
    if (made->plan && !status) {
        status = memoi_arena_events(made, error);
        if (!status) status = memoi_arena_take_memory(made, desc, error);
        if (!status) status = memoi_arena_slots(made, error);
        if (!status && made->plan->n_waits > 0)
            status = memoi_arena_buy(made, desc->streams, error);
    }

    if (status)
        memo_arena_destroy(made);
    else
        *arena = made;
    return status;
}

void memo_arena_destroy(memo_arena* arena) {
    if (!arena) return;
    (void)memoi_arena_blocks_drop(arena, 0, NULL);
    for (int64_t i = 0; i < arena->n_steps; i++)
        if (arena->steps[i].is_wait) memo_event_destroy(arena->device, arena->steps[i].event, NULL);
    if (arena->own_memory) memo_device_free(arena->device, arena->own_memory, NULL);
    memob_probe_destroy(&arena->probe);
    if (!arena->plan) MEMO_FREE(arena->regions);
    memob_map_free(&arena->blocks.index);
    memob_map_free(&arena->addresses);
    MEMO_FREE(arena->blocks.list);
    memob_arrays_free(&arena->arrays);
    MEMO_FREE(arena);
}
