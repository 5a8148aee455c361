/* bench_wire_gpu.c - the GPU's side of `thinwire bench wire`: as exchanges call it */
#include "bench_wire_gpu.h"

static int take(wire_gpu *gpu, void **pointer, size_t bytes) {
    return tw__stream_alloc(gpu->lane, pointer, bytes);
}

int wire_gpu_open(wire_gpu *gpu, const tw__list *selected, size_t room) {
    const size_t count = (size_t)selected->count;
    *gpu = (wire_gpu){.selected.count = selected->count};
    TW_TRY(tw__stream_create(&gpu->lane, 0));
    TW_TRY(tw__device_lists_create(&gpu->lists, gpu->lane, selected->count));
    TW_TRY(take(gpu, (void **)&gpu->selected.at, sizeof(tw__entry) * count));
    TW_TRY(take(gpu, (void **)&gpu->decoded, sizeof(tw__entry) * count));
    TW_TRY(take(gpu, (void **)&gpu->rounded, sizeof(float) * count));
    TW_TRY(take(gpu, (void **)&gpu->message, room));
    TW_TRY(tw__stream_copy(gpu->lane, gpu->selected.at, selected->at, sizeof(tw__entry) * count));
    return tw__stream_wait(gpu->lane);
}

void wire_gpu_close(wire_gpu *gpu) {
    tw__stream_release(gpu->selected.at);
    tw__stream_release(gpu->decoded);
    tw__stream_release(gpu->rounded);
    tw__stream_release(gpu->message);
    tw__device_lists_free(gpu->lists);
    tw__stream_free(gpu->lane);
    *gpu = (wire_gpu){0};
}

int wire_gpu_encode(wire_gpu *gpu, const tw__wire *format, int64_t n, size_t *bytes) {
    tw__wire_message m = tw__wire_plan(format, gpu->selected.count, 0, n);
    int huge = 0;
    *bytes = m.bytes;
    return tw__wire_cuda.encode(gpu->lists, NULL, &m, &gpu->selected, gpu->message, gpu->rounded,
                                &huge);
}

int wire_gpu_decode(wire_gpu *gpu, size_t bytes, int64_t n, int64_t *count) {
    uint8_t header[TW__WIRE_HEADER];
    tw__wire_message m;
    TW_TRY(tw__lists_cuda.peek(gpu->lists, gpu->message, sizeof header, header));
    TW_TRY(tw__wire_open(header, bytes, 0, n, gpu->selected.count, 0, &m));
    *count = m.count;
    return tw__wire_cuda.decode(gpu->lists, NULL, &m, gpu->message + m.head_bytes, gpu->decoded, 0);
}

int wire_gpu_fetch(wire_gpu *gpu, tw__entry *decoded, float *rounded) {
    const size_t count = (size_t)gpu->selected.count;
    TW_TRY(tw__stream_copy(gpu->lane, decoded, gpu->decoded, sizeof *decoded * count));
    TW_TRY(tw__stream_copy(gpu->lane, rounded, gpu->rounded, sizeof *rounded * count));
    return tw__stream_wait(gpu->lane);
}
