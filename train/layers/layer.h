/* layer.h - what a layer is given: a layout when it is created, a pass when it runs
 *
 * A model is built twice by the same code. The first time the layout only measures: it adds up what
 * layers ask for. Then the memory is allocated, and the second time every request gets its part of
 * it. So counting parameters needs no memory, and the count and the model cannot differ. While
 * measuring, pointers lead nowhere: a layer's create stores them and does not look behind.
 *
 * A layer's functions cut their work into tasks whose bounds depend on shapes alone. Threads take
 * the tasks in any order. So the number of threads changes the time and never a bit.
 */
#ifndef TRAIN_LAYER_H
#define TRAIN_LAYER_H

#include "base/memory.h"
#include "model.h"

/* ---- Creation ----------------------------------------------------------------------------------- */

/* One parameter tensor as its layer sees it. */
typedef struct param {
    int index; /* of model->tensors */
    int64_t n;
    real *value; /* [n] */
    real *grad;  /* [n] */
} param;

enum { LAYOUT_NAME = 48 }; /* bytes for a tensor's name, its end included */

typedef struct layout {
    model *m;                   /* its lists and blocks are filled; NULL: only measure */
    uint64_t seed;              /* of initial parameters */
    char (*names)[LAYOUT_NAME]; /* [ntensors + nstates] texts behind the tensors' names */
    tw__arena arena;            /* what layout_memory cuts up */
    int64_t n;                  /* parameters so far */
    int64_t nstate;             /* state so far */
    int ntensors, nstates;
    size_t scratch; /* the largest request of layout_scratch */
    size_t common;  /* the largest request of layout_common */
} layout;

/* Initial values of a parameter. All are uniform: their variance is what counts, and they need no
 * library function whose last bit differs between machines. */
typedef enum { INIT_ZERO, INIT_ONE, INIT_UNIFORM } init;

/* A tensor of n parameters named "block.part". bound: of INIT_UNIFORM, values in [-bound, bound).
 * Weight decay goes with INIT_UNIFORM. */
param layout_param(layout *to, const char *block, const char *part, int64_t n, init kind,
                   double bound);

/* The name of a layer within a block, as printf: name_part("%s.conv", block).text */
typedef struct part_name {
    char text[LAYOUT_NAME];
} part_name;
part_name name_part(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* n numbers of state, all `initial`. */
real *layout_state(layout *to, const char *block, const char *part, int64_t n, real initial);

/* Memory of the layer's own, on whole cache lines, zero at first. */
void *layout_memory(layout *to, int64_t count, size_t size);
real *layout_reals(layout *to, int64_t count);

/* Memory while one function of a layer runs: scratch for each thread, common for all threads. */
void layout_scratch(layout *to, size_t bytes);
void layout_common(layout *to, size_t bytes);

/* Bounds of uniform values with the variance 2 / inputs (He) and 2 / (inputs + outputs) (Xavier). */
double bound_he(int inputs);
double bound_xavier(int inputs, int outputs);

/* ---- Running ------------------------------------------------------------------------------------ */

/* One forward or backward pass through all layers. */
typedef struct pass {
    int threads;          /* to compute with, the caller's included */
    char *scratch;        /* [threads][scratch_bytes] */
    size_t scratch_bytes; /* a multiple of TW__ALIGNMENT */
    void *common;         /* as layout_common asked; free for the next layer on return */
    bool training;        /* batch norms: batch statistics instead of running ones */
    model_ready ready;    /* backward: whom to tell of final gradients, or NULL */
    void *context;        /* for ready */
} pass;

/* Gives a pass the threads, and the memory that a layout asked for beyond its arena. */
void pass_set_memory(pass *p, int threads, const layout *measured, char *memory);
size_t pass_bytes(int threads, const layout *measured);

/* The gradient of a parameter is final: layers say so as early as they can, last parameter first. */
static inline void pass_ready(const pass *p, const param *finished) {
    if (p->ready)
        p->ready(p->context, finished->index);
}

typedef struct range {
    int64_t begin, end; /* without end itself */
} range;

/* Chunk `index` of `total` items in chunks of `each`; and how many chunks there are. */
static inline range chunk(int64_t total, int64_t each, int64_t index) {
    int64_t begin = index * each;
    return (range){begin, begin + each < total ? begin + each : total};
}
static inline int chunks(int64_t total, int64_t each) {
    return (int)((total + each - 1) / each);
}

typedef struct task {
    const void *job;
    int index;
    range r;       /* chunk `index` of the items */
    void *scratch; /* of the thread that runs the task, good until it returns */
} task;

/* Calls run for each chunk of `each` of the `total` items, in any order, and returns when all are done.
 * The pool has one job at a time: while another model's runs, this one runs on its caller alone. */
void pass_run(const pass *p, int64_t total, int64_t each, void (*run)(const task *t),
              const void *job);

#endif
