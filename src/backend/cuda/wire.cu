/* wire.cu - entries in wire formats, in a GPU's memory; see wire/wire.h
 *
 * A block of threads for each block of a message. wire/wire_each.h says what a thread makes or reads;
 * here is what threads need of each other: the levels of a block's values, sums of the gaps before an
 * entry, and which set bit of a bitmap belongs to which entry. Lengths were checked when the message was opened: whatever the
 * bytes are, they are read, and entries written, within them. */
#include "backend/cuda/lists.cuh"
#include "wire/wire_each.h"

#include <assert.h>
#include <cub/device/device_scan.cuh>

using namespace tw;

namespace {

constexpr int WARPS = TW__WIRE_BLOCK / WARP;

unsigned grid_of(int64_t count) { /* one at least, for the head */
    return count > 0 ? (unsigned)tw__blocks_of(count) : 1;
}

int64_t words_of_bits(const tw__wire_body &body) {
    return ((int64_t)body.bit_bytes + 7) / 8;
}

/* ---- encoding */

struct Head {
    uint64_t words[2];
    int bytes;
};

/* The smallest and the largest magnitude of a block; of threads that have none, the least is ~0. */
__device__ tw__levels between_extremes(uint32_t least, uint32_t most, int top) {
    __shared__ uint32_t leasts[WARPS], mosts[WARPS];
    least = __reduce_min_sync(ALL_LANES, least);
    most = __reduce_max_sync(ALL_LANES, most);
    if (threadIdx.x % WARP == 0) {
        leasts[threadIdx.x / WARP] = least;
        mosts[threadIdx.x / WARP] = most;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        least = min(least, leasts[w]);
        most = max(most, mosts[w]);
    }
    return tw__levels_between(least, most, top);
}

/* Sums of val[TW__WIRE_BLOCK], in the CPU's order. */
__device__ tw__shares share_out(const float *val, float border) {
    __shared__ tw__shares lanes[TW__LANES];
    __syncthreads(); /* nobody reads those of another border any more */
    if (threadIdx.x < TW__LANES)
        lanes[threadIdx.x] = tw__lane_shares(val, threadIdx.x, border);
    __syncthreads();
    return tw__lanes_sum(lanes);
}

__device__ tw__levels levels_of(const tw__wire_body &body, const float *val, int m) {
    const int i = threadIdx.x;
    if (body.levels_bytes == 0)
        return tw__levels{0, 0};
    if (body.format == TW__WIRE_Q2) {
        float mean = (float)(share_out(val, 0.0f).large / m);
        return tw__levels_of_means(share_out(val, mean), m);
    }
    uint32_t here = magnitude(val[i]);
    return between_extremes(i < m ? here : ~0u, here, tw__top_level(body.bits));
}

/* All but the bitmap. */
__global__ void write_blocks(const __grid_constant__ tw__wire_body body,
                             const __grid_constant__ Head head, const tw__entry *entries,
                             uint8_t *out, float *rounded, Answer *answer) {
    __shared__ uint32_t gap[TW__WIRE_BLOCK], code[TW__WIRE_BLOCK];
    __shared__ float val[TW__WIRE_BLOCK];
    const int i = threadIdx.x, m = tw__block_entries(body.count, blockIdx.x);
    const int64_t at = (int64_t)blockIdx.x * TW__WIRE_BLOCK + i;
    if (at < head.bytes)
        out[at] = (uint8_t)(head.words[at / 8] >> 8 * (at % 8));
    if (m <= 0)
        return;
    uint8_t *indices = out + head.bytes;
    gap[i] = i < m ? tw__gap_of(&body, entries, at) : 0;
    val[i] = i < m ? entries[at].val : 0.0f;
    bool huge = __syncthreads_or(magnitude(val[i]) >= magnitude(TW__WIRE_HUGE));
    if (huge && i == 0)
        answer->huge = 1;
    if (body.width == TW__INDEX_PLAIN && i < m)
        tw__plain_write((uint32_t)entries[at].idx - (uint32_t)body.lo, 4, indices + 4 * at);
    else if (body.width != TW__INDEX_PLAIN)
        tw__low_write(gap, m, body.width, i,
                      indices + blockIdx.x * tw__packed_bytes(TW__WIRE_BLOCK, body.width));
    const tw__levels levels = levels_of(body, val, m);
    code[i] = i < m ? tw__value_code(&body, val[i], levels) : 0;
    if (i < m)
        rounded[at] = tw__value_of(&body, code[i], levels);
    __syncthreads();
    tw__values_write(&body, code, levels, m, i, indices + tw__values_at(&body, blockIdx.x));
}

__global__ void count_entry_bits(const __grid_constant__ tw__wire_body body,
                                 const tw__entry *entries, uint32_t *bits) {
    int64_t i = thread_number();
    if (i < body.count)
        bits[i] = tw__bits_of(&body, entries, i);
}

/* ends[i]: bits of entries 0 .. i. There is room for `words`, and the last entry ends the bitmap. */
__global__ void write_bitmap(const uint32_t *ends, int64_t count, int64_t words, uint8_t *bits,
                             Answer *answer) {
    int64_t word = thread_number();
    if (word < words)
        tw__bitmap_store(tw__bitmap_word(ends, count, word), word, bits,
                         tw__bits_bytes(ends[count - 1], 1));
    if (word == 0)
        answer->number = ends[count - 1];
}

/* Queues what writes the bitmap; answer->number will be its length in bits. */
cudaError_t add_bitmap(tw__cuda_lists *d, const tw__wire_body &body, const tw__entry *entries,
                       uint8_t *bits) {
    const int64_t words = words_of_bits(body);
    assert(body.count <= d->most);
    count_entry_bits<<<blocks_of(body.count), LIST_THREADS, 0, stream_of(d)>>>(body, entries,
                                                                               d->orders);
    cudaError_t error = cub::DeviceScan::InclusiveSum(d->temporary, d->temporary_bytes, d->orders,
                                                      d->orders, (int)body.count, stream_of(d));
    write_bitmap<<<blocks_of(words), LIST_THREADS, 0, stream_of(d)>>>(d->orders, body.count, words,
                                                                      bits, d->answer);
    return error;
}

int encode(void *context, tw__wire_message *m, const tw__list *list, void *out, float *rounded,
           int *huge) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    const tw__wire_body body = tw__wire_body_of(m);
    const Head head = {{m->head[0], m->head[1]}, (int)m->head_bytes};
    uint8_t *bytes = static_cast<uint8_t *>(out);
    cudaError_t error = cudaSuccess;
    d->answer->huge = 0;
    d->answer->number = 0;
    write_blocks<<<grid_of(body.count), TW__WIRE_BLOCK, 0, stream_of(d)>>>(
        body, head, list->at, bytes, rounded, d->answer);
    if (body.bit_bytes > 0)
        error = add_bitmap(d, body, list->at, bytes + head.bytes + body.bits_at);
    TW_TRY(finish(d, error, "writing a message"));
    *huge = d->answer->huge;
    tw__wire_set_bits(m, (uint32_t)d->answer->number);
    return TW_OK;
}

/* ---- decoding */

__global__ void count_bits(const uint8_t *bits, size_t bytes, int64_t words, uint32_t *counts) {
    int64_t word = thread_number();
    if (word < words)
        counts[word] = (uint32_t)__popcll(tw__bitmap_load(bits, word, bytes));
}

/* Bit r of those that are set, to found[r], of which there is room for `count`. before[word]: set
 * bits of earlier words. The last byte must have one. */
__global__ void find_bits(const uint8_t *bits, size_t bytes, int64_t words, const uint32_t *before,
                          int64_t count, uint32_t *found, Answer *answer) {
    int64_t word = thread_number();
    if (word >= words)
        return;
    uint32_t r = before[word];
    for (uint64_t left = tw__bitmap_load(bits, word, bytes); left != 0; left &= left - 1, r++)
        if (r < count)
            found[r] = (uint32_t)(word * TW__WIRE_WORD + __ffsll((long long)left) - 1);
    if (word == words - 1) {
        answer->number = r;
        answer->padded = bits[bytes - 1] == 0;
    }
}

__global__ void read_lows(const __grid_constant__ tw__wire_body body, const uint8_t *in,
                          Word *lows) {
    int64_t i = thread_number();
    if (i < body.count)
        lows[i] = tw__low_at(&body, in, i);
}

__device__ bool is_plain_misplaced(const tw__wire_body &body, const uint8_t *in, int64_t at) {
    uint32_t x = tw__plain_read(in + 4 * at, 4);
    return x >= body.span || (at > 0 && x <= tw__plain_read(in + 4 * (at - 1), 4));
}

/* found[] and lows[]: see tw__index_at. Sums of gaps ascend, plain indices may not. */
__global__ void read_blocks(const __grid_constant__ tw__wire_body body, const uint8_t *in,
                            const uint32_t *found, const Word *lows, tw__entry *entries,
                            Answer *answer) {
    const int i = threadIdx.x, m = tw__block_entries(body.count, blockIdx.x);
    const int64_t at = (int64_t)blockIdx.x * TW__WIRE_BLOCK + i;
    bool misplaced = false, infinite = false;
    if (i < m) {
        const bool plain = body.width == TW__INDEX_PLAIN;
        uint64_t x = plain ? tw__plain_read(in + 4 * at, 4) : tw__index_at(&body, found, lows, at);
        misplaced = plain ? is_plain_misplaced(body, in, at) : x >= body.span;
        float value = tw__value_read(&body, in + tw__values_at(&body, blockIdx.x), m, i);
        infinite = magnitude(value) >= TW__INFINITY_BITS;
        entries[at] = tw__entry{(int32_t)((uint32_t)x + (uint32_t)body.lo), value};
    }
    misplaced = __syncthreads_or(misplaced);
    infinite = __syncthreads_or(infinite);
    if (misplaced && i == 0)
        answer->misplaced = 1;
    if (infinite && i == 0)
        answer->infinite = 1;
}

/* Queues the search for set bits; found[] is undefined where they are fewer than entries. */
cudaError_t look_for_bits(tw__cuda_lists *d, const tw__wire_body &body, const uint8_t *bits,
                          uint32_t *found) {
    const int64_t words = words_of_bits(body);
    count_bits<<<blocks_of(words), LIST_THREADS, 0, stream_of(d)>>>(bits, body.bit_bytes, words,
                                                                    d->orders);
    cudaError_t error = cub::DeviceScan::ExclusiveSum(d->temporary, d->temporary_bytes, d->orders,
                                                      d->orders, (int)words, stream_of(d));
    find_bits<<<blocks_of(words), LIST_THREADS, 0, stream_of(d)>>>(
        bits, body.bit_bytes, words, d->orders, body.count, found, d->answer);
    return error;
}

/* Queues the sums of low parts. */
cudaError_t add_up_lows(tw__cuda_lists *d, const tw__wire_body &body, const uint8_t *in,
                        Word *lows) {
    read_lows<<<blocks_of(body.count), LIST_THREADS, 0, stream_of(d)>>>(body, in, lows);
    return cub::DeviceScan::InclusiveSum(d->temporary, d->temporary_bytes, lows, lows,
                                         (int)body.count, stream_of(d));
}

/* A message lies in memory of the group's, as do its entries, so there is room for both. */
int check_room(const tw__cuda_lists *d, const tw__wire_body &body, int rank) {
    if (body.count <= d->most && words_of_bits(body) <= d->most)
        return TW_OK;
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, and %zu bytes of their indices",
                    rank, (long long)body.count, body.bit_bytes);
}

int decode(void *context, const tw__wire_message *m, const void *body, tw__entry *entries,
           int rank) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    const tw__wire_body b = tw__wire_body_of(m);
    const uint8_t *in = static_cast<const uint8_t *>(body);
    uint32_t *found = reinterpret_cast<uint32_t *>(d->words[0]);
    cudaError_t error = cudaSuccess;
    TW_TRY(check_room(d, b, rank));
    if (b.count == 0)
        return TW_OK; /* and no bitmap */
    d->answer->number = (unsigned long long)b.count;
    d->answer->misplaced = d->answer->infinite = d->answer->padded = 0;
    if (b.bit_bytes > 0)
        error = look_for_bits(d, b, in + b.bits_at, found);
    if (b.bit_bytes > 0 && error == cudaSuccess)
        error = add_up_lows(d, b, in, d->words[1]);
    read_blocks<<<grid_of(b.count), TW__WIRE_BLOCK, 0, stream_of(d)>>>(b, in, found, d->words[1],
                                                                       entries, d->answer);
    TW_TRY(finish(d, error, "reading a message"));
    if (d->answer->number < (unsigned long long)b.count || d->answer->misplaced)
        return tw__wire_fail_order(m, rank);
    if (d->answer->infinite)
        return tw__wire_fail_number(rank);
    if (d->answer->number > (unsigned long long)b.count || d->answer->padded)
        return tw__wire_fail_end(m, rank);
    return TW_OK;
}

} // namespace

const tw__wire_calls tw__wire_cuda = {encode, decode};
