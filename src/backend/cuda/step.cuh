/* step.cuh - what the kernels of a step share in device memory
 *
 * The vector is cut into tiles, one for each block of the pass, which leaves acc, and the tile's
 * candidates in index order in the tile's slots. A tile with more candidates than slots keeps their
 * number alone: whoever needs its entries reads acc again. So slots are a short cut, never a limit.
 */
#ifndef TW_CUDA_STEP_CUH
#define TW_CUDA_STEP_CUH

#include "backend/host_device.h"
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/teams.h"
#include "backend/cpu/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace tw {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

constexpr int FOLD_THREADS = 256;
constexpr int PER_THREAD = 16;
constexpr int TILE = FOLD_THREADS * PER_THREAD;
constexpr int SLOTS = 256; /* of a tile, for 6 % of its elements */

constexpr int CHOOSE_THREADS = 1024;
constexpr int CHOOSE_WARPS = CHOOSE_THREADS / WARP;
constexpr int MOST_BLOCKS = 1024; /* of kernels whose blocks wait for each other */

constexpr int BINS = 4096;       /* of a histogram of magnitudes */
constexpr int COARSE_SHIFT = 19; /* 2^31 magnitudes in one histogram */
constexpr int HISTOGRAMS = 9; /* near the guess, twice; 19, 7 and 0 bits; a bin near the guess; and
                                 three of indices */
constexpr int OF_A_BIN = 5;
constexpr int SAMPLE_HISTOGRAMS = 3;
constexpr int GATHERED = 1024; /* candidates that every block looks at for itself */
constexpr int COUNTERS = 72;   /* for methods that count: 64 rounds and one more at most */

/* What is learned from step to step: two copies, as of the residual. */
struct Learned {
    uint32_t leaving;     /* entries of this magnitude or more were sent: the next pass leaves them
                             out; 0: none */
    int32_t tie;          /* and those just below it, up to this index */
    uint32_t guess;       /* magnitude bits to collect from in the next pass */
    uint32_t exact_guess; /* reuse: to collect from when an exact threshold is due */
    float rank;           /* entries that reached the guess when it was made; 0: not known */
    float growth;         /* entries that reach a guess a step later, over that rank */
    float margin;         /* candidates wanted, over k */
    float threshold;      /* reuse: the threshold in use */
    int64_t age;          /* reuse: steps since it was exact in its turn */
};

/* Over a block, a chunk or all elements: in the CPU's order, so that both agree in every bit. */
struct Sums {
    double sum, square, magnitude;
};

/* One block's part of a choice. */
struct BlockTotal {
    uint32_t count, smallest;
};

/* A candidate where only order matters. */
struct alignas(8) Standing {
    uint32_t bits;
    int32_t idx;
};

/* Of the step under way; all zero between steps, but for what each step writes before reading. */
struct Scratch {
    alignas(16) uint32_t histogram[HISTOGRAMS][BINS];
    uint32_t sample_histogram[SAMPLE_HISTOGRAMS][BINS]; /* cleared by sample.cu */
    uint32_t counters[COUNTERS];
    uint32_t gathered;
    uint32_t crowded;  /* a block could not hold its candidates */
    uint32_t arrivals; /* of blocks that wait for each other, see order.cuh; never cleared */
    Standing standings[GATHERED];
    uint32_t bad;              /* 2^32 - 1 - index of the first NaN or infinity; 0: none */
    uint32_t sample_threshold; /* written by sample.cu */
    uint32_t chosen;           /* entries of the selection */
    uint32_t refused;          /* steps, over all */
    uint32_t wrong;            /* 2^32 - 1 - position of the first wrong one of a part; 0: none */
    float scale;               /* by which clipping shrinks the gradient */
    Sums total;                /* over acc */
};

/* In the host's memory, for tw__cuda_info. */
struct Report {
    int64_t refused; /* steps, over all */
    int64_t count, candidates, bad_index;
    int32_t rescans;
    uint32_t smallest;
    int64_t wrong_part; /* position of the first index of a part that was not selected, or -1 */
    double decayed;     /* the sum of what the residual lost */
};

/* Elements of a vector, up to `end`: element i lies at at + i * its size. */
struct alignas(16) Piece {
    char *at;
    int64_t end;
};

/* Where a vector lies: in one stretch from `whole` on, or, if that is NULL, in pieces. */
struct Pieces {
    void *whole;
    const Piece *at;        /* [pieces] */
    const int32_t *of_tile; /* [tiles + 1]: the piece in which a tile begins, and the last one */
};

/* The piece of element i. */
__device__ inline Piece piece_of(const Pieces &p, int64_t i) {
    if (p.whole != nullptr)
        return Piece{static_cast<char *>(p.whole), INT64_MAX};
    int low = p.of_tile[i / TILE], high = p.of_tile[i / TILE + 1];
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (p.at[middle].end <= i)
            low = middle + 1;
        else
            high = middle;
    }
    return p.at[low];
}

/* Element i of a vector of floats. */
__device__ inline float *float_at(const Pieces &p, int64_t i) {
    return reinterpret_cast<float *>(piece_of(p, i).at) + i;
}

/* What happens to a gradient before the residual accumulates it. */
enum Before { NOTHING, MOMENTUM, ADAMW };

/* The numbers that a step adds to the residual. */
struct Source {
    Pieces grad;
    const float *first;  /* velocity or AdamW's m before the step; NULL without */
    float *next_first;   /* after it */
    const float *second; /* AdamW's v, likewise */
    float *next_second;
    const float *scale; /* NULL without clipping */
    float momentum;
    tw__adamw adamw;
    int before; /* Before */
    int type;
};

/* In the order of the table in choose.cu, which has their names. */
enum Method { EXACT, REUSE, GAUSSIAN, DGC, REDSYNC, RANDOM };

/* What kernels need of tw_select_params, which would be most of a step. */
struct Rules {
    float reuse_low, reuse_high, reuse_nudge;
    int32_t reuse_period, gaussian_rounds;
    float clip_norm;
};

/* Everything that a step's kernels are given, by value. */
struct Step {
    Source source;
    const float *residual; /* before the step; NULL without feedback */
    float *acc;            /* after it: [n] and zeros up to whole tiles; NULL without feedback */
    int64_t n;
    int32_t *slot_idx; /* [tiles * SLOTS] */
    float *slot_val;
    uint32_t *slot_count; /* [tiles]: candidates, also those beyond the slots */
    Learned *learned;
    Learned *next;
    Scratch *scratch;
    Sums *sums;         /* [chunks]; NULL for methods without */
    BlockTotal *totals; /* [MOST_BLOCKS] */
    uint32_t *marks;    /* [n / 32 + 1] words of bits, zero; random alone */
    int32_t *chosen_idx;
    float *chosen_val;
    Report *report;
    int64_t k, next_k;
    uint64_t key; /* of this step's random numbers */
    int tiles;
    int method; /* Method */
    Rules rules;
    bool k_changed, k_changes; /* since the step before, until the step after */
};

/* Steps of a group's tensors, which run side by side: on its own, that of a small tensor would take
 * less time than its launch. As many as fit into what a launch takes along: 4 KB, and with drivers
 * that CUDA 13 asks for, 32 KB. */
#if CUDART_VERSION >= 13000
constexpr int TOGETHER = TW__SELECT_AT_ONCE, LAUNCH_BYTES = 32764;
#else
constexpr int TOGETHER = 13, LAUNCH_BYTES = 4096;
#endif
struct Steps {
    int count;
    int singles;                  /* the first so many: one block is enough for each */
    int first_tile[TOGETHER + 1]; /* of each among the tiles of all, and behind the last */
    tw__blocks blocks[TOGETHER];  /* that choose for each */
    Step at[TOGETHER];
};
static_assert(sizeof(Steps) + 3 * sizeof(uint32_t) <= LAUNCH_BYTES, "parameters of a launch");

__device__ inline uint32_t magnitude(float x) {
    return __float_as_uint(x) & TW__MAGNITUDE_MASK;
}

__device__ inline uint32_t as_threshold(float x) {
    return max(magnitude(x), 1u);
}

/* A bin near the guess has 2^near_shift magnitudes. If the k-th largest lies above all bins but the
 * last, the choice takes the long way. Of few entries it is often far above the guess: with bins of
 * half an octave together it was above them in 40 % of the steps for n = 10, and in up to 3 % for
 * n = 30,522 (simulated). So together they are 16 octaves for k < 256, two for k < 8192, and half
 * an octave else; less from k = 2^19 on, as a bin must not hold more than GATHERED candidates. */
__device__ inline uint32_t near_shift(int64_t k) {
    return k < 1 << 8 ? 15 : k < 1 << 13 ? 12 : k < 1 << 19 ? 10 : k < 1 << 21 ? 9 : 8;
}

__device__ inline float widen(const void *grad, int type, int64_t i) {
    if (type == TW_F32)
        return static_cast<const float *>(grad)[i];
    if (type == TW_F16)
        return __half2float(static_cast<const __half *>(grad)[i]);
    return __uint_as_float((uint32_t) static_cast<const uint16_t *>(grad)[i] << 16);
}

/* The gradient at i, clipped. */
__device__ inline float gradient_at(const Source &s, int64_t i) {
    float g = widen(piece_of(s.grad, i).at, s.type, i);
    return s.scale != nullptr ? __fmul_rn(*s.scale, g) : g;
}

/* What a gradient g adds to the residual; the moments become the next ones. The arithmetic is the
 * CPU's, each operation rounded for itself; AdamW's: see adamw.h. */
template <int BEFORE>
__device__ inline float update_of(const Source &s, float g, float *first, float *second) {
    if (BEFORE == NOTHING)
        return g;
    if (BEFORE == MOMENTUM)
        return *first = __fadd_rn(__fmul_rn(s.momentum, *first), g);
    const tw__adamw &a = s.adamw;
    *first = __fadd_rn(__fmul_rn(a.beta1, *first), __fmul_rn(a.fresh1, g));
    *second = __fadd_rn(__fmul_rn(a.beta2, *second), __fmul_rn(__fmul_rn(a.fresh2, g), g));
    float d = __fadd_rn(__fmul_rn(a.root, __fsqrt_rn(*second)), a.eps);
    return __fadd_rn(__fdiv_rn(__fmul_rn(a.rate, *first), d), __fsub_rn(d, d));
}

/* What this step adds at i. */
__device__ inline float source_at(const Source &s, int64_t i) {
    float g = gradient_at(s, i);
    float first = s.first != nullptr ? s.first[i] : 0.0f;
    float second = s.second != nullptr ? s.second[i] : 0.0f;
    if (s.before == NOTHING)
        return g;
    return s.before == MOMENTUM ? update_of<MOMENTUM>(s, g, &first, &second)
                                : update_of<ADAMW>(s, g, &first, &second);
}

/* acc at i as the pass leaves it; without feedback nothing happens before selection. */
__device__ inline float acc_after(const Step &s, int64_t i) {
    return s.acc != nullptr ? s.acc[i] : gradient_at(s.source, i);
}

/* What of e at index i is still there. */
__device__ inline float remains(float e, int64_t i, uint32_t leaving, int32_t tie) {
    bool gone = magnitude(e) >= leaving || (magnitude(e) == leaving - 1 && i <= tie);
    return gone ? 0.0f : e;
}

__device__ inline float residual_at(const Step &s, int64_t i) {
    const Learned &l = *s.learned;
    return l.leaving != 0 ? remains(s.residual[i], i, l.leaving, l.tie) : s.residual[i];
}

/* acc at i before the pass has run. */
__device__ inline float acc_before(const Step &s, int64_t i) {
    float x = source_at(s.source, i);
    return s.residual != nullptr ? __fadd_rn(residual_at(s, i), x) : x;
}

/* ---- methods, and launches; each launch queues on the stream and returns what CUDA says */

/* The Method of this name, which the GPU has. */
int method_named(const char *name);
/* Whether launch_choose_each takes steps of it. */
bool goes_with_others(int method);

cudaError_t set_guess(const Step &s, uint32_t guess, cudaStream_t stream);
cudaError_t launch_clip(const Step &s, cudaStream_t stream);
cudaError_t launch_fold(const Step &s, cudaStream_t stream);
cudaError_t launch_sums(const Step &s, cudaStream_t stream);
cudaError_t launch_choose(const Step &s, int blocks, int64_t stage, cudaStream_t stream);
/* The same for steps of one method that goes_with_others, with one type of gradients and the same
 * before selection. */
cudaError_t launch_fold_each(const Steps &steps, cudaStream_t stream);
/* For steps first .. end-1 with the blocks they were given: all of these run at the same time. */
cudaError_t launch_choose_each(const Steps &steps, int first, int end, int64_t stage,
                               cudaStream_t stream);
/* Candidates that a block of it can hold, or the error. */
cudaError_t prepare_choose(int ordinal, int64_t *stage);
cudaError_t launch_draw(const Step &s, int blocks, cudaStream_t stream);
/* The magnitude of rank `at` among a sample of acc: before the pass as the guess in *s.learned,
 * after it as scratch->sample_threshold. */
cudaError_t launch_sample(const Step &s, int64_t sample, int64_t at, bool after, int blocks,
                          uint32_t *values, cudaStream_t stream);

/* Whether idx[count] is an ascending part of the selection: to report->wrong_part. */
cudaError_t launch_check_part(const Step &s, const int32_t *idx, int64_t count,
                              cudaStream_t stream);
/* Of the selection, idx[count] leaves acc; NULL: all of it. */
cudaError_t launch_leave(const Step &s, const int32_t *idx, int64_t count, cudaStream_t stream);
/* idx[count] leaves the velocity; NULL: the whole selection. */
cudaError_t launch_clear_velocity(const Step &s, const int32_t *idx, int64_t count,
                                  cudaStream_t stream);
/* The residual s.acc is multiplied by the factor, once nothing is left to leave it:
 * report->decayed. Needs s.sums. */
cudaError_t launch_decay(const Step &s, float factor, cudaStream_t stream);
/* What is still to leave a residual, leaves it now. */
cudaError_t launch_settle(float *residual, int64_t n, Learned *learned, cudaStream_t stream);

} // namespace tw

#endif
