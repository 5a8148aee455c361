/* stream.cuh - what a stream holds: the order of a group's work, and steps that wait to be queued */
#ifndef TW_CUDA_STREAM_CUH
#define TW_CUDA_STREAM_CUH

#include "backend/cuda/step.cuh"

struct tw__stream {
    int ordinal;
    cudaStream_t native;
    cudaEvent_t begin, end; /* of a batch of selections */
    tw::Steps waiting;      /* to be queued together */
    int blocks;             /* that can wait for each other: the GPU's multiprocessors */
    int64_t stage;          /* candidates that a block of choose can hold */
    tw__check *check;       /* asked while the stream is waited for in a step */
    void *context;          /* of check */
    int given_up;           /* tw::GivenUp; by whoever waits in a step, read by any thread */
};

namespace tw {

/* A stream that did not come to its end in time. */
enum GivenUp { KEPT, AT_WORK, FOR_GOOD };

/* Waits for all that was queued, in a step: as long as `check` lets it. */
int await(tw__stream *s);
/* Outside of steps, where another thread may be in one: until the stream is given up. */
int await_outside(tw__stream *s);
/* Whether it was given up and may still use memory. Lets it come to its end for a moment. */
bool is_at_work(tw__stream *s);

} // namespace tw

#endif
