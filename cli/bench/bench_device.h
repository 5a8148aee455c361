/* bench_device.h - the device that a benchmark runs on: this machine's CPU, or a GPU
 *
 * A device holds the vectors that are timed over and has the clock that times them. The rest of
 * `thinwire bench select` (making gradients, the loop over steps, the check) knows neither: it
 * uploads a gradient, times work, and downloads results.
 *
 * `thinwire bench allreduce` has a device for every rank, with n 0: it uses copies of the host's
 * vectors, and the clock of the host, as tw_allreduce returns when all is done.
 */
#ifndef CLI_BENCH_DEVICE_H
#define CLI_BENCH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/gradients.h"
#include "thinwire.h"

typedef struct bench_device bench_device;

/* Part of what is timed. Returns STATUS_OK, or reports the error. */
typedef int (*bench_device_work)(void *context);

/* Functions return STATUS_OK, or report the error. */
typedef struct bench_device_kind {
    const char *name; /* as --device has it */

    /* Fill in the device, whose kind, n, type and threads are set. After an error nothing is left
     * to close. */
    int (*open)(bench_device *device);
    void (*close)(bench_device *device);

    /* Bytes that selectors or groups may take. NULL: no need to ask, as creating one that is too
     * large fails. */
    size_t (*available)(void);

    /* Memory of the device for bytes of the host's: on the CPU the host's own. Unmap it before
     * close; NULL is fine. */
    int (*map)(bench_device *device, void *host, size_t bytes, void **mapped);
    void (*unmap)(bench_device *device, void *mapped);

    /* Copy bytes from the host to the device, or back. */
    int (*upload)(bench_device *device, void *mapped, const void *from, size_t bytes);
    int (*download)(bench_device *device, void *to, const void *mapped, size_t bytes);

    /* A gradient of the host's on the device; *uploaded is valid until the next. */
    int (*upload_gradient)(bench_device *device, const gradient *made, gradient *uploaded);

    /* The bare pass e += g over a vector e of the device's own, with adamw also m += g and v += g;
     * these vectors set to zero. */
    int (*bare_pass)(bench_device *device, const gradient *uploaded);
    int (*bare_clear)(bench_device *device);

    /* Do works[count] in order and wait until they are done; us[count] are their times. Where work
     * is only queued, us[0] is the time of all of them and the others are 0. */
    int (*time)(bench_device *device, const bench_device_work *works, int count, void *context,
                double *us);

    /* Queues work that takes a while, so that what the host prepares meanwhile does not count for what
     * comes after it, as in training. NULL: nothing is queued on this device. */
    int (*keep_busy)(bench_device *device);
} bench_device_kind;

struct bench_device {
    const bench_device_kind *kind;
    int64_t n;        /* elements; 0: upload_gradient, bare_pass and time will not be used */
    int type;         /* tw_type of the gradients */
    bool adamw;       /* the bare pass goes over e, m and v */
    int threads;      /* as in tw_select_params; once open, how many: 0 on a GPU */
    const char *arch; /* for reports: the kernels' name, or "cuda" */
    char name[256];   /* for reports: "cpu", or the GPU's name */
    void *stream;     /* for tw_select_params */
    void *own;        /* the kind's */
};

/* The kinds by position, in the order of tw_device; NULL past the last one. */
const bench_device_kind *bench_device_at(int position);
const char *bench_device_name(int position);

extern const bench_device_kind bench_device_cpu;
extern const bench_device_kind bench_device_cuda; /* cannot be opened where the build has no CUDA */

/* Whether the library takes a selector of this size on the device at all: to be asked before data
 * are made or ranks started. Returns a status. */
int bench_device_check(int position, int64_t n, int64_t threads);

/* A copy of a selection: the library's own arrays end with its next call. */
typedef struct selection_copy {
    int64_t count;
    int32_t *idx; /* [count] */
    float *val;   /* [count] */
} selection_copy;

/* Replace what copy holds by what lies on the device. memory_text is the error without memory. */
int bench_device_copy(bench_device *device, const tw_sparse *sparse, selection_copy *copy,
                      const char *memory_text);
void selection_copy_free(selection_copy *copy);

#endif
