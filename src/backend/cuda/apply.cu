/* apply.cu - a group's step on a GPU, before and after the exchange
 *
 *   selection --pack--> entries --exchange--> lists --apply--> residual, result, out
 *
 * Lists lie on the GPU or, where they are short, in host memory that the GPU reads. */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/selector.cuh"

using namespace tw;

/* ---- the selection as entries */

__global__ void pack(const int32_t *idx, const float *val, int64_t count, int32_t base,
                     tw__entry *to) {
    int64_t i = thread_number();
    if (i < count)
        to[i] = tw__entry{idx[i] + base, val[i]};
}

/* The host trims a selection that exceeds `most`. */
int tw__cuda_pack(void *state, int64_t selected, int64_t most, int64_t base, int on_device,
                  tw__entry *to, int64_t *count) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    (void)most;
    *count = selected;
    if (selected == 0)
        return TW_OK;
    tw__entry *packed = on_device ? to : d->entries;
    pack<<<blocks_of(selected), LIST_THREADS, 0, d->stream>>>(
        d->step.chosen_idx, d->step.chosen_val, selected, (int32_t)base, packed);
    TW_TRY(failure(cudaGetLastError(), "packing entries"));
    if (on_device)
        return TW_OK;
    return failure(cudaMemcpyAsync(to, packed, sizeof *to * (size_t)selected,
                                   cudaMemcpyDeviceToHost, d->stream),
                   "copying entries to the host");
}

/* ---- what an exchange leaves */

static const void *const *pointers_of(float *const *pieces) {
    return reinterpret_cast<const void *const *>(pieces);
}

/* Runs a kernel over a list: where it lies on the GPU, or in pieces that fit the selector's
 * buffer. */
template <typename Launch>
static int each_piece(tw__cuda_selector *d, int on_device, const tw__list *list,
                      const Launch &launch) {
    if (on_device && list->count > 0)
        launch(list->at, list->count, 0);
    if (on_device)
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

/* A velocity that was taken out, of an entry that is kept: no number that a step leaves. */
constexpr uint32_t PENDING = 0x7fffffff;

__global__ void put_in(const tw__entry *entries, int64_t count, int64_t base, float *acc,
                       float *velocity) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    int64_t index = entries[i].idx - base;
    acc[index] = __fadd_rn(acc[index], entries[i].val);
    if (velocity != nullptr && __float_as_uint(velocity[index]) == 0)
        velocity[index] = __uint_as_float(PENDING);
}

/* What was applied, rounded, loses its velocity though a remainder is kept. */
__global__ void lose_velocity(const tw__entry *entries, int64_t count, int64_t base,
                              float *velocity) {
    int64_t i = thread_number();
    if (i < count && __float_as_uint(velocity[entries[i].idx - base]) == PENDING)
        velocity[entries[i].idx - base] = 0.0f;
}

/* What came back was not applied: its velocity is again what the pass made it. */
__global__ void regain_velocity(const __grid_constant__ Step s, const tw__entry *entries,
                                int64_t count, int64_t base) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    int64_t index = entries[i].idx - base;
    if (__float_as_uint(s.source.next_first[index]) == PENDING)
        s.source.next_first[index] = source_at(s.source, index);
}

__global__ void nothing_leaves(Learned *learned) {
    learned->leaving = 0;
}

/* `left` leaves the residual, then `kept` is added to it. */
static int move_entries(tw__cuda_selector *d, const tw__outcome *o, float *velocity) {
    float *acc = d->step.acc;
    TW_TRY(each_piece(
        d, o->on_device, &o->left,
        [&](const tw__entry *entries, int64_t count, int64_t) {
            take_out<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(entries, count, o->base, acc,
                                                                       velocity);
        }));
    return each_piece(d, o->on_device, &o->kept,
                      [&](const tw__entry *entries, int64_t count, int64_t) {
                          put_in<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                              entries, count, o->base, acc, velocity);
                      });
}

/* Of the entries that are kept, those that were not applied keep their velocity. */
static int settle_velocity(tw__cuda_selector *d, const tw__outcome *o, float *velocity) {
    const tw__list none = {};
    TW_TRY(each_piece(
        d, o->on_device, o->rounded && o->kept.count > 0 ? &o->result : &none,
        [&](const tw__entry *entries, int64_t count, int64_t) {
            lose_velocity<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(entries, count, o->base,
                                                                            velocity);
        }));
    return each_piece(d, o->on_device, &o->kept,
                      [&](const tw__entry *entries, int64_t count, int64_t) {
                          regain_velocity<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                              d->step, entries, count, o->base);
                      });
}

/* What left takes its entries out of the residual one by one, unless it is the whole selection,
 * which the next pass recognises; what is kept comes in. */
static int settle_residual(tw__cuda_selector *d, const tw__outcome *o) {
    const Step &s = d->step;
    float *velocity = d->params.momentum != 0.0f ? s.source.next_first : nullptr;
    bool all_left = !o->left_more && o->left.count == o->selected && o->kept.count == 0;
    if (all_left)
        return tw__cuda_commit(d, nullptr, 0);
    if (s.acc != nullptr)
        TW_TRY(move_entries(d, o, velocity));
    if (velocity != nullptr)
        TW_TRY(settle_velocity(d, o, velocity));
    nothing_leaves<<<1, 1, 0, d->stream>>>(s.next);
    TW_TRY(failure(cudaGetLastError(), "ending a step"));
    d->now = 1 - d->now;
    d->cold = false;
    return TW_OK;
}

__global__ void hand_out(const tw__entry *entries, int64_t count, int64_t base, float divisor,
                         int32_t *idx, float *val, const __grid_constant__ Pieces outs,
                         bool has_outs) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    int32_t index = (int32_t)(entries[i].idx - base);
    float value = __fdiv_rn(entries[i].val, divisor);
    idx[i] = index;
    val[i] = value;
    if (has_outs)
        *float_at(outs, index) = value;
}

static int clear_outs(tw__cuda_selector *d, float *const *outs) {
    const int64_t *starts = d->pieces->starts;
    cudaError_t error = cudaSuccess;
    for (int p = 0; p < d->pieces->count && error == cudaSuccess; p++)
        error = cudaMemsetAsync(outs[p], 0, sizeof(float) * (size_t)(starts[p + 1] - starts[p]),
                                d->stream);
    return failure(error, "clearing the result");
}

int tw__cuda_apply(void *state, const tw__outcome *o) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    TW_TRY(settle_residual(d, o));
    Pieces outs = {};
    if (o->outs != nullptr) {
        TW_TRY(locate(d, FLOATS, pointers_of(o->outs), "out", sizeof(float), d->stream, &outs));
        TW_TRY(clear_outs(d, o->outs));
    }
    return each_piece(d, o->on_device, &o->result,
                      [&](const tw__entry *entries, int64_t count, int64_t done) {
                          hand_out<<<blocks_of(count), LIST_THREADS, 0, d->stream>>>(
                              entries, count, o->base, o->divisor, o->idx + done, o->val + done,
                              outs, o->outs != nullptr);
                      });
}

__global__ void subtract(const int32_t *idx, const float *val, int64_t count,
                         const __grid_constant__ Pieces params) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    float *at = float_at(params, idx[i]);
    *at = __fsub_rn(*at, val[i]);
}

/* On the caller's stream: the group's follows it before the next step. */
int tw__cuda_subtract(void *state, const tw_sparse *result, float *const *params) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    cudaStream_t stream = static_cast<cudaStream_t>(d->params.stream);
    Pieces pieces;
    TW_TRY(locate(d, FLOATS, pointers_of(params), "params", sizeof(float), stream, &pieces));
    if (result->count > 0)
        subtract<<<blocks_of(result->count), LIST_THREADS, 0, stream>>>(result->idx, result->val,
                                                                        result->count, pieces);
    return failure(cudaGetLastError(), "subtracting a result");
}

__global__ void look_up(const tw__entry *entries, int64_t count, int64_t base, const float *acc,
                        float *values) {
    int64_t i = thread_number();
    if (i < count)
        values[i] = acc[entries[i].idx - base];
}

int tw__cuda_gather(void *state, const tw__list *list, int64_t base, float *values) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    if (list->count == 0)
        return TW_OK;
    look_up<<<blocks_of(list->count), LIST_THREADS, 0, d->stream>>>(list->at, list->count, base,
                                                                    d->step.acc, values);
    TW_TRY(failure(cudaGetLastError(), "reading the residual"));
    return await_selector(d);
}

int tw__cuda_peek(void *state, int64_t index, float *value) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    TW_TRY(failure(cudaMemcpyAsync(value, d->step.acc + index, sizeof *value,
                                   cudaMemcpyDeviceToHost, d->stream),
                   "reading the residual"));
    return await_selector(d);
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

int tw__cuda_overflows(void *state, const tw__list *kept, const tw__list *sent, int64_t base,
                       int *yes) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    int *found = reinterpret_cast<int *>(d->entries); /* free until the step ends */
    *yes = 0;
    if (kept->count == 0)
        return TW_OK;
    TW_TRY(failure(cudaMemsetAsync(found, 0, sizeof *found, d->stream), "looking for overflow"));
    look_for_overflow<<<blocks_of(kept->count), LIST_THREADS, 0, d->stream>>>(
        kept->at, kept->count, sent->at, sent->count, d->step.acc, base, found);
    TW_TRY(failure(cudaGetLastError(), "looking for overflow"));
    TW_TRY(failure(cudaMemcpyAsync(yes, found, sizeof *yes, cudaMemcpyDefault, d->stream),
                   "looking for overflow"));
    return await_selector(d);
}
