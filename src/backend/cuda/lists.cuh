/* lists.cuh - what work on lists and vectors of a group on a GPU has at hand */
#ifndef TW_CUDA_LISTS_CUH
#define TW_CUDA_LISTS_CUH

#include "backend/cuda/failure.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/stream.cuh"
#include "backend/cuda/step.cuh"

namespace tw {

constexpr int MOST_CUTS = 4096; /* of one launch */
constexpr int COUNT_BLOCKS = 264;

typedef unsigned long long Word; /* an entry */

/* What kernels tell the host. */
struct Answer {
    unsigned long long number, other;
    int64_t misfit;
    tw__entry at, before;
    int huge;                /* of a message: values that it cannot have */
    int misplaced, infinite; /* of a message: indices, values */
    int padded;              /* of a message: nothing in the last byte of its bitmap */
    uint32_t bins[TW__BINS];
    int64_t bounds[MOST_CUTS];
    int64_t positions[MOST_CUTS];
};

} // namespace tw

struct tw__cuda_lists {
    tw__stream *stream;
    int64_t most;
    tw::Word *words[2]; /* [most] */
    uint8_t *flags;     /* [most] */
    uint32_t *orders;   /* [most] */
    void *temporary;    /* CUB's */
    size_t temporary_bytes;
    uint32_t *bins;             /* [TW__BINS] */
    unsigned long long *counts; /* [2] */
    tw::Answer *answer;         /* in the host's memory, where the GPU writes it */
};

namespace tw {

inline tw__cuda_lists *of(void *context) {
    return static_cast<tw__cuda_lists *>(context);
}

inline cudaStream_t stream_of(const tw__cuda_lists *d) {
    return d->stream->native;
}

/* All that was queued has happened. */
inline int finish(tw__cuda_lists *d, cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        error = cudaGetLastError();
    TW_TRY(failure(error, doing));
    return await(d->stream);
}

} // namespace tw

#endif
