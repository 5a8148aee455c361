/* cuda_ranks.h - the same group twice, on the CPU and on a GPU, step by step with the same gradients
 *
 * P ranks share the card, as threads. `here` is the CPU's group, `there` the GPU's: results, dense
 * and sparse, and residuals are compared bit for bit. Tensors lie side by side in one vector, so
 * that most of them are not aligned, which every second one of 16 bits is not even to four bytes. */
#ifndef CUDA_RANKS_H
#define CUDA_RANKS_H

#include <cuda_runtime_api.h>

#include "cuda_post.h"
#include "ranks.h"

/* How entries get from one rank's GPU memory to another's; see src/cuda/device_transport.h. */
typedef enum { DIRECT, LENT, STAGED, WAYS } way;
extern const char *const way_names[WAYS];

/* 1 where there is no GPU, having said SKIP and why. */
int gpu_missing(void);
void gpu_ok(cudaError_t error);

/* Which groups. */
typedef struct plan {
    tw_group_params params;
    int nranks;
    way how;
    int steps; /* 0: STEPS */
    int tensors;
    const int64_t *sizes;            /* [tensors] */
    const tw_select_params *selects; /* [tensors], as if on the CPU; NULL: the group's for all */
    uint32_t on_host;                /* bits: tensors of the GPU's group that lie with the host */
    void *stream;                    /* of rank 1 on the GPU; the others have the default one */
} plan;

/* What rank 1 gives there instead of a tensor's own gradient or output. */
typedef struct oddity {
    int is;     /* 0: nothing odd */
    int tensor; /* whose */
    void *grad;
    float *out;
} oddity;

typedef struct pair {
    plan plan;
    int nranks;
    int64_t n; /* of all tensors */
    ranks here, there;
    float **grads, **outs;   /* [nranks][n] on the host; grads are to be filled */
    float **copies;          /* out, as it came back from the GPU */
    float **residuals[2];    /* here and there, of the tensor that was compared last */
    void *typed[MOST_RANKS]; /* gradients as the tensors' types */
    void *gpu_grads[MOST_RANKS];
    float *gpu_outs[MOST_RANKS];
    oddity odd;
} pair;

/* Sums, of the scheme's own method. */
tw_group_params params_of(const char *scheme, double density);

void pair_open(pair *p, const plan *what);
/* Of one tensor. */
void pair_open_one(pair *p, int nranks, int64_t n, const tw_group_params *params, way how);
void pair_close(pair *p);

/* What lies in grads is what the next steps are given. */
void pair_upload(pair *p);

/* Calls for ranks_run, with the pair as context: one tensor at once, or all in the background. */
int reduce_one(ranks *r, int rank, void *context);
int reduce_one_silently(ranks *r, int rank, void *context); /* no output */
int reduce_all(ranks *r, int rank, void *context);

/* One step of this kind on both sides, which all ranks end with `expected`; results are compared. */
void pair_step(pair *p, ranks_call call, int expected);
/* The GPU's output is still that of the last step. */
void pair_check_outs(pair *p);
void compare_residuals(pair *p); /* of all tensors */

#endif
