/* stream.cuh - what a stream holds: the order of a group's work, and steps that wait to be queued */
#ifndef TW_CUDA_STREAM_CUH
#define TW_CUDA_STREAM_CUH

#include "backend/cuda/step.cuh"

struct tw__stream {
    int ordinal;
    cudaStream_t native;
    cudaEvent_t begin, end; /* of a batch of selections */
    tw::Steps waiting;      /* of small tensors, to be queued together */
};

#endif
