/* cuda_runs.h - several steps of a group on the CPU and on a GPU, compared as they go */
#ifndef CUDA_RUNS_H
#define CUDA_RUNS_H

#include "cuda_ranks.h"

enum { STEPS = 6 };

/* One tensor, of data whose sums are exact: nothing may be lost. */
void run_scheme(const char *scheme, transfer_kind how, int nranks, int64_t n, double density,
                int steps);
/* One tensor in a wire format; the same bytes are sent. */
void run_wire(const char *scheme, const char *wire, transfer_kind how, int nranks, int64_t n,
              double density, int steps);
/* The same with other parameters. */
void run_coded(const tw_group_params *params, transfer_kind how, int nranks, int64_t n, int steps);
/* Wire formats but raw from position 1; NULL past the last. */
const char *wire_at(int position);

/* Tensors in buckets, in the background; one step in the middle is refused for a NaN. */
void run_bucket(const group_setup *what);
/* All alike: of the sizes that count as small, more than fit a launch, and beyond. */
void run_many(const char *scheme);

/* Neighbours in a bucket that cannot share a launch. */
typedef enum {
    TYPES,   /* F32, F16 and BF16 */
    METHODS, /* exact and reuse */
    BOTH,    /* types, all methods, and other parameters */
    MIXTURES
} mixture;
enum { MIXED = 24 };
extern const int64_t mixed_sizes[MIXED];
/* The setup's sizes and selects become those; `selects` is room for them. */
void setup_mixed(group_setup *what, mixture mix, tw_select_params selects[MIXED]);
void run_mixed(const char *scheme, const char *wire, mixture mix, transfer_kind how);

#endif
