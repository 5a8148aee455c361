/* selector.cuh - what a selector on a GPU holds */
#ifndef TW_CUDA_SELECTOR_CUH
#define TW_CUDA_SELECTOR_CUH

#include "backend/cuda/stream.cuh"
#include "backend/extent.h"

struct tw__cuda_selector {
    tw_select_params params;
    cudaStream_t stream;
    tw__stream *group;       /* the group's stream; NULL outside of groups */
    int blocks;              /* of kernels whose blocks wait for each other */
    int64_t stage;           /* candidates that a block of choose holds */
    int64_t sample;          /* elements that the first guess, and dgc, look at */
    uint32_t *sample_values; /* [sample] */
    tw::Step step;           /* the last one */
    float *residual[2];      /* [n] and zeros up to whole tiles, NULL without feedback */
    float *first[2];         /* the same: velocity, or AdamW's m; or NULL */
    float *second[2];        /* the same: AdamW's v; or NULL */
    tw::Learned *learned[2]; /* one each */
    tw__entry *entries;      /* [nentries], on their way from or to the host */
    int64_t nentries;
    const tw__pieces *pieces; /* of gradients and outs */
    tw::Piece *tables[2];     /* [pieces] where gradients, outs or parameters lie; NULL if in one */
    tw::Piece *host_tables;   /* [2][pieces] the same, on their way */
    int32_t *piece_of_tile;   /* [tiles + 1] */
    const void *checked;      /* memory of a gradient in one piece that an earlier step had */
    int now;                  /* the current copies */
    bool cold;                /* no guess yet */
};

namespace tw {

inline tw__cuda_selector *selector_of(void *state) {
    return static_cast<tw__cuda_selector *>(state);
}

/* Of acc, for the method; clipping takes sums of the gradient before the pass. */
inline bool wants_sums(int method) {
    return method == GAUSSIAN || method == REDSYNC;
}

/* Few where there is little to choose from, since they wait for each other; but reading all elements
 * again, where that is needed, must not take too long. */
inline int blocks_for(int64_t n, int64_t k, int64_t candidates, int multiprocessors) {
    const int64_t ELEMENTS = 512 * 1024; /* of a block */
    int64_t wanted = 1 + 2 * k / candidates, least = 1 + n / ELEMENTS;
    return (int)tw__at_most(wanted > least ? wanted : least,
                            tw__at_most(multiprocessors, MOST_BLOCKS));
}

/* Which of the tables. */
enum Table { GRADIENTS, FLOATS };

/* Where a vector lies whose pieces have these addresses, as kernels that are queued later on the
 * stream are told. Errors: TW_ERR_DEVICE if one is not memory of the GPU, or misaligned. */
int locate(tw__cuda_selector *d, Table table, const void *const *memory, const char *field,
           size_t element, cudaStream_t stream, Pieces *pieces);

/* For all that was queued, in a step. */
int await_selector(const tw__cuda_selector *d);

} // namespace tw

#endif
