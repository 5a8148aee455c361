/* lane.cu - how a group's steps run on a GPU: what comes before and after the exchange
 *
 *   gradients --select--> entries --exchange--> lists --> residual, out
 *
 * Lists lie on the GPU, or, where they are short, in pinned memory of the host. A lane is a stream of
 * the group's own: it waits for the caller's stream where that has made a gradient ready, and is
 * waited for before a call returns. */
#include "backend/cuda/failure.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/stream.cuh"
#include "backend/cuda/selector.cuh"

#include <cstdlib>

using namespace tw;

/* ---- the lane */

int tw__stream_create(tw__device_stream **lane, int ordinal) {
    TW_TRY(tw__device_check(ordinal));
    Guard guard(ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    tw__device_stream *l = static_cast<tw__device_stream *>(calloc(1, sizeof *l));
    if (l == nullptr)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *l);
    l->ordinal = ordinal;
    int least = 0, first = 0; /* before what the caller computes meanwhile: others wait for it */
    (void)cudaDeviceGetStreamPriorityRange(&least, &first);
    cudaError_t error = cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, first);
    if (error == cudaSuccess)
        error = cudaEventCreate(&l->begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&l->end);
    if (error != cudaSuccess) {
        tw__stream_free(l);
        return failure(error, "creating a stream");
    }
    *lane = l;
    return TW_OK;
}

void tw__stream_free(tw__device_stream *l) {
    if (l == nullptr)
        return;
    Guard guard(l->ordinal);
    tw__stream_forget(l->begin);
    tw__stream_forget(l->end);
    if (l->stream != nullptr)
        (void)cudaStreamDestroy(l->stream);
    free(l);
}

void *tw__stream_native(const tw__device_stream *l) {
    return l->stream;
}

int tw__stream_wait(tw__device_stream *l) {
    Guard guard(l->ordinal);
    return failure(cudaStreamSynchronize(l->stream), "waiting for the stream");
}

int tw__stream_copy(tw__device_stream *l, void *to, const void *from, size_t bytes) {
    Guard guard(l->ordinal);
    return failure(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, l->stream),
                   "copying between GPU and host");
}

void *tw__stream_pinned(tw__device_stream *l, size_t bytes) {
    void *memory = nullptr;
    Guard guard(l->ordinal);
    if (cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable) != cudaSuccess)
        (void)cudaGetLastError();
    return memory;
}

void tw__stream_unpin(void *memory) {
    (void)cudaFreeHost(memory);
}

/* ---- what the caller's stream has made ready */

int tw__stream_mark(tw__device_stream *l, void *caller, void **event) {
    Guard guard(l->ordinal);
    cudaEvent_t mark = static_cast<cudaEvent_t>(*event);
    if (mark == nullptr) {
        TW_TRY(
            failure(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "creating an event"));
        *event = mark;
    }
    return failure(cudaEventRecord(mark, static_cast<cudaStream_t>(caller)),
                   "marking the caller's stream");
}

int tw__stream_follow(tw__device_stream *l, void *event) {
    Guard guard(l->ordinal);
    return failure(cudaStreamWaitEvent(l->stream, static_cast<cudaEvent_t>(event), 0),
                   "following the caller's stream");
}

int tw__stream_reached(void *event) {
    cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (error != cudaErrorNotReady)
        return error == cudaSuccess ? 1 : failure(error, "copying");
    (void)cudaGetLastError(); /* or the next launch would seem to have failed */
    return 0;
}

void tw__stream_forget(void *event) {
    if (event != nullptr)
        (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

/* ---- entries to the host, lists from it */

__global__ void pack(const int32_t *idx, const float *val, int64_t count, int32_t base,
                     tw__entry *to) {
    int64_t i = thread_number();
    if (i < count)
        to[i] = tw__entry{idx[i] + base, val[i]};
}

int tw__device_pack(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to) {
    Guard guard(d->params.ordinal);
    if (count == 0)
        return TW_OK;
    pack<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(d->step.chosen_idx, d->step.chosen_val,
                                                           count, (int32_t)base, to);
    return failure(cudaGetLastError(), "packing entries");
}

int tw__device_fetch(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to) {
    Guard guard(d->params.ordinal);
    TW_TRY(tw__device_pack(d, count, base, d->entries));
    return failure(cudaMemcpyAsync(to, d->entries, sizeof *to * (size_t)count,
                                   cudaMemcpyDeviceToHost, d->stream),
                   "copying entries to the host");
}

/* Runs a kernel over a list: where it lies on the GPU, or in pieces that fit the selector's
 * buffer. */
template <typename Launch>
static int each_piece(tw__device_selector *d, int there, const tw__list *list,
                      const Launch &launch) {
    if (there && list->count > 0)
        launch(list->at, list->count, 0);
    if (there)
        return failure(cudaGetLastError(), "applying entries");
    for (int64_t done = 0; done < list->count; done += d->nentries) {
        int64_t rest = list->count - done, count = rest < d->nentries ? rest : d->nentries;
        TW_TRY(
            failure(cudaMemcpyAsync(d->entries, list->at + done, sizeof(tw__entry) * (size_t)count,
                                    cudaMemcpyHostToDevice, d->stream),
                    "copying entries to the GPU"));
        launch(d->entries, count, done);
        TW_TRY(failure(cudaGetLastError(), "applying entries"));
    }
    return TW_OK;
}

__global__ void take_out(const tw__entry *entries, int64_t count, int64_t base, float *acc,
                         float *velocity) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    acc[entries[i].idx - base] = 0.0f;
    if (velocity != nullptr)
        velocity[entries[i].idx - base] = 0.0f;
}

/* What comes back was not applied: its velocity is again what the pass made it. */
__global__ void put_in(const __grid_constant__ Step s, const tw__entry *entries, int64_t count,
                       int64_t base) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    int64_t index = entries[i].idx - base;
    s.acc[index] = __fadd_rn(s.acc[index], entries[i].val);
    if (s.source.velocity != nullptr)
        s.source.next_velocity[index] = source_at(s.source, index);
}

__global__ void nothing_leaves(Learned *learned) {
    learned->leaving = 0;
}

/* What left takes its entries out of the residual one by one, unless it is the whole selection,
 * which the next pass recognises; what is kept comes in. */
static int settle_residual(tw__device_selector *d, const tw__device_outcome *o) {
    const Step &s = d->step;
    bool all_left = !o->left_more && o->left.count == o->selected && o->kept.count == 0;
    if (all_left)
        return tw__device_commit(d);
    if (s.acc != nullptr) {
        TW_TRY(each_piece(
            d, o->there, &o->left,
            [&](const tw__entry *entries, int64_t count, int64_t) {
                take_out<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                    entries, count, o->base, s.acc, s.source.next_velocity);
            }));
        TW_TRY(each_piece(d, o->there, &o->kept,
                          [&](const tw__entry *entries, int64_t count, int64_t) {
                              put_in<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                                  s, entries, count, o->base);
                          }));
    }
    nothing_leaves<<<1, 1, 0, d->stream>>>(s.next);
    TW_TRY(failure(cudaGetLastError(), "ending a step"));
    d->now = 1 - d->now;
    d->cold = false;
    return TW_OK;
}

__global__ void hand_out(const tw__entry *entries, int64_t count, int64_t base, float divisor,
                         int32_t *idx, float *val, float *out) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    int32_t index = (int32_t)(entries[i].idx - base);
    float value = __fdiv_rn(entries[i].val, divisor);
    idx[i] = index;
    val[i] = value;
    if (out != nullptr)
        out[index] = value;
}

int tw__device_apply(tw__device_selector *d, const tw__device_outcome *o) {
    Guard guard(d->params.ordinal);
    TW_TRY(settle_residual(d, o));
    if (o->out != nullptr)
        TW_TRY(failure(cudaMemsetAsync(o->out, 0, sizeof(float) * (size_t)d->step.n, d->stream),
                       "clearing the result"));
    return each_piece(
        d, o->there, &o->result, [&](const tw__entry *entries, int64_t count, int64_t done) {
            hand_out<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                entries, count, o->base, o->divisor, o->idx + done, o->val + done, o->out);
        });
}

__global__ void look_up(const tw__entry *entries, int64_t count, int64_t base, const float *acc,
                        float *values) {
    int64_t i = thread_number();
    if (i < count)
        values[i] = acc[entries[i].idx - base];
}

int tw__device_gather(tw__device_selector *d, const tw__list *list, int64_t base, float *values) {
    Guard guard(d->params.ordinal);
    if (list->count == 0)
        return TW_OK;
    look_up<<<blocks_of(list->count), LIST_THREADS, 0, d->stream>>>(list->at, list->count, base,
                                                                    d->step.acc, values);
    TW_TRY(failure(cudaGetLastError(), "reading the residual"));
    return failure(cudaStreamSynchronize(d->stream), "waiting for the stream");
}

int tw__device_peek(tw__device_selector *d, int64_t index, float *value) {
    Guard guard(d->params.ordinal);
    TW_TRY(failure(cudaMemcpyAsync(value, d->step.acc + index, sizeof *value,
                                   cudaMemcpyDeviceToHost, d->stream),
                   "reading the residual"));
    return failure(cudaStreamSynchronize(d->stream), "waiting for the stream");
}

__global__ void look_for_overflow(const tw__entry *kept, int64_t nkept, const tw__entry *sent,
                                  int64_t nsent, const float *acc, int64_t base, int *yes) {
    int64_t i = thread_number();
    if (i >= nkept || magnitude(kept[i].val) < magnitude(TW__HARMLESS))
        return;
    bool own = has(sent, nsent, kept[i].idx);
    float stays = own || acc == nullptr ? 0.0f : acc[kept[i].idx - base];
    if (magnitude(__fadd_rn(stays, kept[i].val)) >= TW__INFINITY_BITS)
        *yes = 1;
}

int tw__device_overflows(tw__device_selector *d, const tw__list *kept, const tw__list *sent,
                         int64_t base, int *yes) {
    Guard guard(d->params.ordinal);
    int *found = reinterpret_cast<int *>(d->entries); /* free until the step ends */
    *yes = 0;
    if (kept->count == 0)
        return TW_OK;
    TW_TRY(failure(cudaMemsetAsync(found, 0, sizeof *found, d->stream), "looking for overflow"));
    look_for_overflow<<<blocks_of(kept->count), LIST_THREADS, 0, d->stream>>>(
        kept->at, kept->count, sent->at, sent->count, d->step.acc, base, found);
    TW_TRY(failure(cudaMemcpyAsync(yes, found, sizeof *yes, cudaMemcpyDefault, d->stream),
                   "looking for overflow"));
    return failure(cudaStreamSynchronize(d->stream), "waiting for the stream");
}

int tw__stream_alloc(tw__device_stream *l, void **memory, size_t bytes) {
    Guard guard(l->ordinal);
    return failure(cudaMalloc(memory, bytes > 0 ? bytes : 1), "memory of a group");
}

void tw__stream_release(void *memory) {
    if (memory != nullptr)
        (void)cudaFree(memory);
}
