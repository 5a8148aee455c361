/* place_cpu.c - this machine's CPU: vectors lie where they were made */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "errors.h"
#include "place.h"
#include "thinwire.h"
#include "timer.h"

/* place.own is the sum of the bare pass, [n] floats; NULL for n 0. */
static int cpu_open(place *here) {
    here->own = here->n > 0 ? buffer_create(here->n, sizeof(float)) : NULL;
    if (here->own == NULL && here->n > 0) {
        return place_failure(here, "not enough memory for %" PRId64 " elements; try a smaller --n",
                             here->n);
    }
    here->arch = tw_kernels();
    here->threads = here->threads > 0 ? here->threads : tw_default_threads();
    snprintf(here->name, sizeof here->name, "cpu");
    return STATUS_OK;
}

static void cpu_close(place *here) {
    free(here->own);
    here->own = NULL;
}

static int cpu_mirror(place *here, void *host, size_t bytes, void **there) {
    (void)here, (void)bytes;
    *there = host;
    return STATUS_OK;
}

static void cpu_release(place *here, void *there) {
    (void)here, (void)there;
}

static int cpu_copy(place *here, void *to, const void *from, size_t bytes) {
    (void)here;
    if (to != from && bytes > 0)
        memcpy(to, from, bytes);
    return STATUS_OK;
}

static int cpu_bring(place *here, const gradient *made, gradient *there) {
    (void)here;
    *there = *made;
    return STATUS_OK;
}

static int cpu_bare_pass(place *here, const gradient *there) {
    int error = tw_accumulate(here->own, there->values, here->n, here->threads);
    return error == TW_OK ? STATUS_OK : place_library_failure(here, "timing the bare pass", error);
}

static int cpu_bare_clear(place *here) {
    memset(here->own, 0, (size_t)here->n * sizeof(float));
    return STATUS_OK;
}

static int cpu_time(place *here, const place_work *works, int count, void *context, double *us) {
    (void)here;
    int status = STATUS_OK;
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        int64_t begin = timer_ns();
        status = works[i](context);
        us[i] = timer_us_since(begin);
    }
    return status;
}

const place_kind place_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .room = buffer_available,
    .mirror = cpu_mirror,
    .release = cpu_release,
    .put = cpu_copy,
    .fetch = cpu_copy,
    .bring = cpu_bring,
    .bare_pass = cpu_bare_pass,
    .bare_clear = cpu_bare_clear,
    .time = cpu_time,
};
