/* gather.c - numbers and vectors summed by a dense group
 *
 * A rank gives its numbers by adding zeros everywhere but in its own row of the table: the sum is
 * the table of all ranks, exact, as float32 holds 16 bits with ease.
 */
#include "job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "vector.h"

#define PIECES 4 /* of 16 bits, to a number */
#define TABLE 0  /* the tensors of the group */
#define VECTOR 1

static size_t table_floats(const gather_group *gather) {
    return (size_t)gather->job->nranks * GATHER_VALUES * PIECES;
}

/* This rank's part, before the others need to be there. */
static int create_group(gather_group *gather, int64_t n, double timeout) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "dense";
    params.select.threads = 1;
    params.result = TW_SUM;
    params.timeout = timeout;
    TW_TRY(tw_group_create(&gather->group, gather->job->gather_transport, &params));
    TW_TRY(tw_group_add(gather->group, (int64_t)table_floats(gather), NULL, NULL));
    if (n > 0)
        TW_TRY(tw_group_add(gather->group, n, NULL, NULL));
    return TW_OK;
}

int gather_open(gather_group *gather, job_rank *job, int64_t n, double timeout) {
    *gather = (gather_group){.job = job};
    gather->pieces = calloc(table_floats(gather), sizeof *gather->pieces);
    gather->values = calloc((size_t)job->nranks * GATHER_VALUES, sizeof *gather->values);
    int status =
        gather->pieces != NULL && gather->values != NULL
            ? error_check("preparing the group for checks", create_group(gather, n, timeout))
            : error_report("not enough memory for %d ranks", job->nranks);
    if (status != STATUS_OK) {
        job->error.broken = true; /* no other rank can know */
        return status;
    }
    return error_check("opening the group for checks", tw_group_open(gather->group));
}

void gather_close(gather_group *gather) {
    tw_group_free(gather->group);
    free(gather->pieces);
    free(gather->values);
    *gather = (gather_group){0};
}

/* Put the pieces together. The sums are the library's, which is being checked: only 16-bit numbers
 * are accepted. */
static int read_table(gather_group *gather) {
    memset(gather->values, 0, (size_t)gather->job->nranks * GATHER_VALUES * sizeof(int64_t));
    for (size_t i = 0; i < table_floats(gather); i++) {
        float piece = gather->pieces[i];
        if (!(piece >= 0.0f && piece < 0x1p16f)) {
            gather->job->error.broken = true;
            return error_report("a dense sum of 16-bit numbers is wrong: %g at %zu", (double)piece,
                                i);
        }
        uint64_t bits = (uint64_t)piece << (16 * (i % PIECES));
        gather->values[i / PIECES] = (int64_t)((uint64_t)gather->values[i / PIECES] | bits);
    }
    return STATUS_OK;
}

int gather_values(gather_group *gather, const int64_t *values, int count) {
    assert(count >= 0 && count <= GATHER_VALUES);
    memset(gather->pieces, 0, table_floats(gather) * sizeof *gather->pieces);
    float *mine = gather->pieces + (size_t)gather->job->rank * GATHER_VALUES * PIECES;
    for (int i = 0; i < count * PIECES; i++)
        mine[i] = (float)((uint64_t)values[i / PIECES] >> (16 * (i % PIECES)) & 0xffff);
    int error = tw_allreduce(gather->group, TABLE, gather->pieces, gather->pieces);
    TW_TRY(error_check("comparing the ranks", error));
    return read_table(gather);
}

int64_t gather_value(const gather_group *gather, int rank, int i) {
    assert(rank < gather->job->nranks && i < GATHER_VALUES);
    return gather->values[(size_t)rank * GATHER_VALUES + (size_t)i];
}

int64_t gather_max(const gather_group *gather, int i) {
    int64_t largest = gather_value(gather, 0, i);
    for (int r = 1; r < gather->job->nranks; r++)
        largest = larger(largest, gather_value(gather, r, i));
    return largest;
}

int64_t gather_total(const gather_group *gather, int i) {
    int64_t total = 0;
    for (int r = 0; r < gather->job->nranks; r++)
        total += gather_value(gather, r, i);
    return total;
}

int gather_barrier(gather_group *gather) {
    return gather_values(gather, NULL, 0);
}

int gather_agree(gather_group *gather, int status) {
    int64_t own = status;
    TW_TRY(gather_values(gather, &own, 1));
    gather->job->error.broken = false; /* all know now */
    return gather_max(gather, 0) == STATUS_OK ? STATUS_OK : STATUS_FAILED;
}

int gather_sum(gather_group *gather, const float *values, float *sum) {
    return error_check("summing the residuals", tw_allreduce(gather->group, VECTOR, values, sum));
}
