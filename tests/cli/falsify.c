/* falsify.c - lets a result of the library be wrong, so that test_verify.sh can see who notices
 *
 * Linked into a copy of the command, in place of some calls of the library. FALSIFY says what is
 * falsified:
 *
 *   sum        element 0 of the sum, alike on all ranks
 *   one-rank   the same on rank 1 alone, which does not check that element
 *   sparse     the last entry of the sparse result is missing, on all ranks
 *   residual   element 0 of what rank 1 keeps
 *   unsent     bench select: an entry of the residual that was not sent
 *   sent       bench select: one that was sent */
#include <stdlib.h>
#include <string.h>

#include "thinwire.h"

int __real_tw_group_create(tw_group **group, tw_transport *transport,
                           const tw_group_params *params);
int __real_tw_allreduce(tw_group *group, int tensor, const void *grad, float *out);
int __real_tw_group_result(tw_group *group, int tensor, tw_sparse *sparse);
int __real_tw_group_get_residual(tw_group *group, int tensor, float *residual);
int __real_tw_selector_get_residual(tw_selector *selector, float *residual);

int __wrap_tw_group_create(tw_group **group, tw_transport *transport,
                           const tw_group_params *params);
int __wrap_tw_allreduce(tw_group *group, int tensor, const void *grad, float *out);
int __wrap_tw_group_result(tw_group *group, int tensor, tw_sparse *sparse);
int __wrap_tw_group_get_residual(tw_group *group, int tensor, float *residual);
int __wrap_tw_selector_get_residual(tw_selector *selector, float *residual);

static _Thread_local int rank;

static int falsifies(const char *what) {
    const char *asked = getenv("FALSIFY");
    return asked != NULL && strcmp(asked, what) == 0;
}

int __wrap_tw_group_create(tw_group **group, tw_transport *transport,
                           const tw_group_params *params) {
    (void)tw_transport_info(transport, NULL, &rank, NULL, NULL);
    return __real_tw_group_create(group, transport, params);
}

/* The command's own sums, which it compares ranks with, are in place or of a second tensor. */
int __wrap_tw_allreduce(tw_group *group, int tensor, const void *grad, float *out) {
    int status = __real_tw_allreduce(group, tensor, grad, out);
    if (tensor == 0 && grad != out && (falsifies("sum") || (falsifies("one-rank") && rank == 1)))
        out[0] += 1.0f;
    return status;
}

int __wrap_tw_group_result(tw_group *group, int tensor, tw_sparse *sparse) {
    int status = __real_tw_group_result(group, tensor, sparse);
    sparse->count -= falsifies("sparse");
    return status;
}

int __wrap_tw_group_get_residual(tw_group *group, int tensor, float *residual) {
    int status = __real_tw_group_get_residual(group, tensor, residual);
    if (falsifies("residual") && rank == 1)
        residual[0] += 1.0f;
    return status;
}

/* bench select reads the residual before the step that it checks, and after it. */
int __wrap_tw_selector_get_residual(tw_selector *selector, float *residual) {
    static int calls;
    int status = __real_tw_selector_get_residual(selector, residual);
    if (++calls == 2 && (falsifies("unsent") || falsifies("sent"))) {
        while ((*residual == 0.0f) != falsifies("sent"))
            residual++;
        *residual += 1.0f;
    }
    return status;
}
