/* backend_cpu.c - the CPU's row: plain memory, no streams, work done when a call returns */
#include "backend/cpu/cpu_selector.h"
#include "backend/cpu/lists.h"

#include <stdlib.h>

/* ---- devices and order: there is one device, and nothing is ever queued */

static int check_device(int ordinal) {
    (void)ordinal;
    return TW_OK;
}

static int check_pointer(const void *pointer, const char *field, int ordinal, size_t element) {
    (void)pointer, (void)field, (void)ordinal, (void)element;
    return TW_OK;
}

static int stream_create(tw__stream **stream, int ordinal) {
    (void)ordinal;
    *stream = NULL;
    return TW_OK;
}

static void stream_free(tw__stream *stream) {
    (void)stream;
}

static int stream_wait(tw__stream *stream) {
    (void)stream;
    return TW_OK;
}

static int event_record(tw__stream *stream, void *native, void **event) {
    (void)stream, (void)native, (void)event;
    return TW_OK;
}

static int stream_follow(tw__stream *stream, void *event) {
    (void)stream, (void)event;
    return TW_OK;
}

static void event_free(void *event) {
    (void)event;
}

static int batch_seconds(tw__stream *stream, double *seconds) {
    (void)stream, (void)seconds;
    return TW_OK;
}

/* ---- memory */

static int alloc(tw__stream *stream, void **memory, size_t bytes) {
    (void)stream;
    *memory = tw__reserve(bytes);
    return *memory != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", bytes);
}

static void *host_alloc(tw__stream *stream, size_t bytes) {
    (void)stream;
    return tw__reserve(bytes);
}

static int copy(tw__stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
    return TW_OK;
}

/* ---- lists */

static size_t lists_memory(int64_t entries, int runs) {
    (void)entries;
    return tw__footprint(tw__cpu_lists_memory(runs));
}

static int lists_create(void **context, tw__stream *stream, int64_t entries, int runs) {
    const tw__kernels *kernels = NULL;
    (void)stream, (void)entries;
    TW_TRY(tw__kernels_choose(&kernels));
    *context = tw__cpu_lists_create(kernels, runs);
    return *context != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory to sum %d lists", runs);
}

const tw__backend tw__backend_cpu = {
    .name = "cpu",
    .device = TW_CPU,
    .coded_momentum = 1,
    .check_device = check_device,
    .check_pointer = check_pointer,
    .stream_create = stream_create,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_record = event_record,
    .stream_follow = stream_follow,
    .event_free = event_free,
    .batch_begin = stream_wait,
    .batch_end = stream_wait,
    .batch_seconds = batch_seconds,
    .alloc = alloc,
    .free = free,
    .host_alloc = host_alloc,
    .host_free = free,
    .copy = copy,
    .selector_memory = tw__cpu_selector_memory,
    .selector_create = tw__cpu_selector_create,
    .selector_free = tw__cpu_selector_free,
    .run = tw__cpu_selector_run,
    .wait = tw__cpu_selector_wait,
    .info = tw__cpu_selector_info,
    .fold = tw__cpu_selector_fold,
    .commit = tw__cpu_selector_commit,
    .undo = tw__cpu_selector_undo,
    .apply = tw__cpu_selector_apply,
    .clear = tw__cpu_selector_clear,
    .pack = tw__cpu_selector_pack,
    .gather = tw__cpu_selector_gather,
    .peek = tw__cpu_selector_peek,
    .get = tw__cpu_selector_get,
    .set = tw__cpu_selector_set,
    .get_learned = tw__cpu_selector_get_learned,
    .set_learned = tw__cpu_selector_set_learned,
    .reset = tw__cpu_selector_reset,
    .lists = &tw__lists_cpu,
    .codec = &tw__wire_cpu,
    .dense = &tw__dense_cpu,
    .lists_memory = lists_memory,
    .lists_create = lists_create,
    .lists_free = free,
};
