/* vgg16.c - samples per second of vgg16, forward and backward, against its matrix products alone
 *
 *     bench/vgg16 [BATCH [THREADS [STEPS]]]        one JSON object on one line
 *
 * samples_per_s follows from the median time of a step. gemm_ms is the floor: the matrix products of
 * the Winograd convolutions alone, on as many threads. of_gemm is that floor over the time of a step.
 * direct_gemm_ms are the products of the same convolutions without Winograd. bench/torch_vgg16.py
 * compares all of this with PyTorch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "layers/matrix.h"
#include "model.h"

typedef struct options {
    int batch, threads, steps;
} options;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *times, int n) {
    qsort(times, (size_t)n, sizeof *times, compare);
    return times[n / 2];
}

/* ---- The floor ----------------------------------------------------------------------------------- */

/* One product of the network: [m][k] times [k][n], or with the first operand transposed. */
typedef struct shape {
    int m, n, k, across; /* across: the first operand is stored [k][m] */
} shape;

typedef struct floor_job {
    shape s;
    const real *a, *b;
    real *c; /* [2][m][n] */
} floor_job;

static void floor_task(const task *t) {
    const floor_job *job = t->job;
    const shape s = job->s;
    matrix a = s.across ? transposed(job->a, s.m) : plain(job->a, s.k);
    gemm(s.m, s.n, s.k, a, plain(job->b, s.n), 0, job->c + (t->index % 2) * (int64_t)s.m * s.n,
         s.n);
}

/* `products` products of [rows][in] and [in][out] and their two gradients, rows in tiles. */
static void run_products(const pass *p, floor_job *job, int products, int rows, int in, int out) {
    const int tile = rows > 256 ? 256 : rows, tasks = products * (rows / tile);
    const shape shapes[] = {{tile, out, in, 0}, {tile, in, out, 0}, {in, out, tile, 1}};
    for (int i = 0; i < 3; i++) {
        job->s = shapes[i];
        pass_run(p, tasks, 1, floor_task, job);
    }
}

/* All products of one step: 13 convolutions, by 3 x 3 patches or by Winograd's 16 planes of tiles. */
static void run_floor(const pass *p, floor_job *job, int batch, int direct) {
    static const int width[] = {3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512};
    static const int side[] = {32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2};
    for (int i = 0; i < 13; i++) {
        const int pixels = batch * side[i] * side[i];
        if (direct || i == 0)
            run_products(p, job, 1, pixels, 9 * width[i], width[i + 1]);
        else
            run_products(p, job, 16, pixels / 4, width[i], width[i + 1]);
    }
}

static double measure_floor(options o, int direct, double *times) {
    const size_t most = (size_t)9 * 512 * 512;
    const pass p = {.threads = o.threads}; /* of the pool, which the model keeps */
    real *memory = malloc(4 * most * sizeof *memory);
    if (!memory)
        return 0;
    for (size_t i = 0; i < 4 * most; i++)
        memory[i] = (real)(i % 13) * (real)0.1;
    floor_job job = {.a = memory, .b = memory + most, .c = memory + 2 * most};
    for (int i = -1; i < o.steps; i++) {
        double begin = seconds();
        run_floor(&p, &job, o.batch, direct);
        if (i >= 0)
            times[i] = seconds() - begin;
    }
    free(memory);
    return median(times, o.steps);
}

/* ---- The model ----------------------------------------------------------------------------------- */

static model_batch make_batch(const model *m, int count) {
    const int64_t n = (int64_t)count * m->kind->height * m->kind->width * m->kind->channels;
    real *images = malloc((size_t)n * sizeof *images);
    int32_t *labels = malloc((size_t)count * sizeof *labels);
    for (int64_t i = 0; images && i < n; i++)
        images[i] = (real)((i * 7919) % 1000) / 500 - 1;
    for (int i = 0; labels && i < count; i++)
        labels[i] = i % m->kind->classes;
    return (model_batch){.count = count, .images = images, .labels = labels};
}

/* Median times of forward and of the whole step. */
static int measure_steps(model *m, const model_batch *batch, options o, double *times,
                         double *forward, double *step) {
    double *forwards = times + o.steps;
    for (int i = -2; i < o.steps; i++) {
        double begin = seconds();
        if (model_forward(m, batch, NULL) != TW_OK)
            return 1;
        double middle = seconds();
        model_backward(m, NULL, NULL);
        if (i >= 0) {
            times[i] = seconds() - begin;
            forwards[i] = middle - begin;
        }
    }
    *step = median(times, o.steps);
    *forward = median(forwards, o.steps);
    return 0;
}

static int run(options o) {
    model *m;
    model_spec spec = {.name = "vgg16", .max_batch = o.batch, .seed = 1, .threads = o.threads};
    if (model_create(&m, &spec) != TW_OK) {
        fprintf(stderr, "vgg16: %s\n", tw_last_error());
        return 1;
    }
    model_batch batch = make_batch(m, o.batch);
    double *times = malloc(2 * (size_t)o.steps * sizeof *times);
    double forward = 0, step = 0;
    int status = !times || measure_steps(m, &batch, o, times, &forward, &step);
    if (status == 0) {
        double floor = measure_floor(o, 0, times), direct = measure_floor(o, 1, times);
        printf("{\"model\": \"vgg16\", \"batch\": %d, \"threads\": %d, \"samples_per_s\": %.2f, "
               "\"step_ms\": %.2f, \"forward_ms\": %.2f, \"gemm_ms\": %.2f, \"of_gemm\": %.3f, "
               "\"direct_gemm_ms\": %.2f}\n",
               o.batch, o.threads, o.batch / step, step * 1e3, forward * 1e3, floor * 1e3,
               floor / step, direct * 1e3);
    }
    free(times);
    free((void *)(uintptr_t)batch.images);
    free((void *)(uintptr_t)batch.labels);
    model_free(m);
    return status;
}

int main(int argc, char **argv) {
    options o = {.batch = argc > 1 ? atoi(argv[1]) : 32,
                 .threads = argc > 2 ? atoi(argv[2]) : 2,
                 .steps = argc > 3 ? atoi(argv[3]) : 9};
    if (o.batch < 1 || o.threads < 1 || o.steps < 1) {
        fprintf(stderr, "usage: vgg16 [BATCH [THREADS [STEPS]]], all at least 1\n");
        return 2;
    }
    return run(o);
}
