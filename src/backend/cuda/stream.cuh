/* lane.cuh - what a lane is: the stream that a group has for itself, and what waits to go there */
#ifndef TW_CUDA_LANE_CUH
#define TW_CUDA_LANE_CUH

#include "backend/cuda/step.cuh"

struct tw__device_stream {
    int ordinal;
    cudaStream_t stream;
    cudaEvent_t begin, end; /* of a selection */
    tw::Steps waiting;      /* of small tensors, to be queued together */
};

#endif
