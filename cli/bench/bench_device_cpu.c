/* bench_device_cpu.c - the table of devices, and its first row, the CPU: vectors lie where they
 * were made */
#include "bench/bench_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli.h"
#include "vector.h"

static int64_t sums_of(const bench_device *device) {
    return device->n * (device->adamw ? 3 : 1);
}

/* device->own is the sums of the bare pass: e[n], and with adamw m[n] and v[n]; NULL for n 0. */
static int cpu_open(bench_device *device) {
    device->own = device->n > 0 ? vector_alloc(sums_of(device), sizeof(float)) : NULL;
    if (device->own == NULL && device->n > 0) {
        return error_report("not enough memory for %" PRId64 " elements; try a smaller --n",
                            device->n);
    }
    device->arch = tw_kernels();
    device->threads = device->threads > 0 ? device->threads : tw_default_threads();
    snprintf(device->name, sizeof device->name, "cpu");
    return STATUS_OK;
}

static void cpu_close(bench_device *device) {
    free(device->own);
    device->own = NULL;
}

static int cpu_map(bench_device *device, void *host, size_t bytes, void **mapped) {
    (void)device, (void)bytes;
    *mapped = host;
    return STATUS_OK;
}

static void cpu_unmap(bench_device *device, void *mapped) {
    (void)device, (void)mapped;
}

static int cpu_copy(bench_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    if (to != from && bytes > 0)
        memcpy(to, from, bytes);
    return STATUS_OK;
}

static int cpu_upload_gradient(bench_device *device, const gradient *made, gradient *uploaded) {
    (void)device;
    *uploaded = *made;
    return STATUS_OK;
}

static int cpu_bare_pass(bench_device *device, const gradient *uploaded) {
    float *e = device->own, *m = e + device->n, *v = m + device->n;
    int status = device->adamw
                     ? tw_accumulate_adamw(e, m, v, uploaded->values, device->n, device->threads)
                     : tw_accumulate(e, uploaded->values, device->n, device->threads);
    return error_check("timing the bare pass", status);
}

static int cpu_bare_clear(bench_device *device) {
    memset(device->own, 0, (size_t)sums_of(device) * sizeof(float));
    return STATUS_OK;
}

static int cpu_time(bench_device *device, const bench_device_work *works, int count, void *context,
                    double *us) {
    (void)device;
    for (int i = 0; i < count; i++) {
        int64_t begin = tw__clock();
        TW_TRY(works[i](context));
        us[i] = (double)(tw__clock() - begin) * 1e-3;
    }
    return STATUS_OK;
}

const bench_device_kind bench_device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .available = vector_available,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .upload = cpu_copy,
    .download = cpu_copy,
    .upload_gradient = cpu_upload_gradient,
    .bare_pass = cpu_bare_pass,
    .bare_clear = cpu_bare_clear,
    .time = cpu_time,
};

#ifndef TW_HAVE_CUDA
static int refuse(bench_device *device) {
    (void)device;
    TW_TRY(error_check("preparing", tw_cuda_device(0, NULL)));
    return error_report("this command was built without CUDA");
}

const bench_device_kind bench_device_cuda = {.name = "cuda", .open = refuse};
#endif

static const bench_device_kind *const kinds[] = {&bench_device_cpu, &bench_device_cuda};

const bench_device_kind *bench_device_at(int position) {
    return position >= 0 && position < COUNT_OF(kinds) ? kinds[position] : NULL;
}

const char *bench_device_name(int position) {
    const bench_device_kind *kind = bench_device_at(position);
    return kind != NULL ? kind->name : NULL;
}

int bench_device_check(int position, int64_t n, int64_t threads) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_memory memory;
    params.k = 1;
    params.threads = (int)threads;
    params.device = position;
    return error_check("preparing", tw_selector_memory(n, &params, &memory));
}

void selection_copy_free(selection_copy *copy) {
    free(copy->idx);
    free(copy->val);
    *copy = (selection_copy){0};
}

int bench_device_copy(bench_device *device, const tw_sparse *sparse, selection_copy *copy,
                      const char *memory_text) {
    size_t count = (size_t)sparse->count;
    selection_copy_free(copy);
    copy->count = sparse->count;
    copy->idx = malloc((count + 1) * sizeof *copy->idx);
    copy->val = malloc((count + 1) * sizeof *copy->val);
    if (copy->idx == NULL || copy->val == NULL)
        return error_report("%s", memory_text);
    TW_TRY(device->kind->download(device, copy->idx, sparse->idx, count * sizeof *copy->idx));
    return device->kind->download(device, copy->val, sparse->val, count * sizeof *copy->val);
}
