/* allreduce_check.c - conservation, element by element, without a tolerance
 *
 * Each rank checks n/P elements for all ranks. What the sums of gradients should be shares nothing
 * with the library; the sum of residuals does use its dense exchange, and would show its mistakes
 * too, as each of these sums stands on both sides of one step and the next.
 */
#include "allreduce_check.h"

#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "errors.h"
#include "float_bits.h"

int allreduce_check_create(allreduce_check *check, side *beside, place *where, int64_t n) {
    const rank_seat *seat = beside->seat;
    *check = (allreduce_check){
        .beside = beside,
        .where = where,
        .n = n,
        .begin = n * seat->rank / seat->nranks,
        .end = n * (seat->rank + 1) / seat->nranks,
    };
    int64_t share = check->end - check->begin;
    check->residual = buffer_vector(n);
    check->kept = buffer_vector(n);
    check->before = buffer_vector(share);
    check->given = buffer_vector(share);
    check->gradient = buffer_vector(share);
    if (check->residual == NULL || check->kept == NULL || check->before == NULL ||
        check->given == NULL || check->gradient == NULL) {
        allreduce_check_free(check);
        return rank_failure(beside->seat, "not enough memory for --verify; try a smaller --n or "
                                          "fewer --ranks");
    }
    return STATUS_OK;
}

static void free_sparse(selection *copy) {
    free(copy->idx);
    free(copy->val);
    *copy = (selection){0};
}

void allreduce_check_free(allreduce_check *check) {
    free_sparse(&check->sparse);
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

static int copy_sparse(allreduce_check *check, const tw_sparse *sparse) {
    place *where = check->where;
    selection *copy = &check->sparse;
    size_t count = (size_t)sparse->count;
    free_sparse(copy);
    copy->count = sparse->count;
    copy->idx = malloc((count + 1) * sizeof *copy->idx);
    copy->val = malloc((count + 1) * sizeof *copy->val);
    if (copy->idx == NULL || copy->val == NULL) {
        return rank_failure(check->beside->seat, "not enough memory for --verify; try a smaller "
                                                 "--n or fewer --ranks");
    }
    int status = where->kind->fetch(where, copy->idx, sparse->idx, count * sizeof *copy->idx);
    return status == STATUS_OK
               ? where->kind->fetch(where, copy->val, sparse->val, count * sizeof *copy->val)
               : status;
}

int allreduce_check_copy(allreduce_check *check, tw_group *group) {
    tw_step_info info;
    tw_sparse sparse;
    int error = tw_group_info(group, 0, &info);
    check->dense = error == TW_OK && strcmp(info.exchange, "dense") == 0;
    if (error == TW_OK && !check->dense)
        error = tw_group_result(group, 0, &sparse);
    if (error == TW_OK && !check->dense)
        error = tw_group_get_residual(group, 0, check->residual);
    if (error != TW_OK)
        return rank_library_failure(check->beside->seat, "reading what the step left", error);
    return check->dense ? STATUS_OK : copy_sparse(check, &sparse);
}

/* ---- Whether it is right -------------------------------------------------------------------- */

/* What all ranks together put into the step, within this rank's share. */
static void sum_gradients(allreduce_check *check, int64_t step) {
    int64_t share = check->end - check->begin;
    memset(check->given, 0, (size_t)share * sizeof *check->given);
    for (int r = 0; r < check->beside->seat->nranks; r++) {
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
static int64_t compare_sparse(const selection *sparse, const float *out, int64_t n) {
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
        if (side_sum(check->beside, check->residual, check->kept) != STATUS_OK)
            return STATUS_FAILED;
    }
    sum_gradients(check, step);
    *wrong += compare(check, out);
    return STATUS_OK;
}
