/* allreduce_check.c - conservation, element by element, without a tolerance
 *
 * The law: what was applied plus what the ranks keep is what they kept before plus their gradients.
 *
 *     result[i] + sum of residuals after[i]  =  sum of residuals before[i] + sum of gradients[i]
 *
 * All numbers are such that these sums are exact (patterns.h), so any difference is an error.
 *
 * Each rank checks n/P elements for all ranks. What the sums of gradients should be shares nothing
 * with the library; the sum of residuals does use its dense exchange, and would show its mistakes
 * too, as each of these sums stands on both sides of one step and the next.
 */
#include "bench/bench_allreduce.h"

#include <stdlib.h>
#include <string.h>

#include "vector.h"

static const char no_memory[] =
    "not enough memory for --verify; try a smaller --n or fewer --ranks";

int allreduce_check_create(allreduce_check *check, gather_group *gather, bench_device *device,
                           int64_t n) {
    const job_rank *job = gather->job;
    *check = (allreduce_check){.gather = gather,
                               .device = device,
                               .n = n,
                               .begin = n * job->rank / job->nranks,
                               .end = n * (job->rank + 1) / job->nranks};
    int64_t share = check->end - check->begin;
    check->residual = vector_alloc(n, sizeof(float));
    check->kept = vector_alloc(n, sizeof(float));
    check->before = vector_alloc(share, sizeof(float));
    check->given = vector_alloc(share, sizeof(float));
    check->gradient = vector_alloc(share, sizeof(float));
    if (check->residual == NULL || check->kept == NULL || check->before == NULL ||
        check->given == NULL || check->gradient == NULL) {
        allreduce_check_free(check);
        return error_report("%s", no_memory);
    }
    return STATUS_OK;
}

void allreduce_check_free(allreduce_check *check) {
    selection_copy_free(&check->sparse);
    free(check->residual);
    free(check->kept);
    free(check->before);
    free(check->given);
    free(check->gradient);
    *check = (allreduce_check){0};
}

void allreduce_check_begin(allreduce_check *check, const pattern_spec *made) {
    check->made = *made;
    memset(check->before, 0, (size_t)(check->end - check->begin) * sizeof *check->before);
}

/* ---- What the step left --------------------------------------------------------------------- */

int allreduce_check_copy(allreduce_check *check, tw_group *group) {
    tw_step_info info;
    tw_sparse sparse;
    int error = tw_group_info(group, 0, &info);
    check->dense = error == TW_OK && strcmp(info.exchange, "dense") == 0;
    if (error == TW_OK && !check->dense)
        error = tw_group_result(group, 0, &sparse);
    if (error == TW_OK && !check->dense)
        error = tw_group_get_residual(group, 0, check->residual);
    TW_TRY(error_check("reading what the step left", error));
    return check->dense ? STATUS_OK
                        : bench_device_copy(check->device, &sparse, &check->sparse, no_memory);
}

/* ---- Whether it is right -------------------------------------------------------------------- */

/* What all ranks together put into the step, within this rank's share. */
static void sum_gradients(allreduce_check *check, int64_t step) {
    int64_t share = check->end - check->begin;
    memset(check->given, 0, (size_t)share * sizeof *check->given);
    for (int r = 0; r < check->gather->job->nranks; r++) {
        pattern_fill(&check->made, r, step, check->begin, check->end, check->gradient);
        for (int64_t i = 0; i < share; i++)
            check->given[i] += check->gradient[i];
    }
}

/* NaN differs from everything, so it counts as wrong. */
static int64_t compare(allreduce_check *check, const float *out) {
    const float *applied = out + check->begin;
    const float *after = check->kept + check->begin;
    int64_t wrong = 0;
    for (int64_t i = 0; i < check->end - check->begin; i++) {
        wrong += applied[i] + after[i] != check->before[i] + check->given[i];
        check->before[i] = after[i];
    }
    return wrong;
}

/* The sparse result should be out's non-zero values, bit for bit and in order. */
static int64_t compare_sparse(const selection_copy *sparse, const float *out, int64_t n) {
    int64_t wrong = 0;
    int64_t nonzeros = 0;
    int64_t previous = -1;
    for (int64_t i = 0; i < n; i++)
        nonzeros += out[i] != 0.0f;
    for (int64_t j = 0; j < sparse->count; j++) {
        int64_t i = sparse->idx[j];
        bool right = i > previous && i < n && sparse->val[j] != 0.0f &&
                     float_to_bits(sparse->val[j]) == float_to_bits(out[i]);
        wrong += !right;
        previous = i;
    }
    return wrong + llabs(nonzeros - sparse->count);
}

int allreduce_check_step(allreduce_check *check, int64_t step, const float *out, int64_t *wrong) {
    if (check->dense) {
        memset(check->kept, 0, (size_t)check->n * sizeof *check->kept);
    } else {
        *wrong += compare_sparse(&check->sparse, out, check->n);
        if (gather_sum(check->gather, check->residual, check->kept) != STATUS_OK)
            return STATUS_FAILED;
    }
    sum_gradients(check, step);
    *wrong += compare(check, out);
    return STATUS_OK;
}
