/* lane.cuh - what a lane is: the stream that a group has for itself */
#ifndef TW_CUDA_LANE_CUH
#define TW_CUDA_LANE_CUH

#include "cuda/device.h"

#include <cuda_runtime.h>

struct tw__device_lane {
    int ordinal;
    cudaStream_t stream;
};

#endif
