/* selector.cuh - what a selector on a GPU holds */
#ifndef TW_CUDA_SELECTOR_CUH
#define TW_CUDA_SELECTOR_CUH

#include "backend/cuda/stream.cuh"

struct tw__cuda_selector {
    tw_select_params params;
    cudaStream_t stream;
    tw__stream *group;       /* the group's stream; NULL outside of groups */
    int blocks;              /* of kernels whose blocks wait for each other */
    int64_t stage;           /* candidates that a block of choose can hold */
    int64_t sample;          /* elements that the first guess, and dgc, look at */
    uint32_t *sample_values; /* [sample] */
    tw::Step step;           /* the last one */
    float *residual[2];      /* [n] and zeros up to whole tiles, NULL without feedback */
    float *first[2];         /* the same: velocity, or AdamW's m; or NULL */
    float *second[2];        /* the same: AdamW's v; or NULL */
    tw::Learned *learned[2]; /* one each */
    tw__entry *entries;      /* [nentries], on their way from or to the host */
    int64_t nentries;
    int now;   /* the current copies */
    bool cold; /* no guess yet */
};

namespace tw {

inline tw__cuda_selector *selector_of(void *state) {
    return static_cast<tw__cuda_selector *>(state);
}

} // namespace tw

#endif
