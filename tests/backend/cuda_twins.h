/* cuda_twins.h - two selectors with the same parameters, on the CPU and on a GPU */
#ifndef CUDA_TWINS_H
#define CUDA_TWINS_H

#include <cuda_runtime_api.h>

#include "cuda_ranks.h"

typedef struct twins {
    int64_t n;
    tw_select_params params;
    tw_selector *cpu, *cuda;
    float *values;  /* [n] */
    char *typed;    /* [n] of the type, with `shift` elements before it */
    char *on_gpu;   /* the same */
    int64_t shift;  /* elements */
    tw_sparse mine; /* selection on the CPU */
    int32_t *idx;   /* [n]: the GPU's, copied */
    float *val;     /* [n] */
} twins;

void *gpu_alloc(int64_t bytes);

/* The gradient begins `shift` elements behind an aligned address. */
void twins_open(twins *t, int64_t n, const tw_select_params *params, int64_t shift);
void twins_close(twins *t);

char *gradient_cpu(const twins *t);
char *gradient_cuda(const twins *t);
/* What lies in `values` is what the next steps are given. */
void twins_upload(twins *t);
void twins_fill(twins *t, oracle_data kind, float scale, uint64_t seed);

/* Both select; the selections must be the same. 0: both refuse the gradient, for the same element. */
int twins_run(twins *t);
/* End the step: 1 by undo, 2 by commit of every second entry, otherwise by commit. */
void twins_end(twins *t, int how);
/* Residuals and moments are the same. Between steps. */
void compare_states(twins *t);

#endif
