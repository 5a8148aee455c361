/* side.c - numbers and vectors summed by a dense group beside the measured one
 *
 * A rank tells its numbers by adding zeros everywhere but in its own row of the table: the sum is
 * the table of all ranks, exact as float32 holds 16 bits with ease.
 */
#include "side.h"

#include <stdlib.h>
#include <string.h>

#include "errors.h"

#define PIECES 4 /* of 16 bits, to a number */
#define TABLE 0  /* the tensors of the group */
#define VECTOR 1

static size_t table_floats(const side *beside) {
    return (size_t)beside->seat->nranks * SIDE_VALUES * PIECES;
}

/* This rank's part, before the others need to be there. */
static int create_group(side *beside, int64_t n, double timeout) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "dense";
    params.select.threads = 1;
    params.result = TW_SUM;
    params.timeout = timeout;
    int error = tw_group_create(&beside->group, beside->seat->beside, &params);
    if (error == TW_OK)
        error = tw_group_add(beside->group, (int64_t)table_floats(beside), NULL, NULL);
    if (error == TW_OK && n > 0)
        error = tw_group_add(beside->group, n, NULL, NULL);
    return error;
}

int side_open(side *beside, rank_seat *seat, int64_t n, double timeout) {
    *beside = (side){.seat = seat};
    beside->pieces = calloc(table_floats(beside), sizeof *beside->pieces);
    beside->told = calloc((size_t)seat->nranks * SIDE_VALUES, sizeof *beside->told);
    if (beside->pieces == NULL || beside->told == NULL) {
        seat->broken = true; /* nobody can be told yet */
        return rank_failure(seat, "not enough memory for %d ranks", seat->nranks);
    }
    int error = create_group(beside, n, timeout);
    if (error != TW_OK) {
        seat->broken = true;
        return rank_library_failure(seat, "preparing the group for checks", error);
    }
    error = tw_group_open(beside->group);
    return error == TW_OK ? STATUS_OK
                          : rank_library_failure(seat, "opening the group for checks", error);
}

void side_close(side *beside) {
    tw_group_free(beside->group);
    free(beside->pieces);
    free(beside->told);
    *beside = (side){0};
}

static int sum_table(side *beside) {
    int error = tw_allreduce(beside->group, TABLE, beside->pieces, beside->pieces);
    return error == TW_OK ? STATUS_OK
                          : rank_library_failure(beside->seat, "comparing the ranks", error);
}

/* Put the pieces together. The sums are the library's, which is being checked: nothing but pieces
 * is taken for one. */
static int read_table(side *beside) {
    memset(beside->told, 0, (size_t)beside->seat->nranks * SIDE_VALUES * sizeof *beside->told);
    for (size_t i = 0; i < table_floats(beside); i++) {
        float piece = beside->pieces[i];
        if (!(piece >= 0.0f && piece < 0x1p16f)) {
            beside->seat->broken = true;
            return rank_failure(beside->seat, "a dense sum of 16-bit numbers is wrong: %g at %zu",
                                (double)piece, i);
        }
        uint64_t bits = (uint64_t)piece << (16 * (i % PIECES));
        beside->told[i / PIECES] = (int64_t)((uint64_t)beside->told[i / PIECES] | bits);
    }
    return STATUS_OK;
}

int side_tell(side *beside, const int64_t *values, int count) {
    memset(beside->pieces, 0, table_floats(beside) * sizeof *beside->pieces);
    float *mine = beside->pieces + (size_t)beside->seat->rank * SIDE_VALUES * PIECES;
    for (int i = 0; i < count * PIECES; i++)
        mine[i] = (float)((uint64_t)values[i / PIECES] >> (16 * (i % PIECES)) & 0xffff);
    int status = sum_table(beside);
    return status == STATUS_OK ? read_table(beside) : status;
}

int64_t side_told(const side *beside, int rank, int i) {
    return beside->told[(size_t)rank * SIDE_VALUES + (size_t)i];
}

int64_t side_largest(const side *beside, int i) {
    int64_t largest = side_told(beside, 0, i);
    for (int r = 1; r < beside->seat->nranks; r++)
        largest = side_told(beside, r, i) > largest ? side_told(beside, r, i) : largest;
    return largest;
}

int64_t side_total(const side *beside, int i) {
    int64_t total = 0;
    for (int r = 0; r < beside->seat->nranks; r++)
        total += side_told(beside, r, i);
    return total;
}

int side_meet(side *beside) {
    return side_tell(beside, NULL, 0);
}

int side_agree(side *beside, int status) {
    int64_t told = status;
    if (side_tell(beside, &told, 1) != STATUS_OK)
        return STATUS_FAILED;
    beside->seat->broken = false; /* all know now */
    return side_largest(beside, 0) == STATUS_OK ? STATUS_OK : STATUS_FAILED;
}

int side_sum(side *beside, const float *values, float *sum) {
    int error = tw_allreduce(beside->group, VECTOR, values, sum);
    return error == TW_OK ? STATUS_OK
                          : rank_library_failure(beside->seat, "summing the residuals", error);
}
