/* select_verify.c - checks one step by a method that shares nothing with the library
 *
 * The library guesses a threshold and picks among candidates; here the k-th magnitude comes from
 * two histograms over the whole vector. Slow and simple, outside the timed region.
 *
 * The magnitude of a finite float32 orders like its low 31 bits read as an integer, the key. A
 * histogram over the upper 16 bits of all keys finds the bin of the k-th largest, a second one over
 * the lower 15 bits of that bin's keys finds the key itself, the cut. The top k are then all keys
 * above the cut and, in index order, as many equal to it as are missing.
 *
 *     example, k = 3:  keys 5 9 7 7 2 7   cut 7, 1 key above, 2 ties wanted: indices 1 2 3
 */
#include "bench/bench_select.h"

#include <assert.h>
#include <stdlib.h>

#include "error.h"
#include "vector.h"

#define LOW_BITS 15
#define HIGH_BINS (1 << 16)
#define LOW_BINS (1 << LOW_BITS)

static uint32_t key_of(float value) {
    return float_to_bits(value) & 0x7fffffffu;
}

/* ---- What holds for every method ------------------------------------------------------------ */

static const char *check_entries(const select_step *step, int64_t *index) {
    int64_t previous = -1;
    for (int64_t j = 0; j < step->sent.count; j++) {
        int64_t i = step->sent.idx[j];
        *index = i;
        if (i <= previous || i >= step->n)
            return "the indices are not ascending within 0 .. n-1";
        if (float_to_bits(step->sent.val[j]) != float_to_bits(step->acc[i]))
            return "a selected value is not gradient + residual";
        previous = i;
    }
    return NULL;
}

static const char *check_residual(const select_step *step, int64_t *index) {
    int64_t next = 0; /* entry of the selection that comes next */
    for (int64_t i = 0; i < step->n; i++) {
        bool sent = next < step->sent.count && step->sent.idx[next] == i;
        next += sent;
        *index = i;
        if (sent && step->after[i] != 0.0f)
            return "a sent entry is still in the residual";
        if (!sent && float_to_bits(step->after[i]) != float_to_bits(step->acc[i]))
            return "the residual lost or changed an entry that was not sent";
    }
    return NULL;
}

const char *select_verify(const select_step *step, int64_t *index) {
    const char *wrong = check_entries(step, index);
    return wrong != NULL ? wrong : check_residual(step, index);
}

/* ---- The true top-k ------------------------------------------------------------------------- */

/* Walk the bins from the top until `wanted` keys are covered. *wanted becomes how many of them lie
 * in the bin returned. */
static uint32_t find_bin(const int64_t *bins, int nbins, int64_t *wanted) {
    int bin = nbins - 1;
    while (bin > 0 && bins[bin] < *wanted) {
        *wanted -= bins[bin];
        bin--;
    }
    return (uint32_t)bin;
}

/* The key of the k-th largest magnitude. *ties: how many keys equal to it belong to the top k. */
static uint32_t find_cut(const float *acc, int64_t n, int64_t *bins, int64_t k, int64_t *ties) {
    *ties = k;
    for (int64_t i = 0; i < n; i++)
        bins[key_of(acc[i]) >> LOW_BITS]++;
    uint32_t high = find_bin(bins, HIGH_BINS, ties);
    int64_t *low_bins = bins + HIGH_BINS;
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = key_of(acc[i]);
        if (key >> LOW_BITS == high)
            low_bins[key & (LOW_BINS - 1)]++;
    }
    return high << LOW_BITS | find_bin(low_bins, LOW_BINS, ties);
}

static int64_t count_nonzeros(const float *acc, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += acc[i] != 0.0f;
    return count;
}

/* The values were checked against acc before, so the indices decide. */
static bool is_top(const select_step *step, uint32_t cut, int64_t ties) {
    int64_t next = 0;
    for (int64_t i = 0; i < step->n; i++) {
        uint32_t key = key_of(step->acc[i]);
        bool belongs = key > cut || (key == cut && ties > 0);
        if (!belongs)
            continue;
        ties -= key == cut;
        if (next == step->sent.count || step->sent.idx[next] != i)
            return false;
        next++;
    }
    return next == step->sent.count;
}

int select_verify_exact(const select_step *step, bool *exact) {
    assert(step->k >= 1 && step->k <= step->n);
    int64_t nonzeros = count_nonzeros(step->acc, step->n);
    int64_t k = step->k < nonzeros ? step->k : nonzeros;
    if (step->sent.count != k || k == 0) {
        *exact = step->sent.count == k;
        return STATUS_OK;
    }
    int64_t *bins = calloc(HIGH_BINS + LOW_BINS, sizeof *bins);
    if (bins == NULL)
        return error_report("not enough memory to check the selection");
    int64_t ties;
    uint32_t cut = find_cut(step->acc, step->n, bins, k, &ties);
    *exact = is_top(step, cut, ties);
    free(bins);
    return STATUS_OK;
}
