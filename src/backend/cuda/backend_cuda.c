/* backend_cuda.c - the row of the CUDA backend */
#include "backend/cuda/backend_cuda.h"

/* Entries of a tensor, on average, from which a GPU works on lists faster than the host, for all its
 * launches. */
#ifndef RESIDENT_K
#define RESIDENT_K 16384
#endif

extern const tw__backend tw__backend_cuda;

const tw__backend tw__backend_cuda = {
    .name = "cuda",
    .device = TW_CUDA,
    .resident_k = RESIDENT_K,
    .check_device = tw__cuda_check_device,
    .check_pointer = tw__cuda_check_pointer,
    .device_name = tw__cuda_device_name,
    .accumulate = tw__cuda_accumulate,
    .accumulate_adamw = tw__cuda_accumulate_adamw,
    .stream_create = tw__cuda_stream_create,
    .stream_free = tw__cuda_stream_free,
    .stream_adopt = tw__cuda_stream_adopt,
    .stream_native = tw__cuda_stream_native,
    .stream_wait = tw__cuda_stream_wait,
    .stream_give_up = tw__cuda_stream_give_up,
    .event_record = tw__cuda_event_record,
    .stream_follow = tw__cuda_stream_follow,
    .event_reached = tw__cuda_event_reached,
    .event_free = tw__cuda_event_free,
    .batch_begin = tw__cuda_batch_begin,
    .batch_end = tw__cuda_batch_end,
    .batch_seconds = tw__cuda_batch_seconds,
    .alloc = tw__cuda_alloc,
    .free = tw__cuda_free,
    .host_alloc = tw__cuda_host_alloc,
    .host_free = tw__cuda_host_free,
    .copy = tw__cuda_copy,
    .selector_memory = tw__cuda_selector_memory,
    .selector_create = tw__cuda_selector_create,
    .selector_free = tw__cuda_selector_free,
    .run = tw__cuda_run,
    .wait = tw__cuda_wait,
    .info = tw__cuda_info,
    .commit = tw__cuda_commit,
    .undo = tw__cuda_undo,
    .decay = tw__cuda_decay,
    .apply = tw__cuda_apply,
    .subtract = tw__cuda_subtract,
    .pack = tw__cuda_pack,
    .gather = tw__cuda_gather,
    .peek = tw__cuda_peek,
    .overflows = tw__cuda_overflows,
    .get = tw__cuda_get,
    .set = tw__cuda_set,
    .get_learned = tw__cuda_get_learned,
    .set_learned = tw__cuda_set_learned,
    .reset = tw__cuda_reset,
    .lists = &tw__lists_cuda,
    .codec = &tw__wire_cuda,
    .dense = &tw__dense_cuda,
    .lists_memory = tw__cuda_lists_memory,
    .lists_create = tw__cuda_lists_create,
    .lists_free = tw__cuda_lists_free,
};
