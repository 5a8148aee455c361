/* cuda_ranks.h - the same group twice, on the CPU and on a GPU, step by step with the same gradients
 *
 * P ranks share the card, as threads. `cpu` is the CPU's group, `cuda` the GPU's: results, dense
 * and sparse, and residuals are compared bit for bit. Tensors lie side by side in one vector, so
 * that most of them are not aligned, which every second one of 16 bits is not even to four bytes. */
#ifndef CUDA_RANKS_H
#define CUDA_RANKS_H

#include <cuda_runtime_api.h>

#include "cuda_exchange.h"
#include "ranks.h"

/* How entries get from one rank's GPU memory to another's; see src/backend/device_transport.c. */
typedef enum { DIRECT, LENT, STAGED, TRANSFER_KINDS } transfer_kind;
extern const char *const transfer_names[TRANSFER_KINDS];

/* 1 where there is no GPU, having said SKIP and why. */
int gpu_missing(void);
void gpu_ok(cudaError_t error);

/* Which groups. */
typedef struct group_setup {
    tw_group_params params;
    int nranks;
    transfer_kind how;
    int steps; /* 0: STEPS */
    int tensors;
    const int64_t *sizes;            /* [tensors] */
    const tw_select_params *selects; /* [tensors], as if on the CPU; NULL: the group's for all */
    uint32_t on_host;                /* bits: tensors of the GPU's group that lie with the host */
    void *stream;                    /* of rank 1 on the GPU; the others have the default one */
} group_setup;

/* What rank 1 gives the GPU instead of a tensor's own gradient or output. */
typedef struct oddity {
    int is;     /* 0: nothing odd */
    int tensor; /* whose */
    void *grad;
    float *out;
} oddity;

typedef struct pair {
    group_setup setup;
    int nranks;
    int64_t n; /* of all tensors */
    ranks cpu, cuda;
    float **grads, **outs;   /* [nranks][n] on the host; grads are to be filled */
    float **copies;          /* out, as it came back from the GPU */
    float **residuals[2];    /* cpu and cuda, of the tensor that was compared last */
    void *typed[MOST_RANKS]; /* gradients as the tensors' types */
    void *gpu_grads[MOST_RANKS];
    float *gpu_outs[MOST_RANKS];
    oddity odd;
} pair;

/* Sums, of the scheme's own method. */
tw_group_params params_of(const char *scheme, double density);

void pair_open(pair *p, const group_setup *what);
/* Of one tensor. */
void pair_open_one(pair *p, int nranks, int64_t n, const tw_group_params *params,
                   transfer_kind how);
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
