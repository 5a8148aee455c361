/* bench_wire_gpu.h - `thinwire bench wire --device cuda`: the same messages in a GPU's memory */
#ifndef BENCH_WIRE_GPU_H
#define BENCH_WIRE_GPU_H

#include "backend/cuda/device.h"

typedef struct wire_gpu {
    tw__device_stream *lane;
    tw__device_lists *lists;
    tw__list selected;  /* [count] */
    tw__entry *decoded; /* [count] */
    float *rounded;     /* [count] */
    uint8_t *message;   /* [room] */
} wire_gpu;

/* All return the library's status. Where opening fails, what was made is there to be closed. */
int wire_gpu_open(wire_gpu *gpu, const tw__list *selected, size_t room);
void wire_gpu_close(wire_gpu *gpu);
/* Within 0 .. n-1. Both wait for the GPU. */
int wire_gpu_encode(wire_gpu *gpu, const tw__wire *format, int64_t n, size_t *bytes);
int wire_gpu_decode(wire_gpu *gpu, size_t bytes, int64_t n, int64_t *count);
/* What came of it, to arrays of [count]. */
int wire_gpu_fetch(wire_gpu *gpu, tw__entry *decoded, float *rounded);

#endif
