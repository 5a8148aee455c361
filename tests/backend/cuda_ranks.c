/* cuda_ranks.c - see cuda_ranks.h */
#include "cuda_ranks.h"
#include "thinwire_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const transfer_names[TRANSFER_KINDS] = {"direct", "lent", "staged"};

int gpu_missing(void) {
    if (tw_cuda_device(0, NULL) == TW_OK)
        return 0;
    printf("SKIP: %s\n", tw_last_error());
    return 1;
}

void gpu_ok(cudaError_t error) {
    if (error != cudaSuccess)
        check_fail("CUDA: %s", cudaGetErrorString(error));
}

/* ---- life */

tw_group_params params_of(const char *scheme, double density) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = density;
    params.result = TW_SUM;
    params.timeout = RANKS_TIMEOUT;
    return params;
}

static void use_transfers(ranks *r, transfer_kind how) {
    const tw_network network = {.latency = 1e-6, .bandwidth = 1e9};
    for (int i = 0; i < r->nranks; i++) {
        if (how == LENT)
            check_ok(tw_transport_set_device(r->transports[i], &lent_calls, lent_rank(i)));
        if (how == STAGED)
            tw_transport_free(r->transports[i]);
    }
    if (how == STAGED)
        check_ok(tw_transport_simulated(r->transports, r->nranks, &network));
}

static int on_gpu(const pair *p, const ranks *r, int tensor) {
    return r == &p->cuda && (p->setup.on_host >> tensor & 1) == 0;
}

static tw_select_params select_of(const pair *p, int tensor) {
    return p->setup.selects != NULL ? p->setup.selects[tensor] : p->setup.params.select;
}

static int open_rank(ranks *r, int rank, void *context) {
    const pair *p = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &p->setup.params);
    for (int t = 0; t < p->setup.tensors && error == TW_OK; t++) {
        tw_select_params select = select_of(p, t);
        if (on_gpu(p, r, t)) {
            select.device = TW_CUDA;
            select.stream = rank == 1 ? p->setup.stream : NULL;
        }
        error = tw_group_add(r->groups[rank], p->setup.sizes[t], &select, NULL);
    }
    return error != TW_OK ? error : tw_group_open(r->groups[rank]);
}

static void open_sides(pair *p) {
    ranks_init(&p->cpu, p->nranks);
    ranks_init(&p->cuda, p->nranks);
    lent_clear();
    use_transfers(&p->cuda, p->setup.how);
    ranks_run(&p->cpu, open_rank, p);
    ranks_ok(&p->cpu);
    ranks_run(&p->cuda, open_rank, p);
    ranks_ok(&p->cuda);
}

void pair_open(pair *p, const group_setup *what) {
    *p = (pair){.setup = *what, .nranks = what->nranks};
    for (int t = 0; t < what->tensors; t++)
        p->n += what->sizes[t];
    p->grads = rows_alloc(p->nranks, p->n);
    p->outs = rows_alloc(p->nranks, p->n);
    p->copies = rows_alloc(p->nranks, p->n);
    p->residuals[0] = rows_alloc(p->nranks, p->n);
    p->residuals[1] = rows_alloc(p->nranks, p->n);
    for (int r = 0; r < p->nranks; r++) {
        size_t bytes = 4 * (size_t)p->n;
        p->typed[r] = check_alloc(p->n, 4);
        memset(p->outs[r], 0xff, bytes); /* what no step has written is alike, and no number */
        memset(p->copies[r], 0xff, bytes);
        gpu_ok(cudaMalloc(&p->gpu_grads[r], bytes));
        gpu_ok(cudaMalloc((void **)&p->gpu_outs[r], bytes));
        gpu_ok(cudaMemset(p->gpu_outs[r], 0xff, bytes));
    }
    open_sides(p);
}

void pair_open_one(pair *p, int nranks, int64_t n, const tw_group_params *params,
                   transfer_kind how) {
    group_setup one = {.params = *params, .nranks = nranks, .how = how, .tensors = 1, .sizes = &n};
    pair_open(p, &one);
    p->setup.sizes = &p->n;
}

void pair_close(pair *p) {
    ranks_close(&p->cpu);
    ranks_close(&p->cuda);
    rows_free(p->grads);
    rows_free(p->outs);
    rows_free(p->copies);
    rows_free(p->residuals[0]);
    rows_free(p->residuals[1]);
    for (int r = 0; r < p->nranks; r++) {
        free(p->typed[r]);
        gpu_ok(cudaFree(p->gpu_grads[r]));
        gpu_ok(cudaFree(p->gpu_outs[r]));
    }
}

/* ---- steps */

/* Where a tensor's gradient begins, in bytes: four for each element before it, and two more for
 * every second one of those that have room. */
static int64_t place_of(const pair *p, int tensor, int64_t at) {
    return 4 * at + (tensor % 2 == 1 && select_of(p, tensor).type != TW_F32 ? 2 : 0);
}

/* The streams of ranks need not wait for the default one, so it is waited for here. */
void pair_upload(pair *p) {
    for (int r = 0; r < p->nranks; r++) {
        int64_t at = 0;
        for (int t = 0; t < p->setup.tensors; t++) {
            oracle_encode((char *)p->typed[r] + place_of(p, t, at), p->grads[r] + at,
                          p->setup.sizes[t], select_of(p, t).type);
            at += p->setup.sizes[t];
        }
        gpu_ok(cudaMemcpy(p->gpu_grads[r], p->typed[r], 4 * (size_t)p->n, cudaMemcpyHostToDevice));
    }
    gpu_ok(cudaDeviceSynchronize());
}

/* The pointers that a rank gives for a tensor whose elements begin at `at`. */
static oddity gives(const pair *p, const ranks *r, int rank, int tensor, int64_t at) {
    int there = r == &p->cuda, gpu = on_gpu(p, r, tensor);
    if (there && rank == 1 && p->odd.is && p->odd.tensor == tensor)
        return p->odd;
    char *grad = gpu ? p->gpu_grads[rank] : p->typed[rank];
    float *out = gpu ? p->gpu_outs[rank] : there ? p->copies[rank] : p->outs[rank];
    return (oddity){0, tensor, grad + place_of(p, tensor, at), out + at};
}

int reduce_one(ranks *r, int rank, void *context) {
    oddity o = gives(context, r, rank, 0, 0);
    return tw_allreduce(r->groups[rank], 0, o.grad, o.out);
}

int reduce_one_silently(ranks *r, int rank, void *context) {
    pair *p = context;
    oddity o = gives(p, r, rank, 0, 0);
    return tw_allreduce(r->groups[rank], 0, o.grad, r == &p->cuda ? NULL : o.out);
}

/* The last one first, which is not the order in which they travel. */
int reduce_all(ranks *r, int rank, void *context) {
    pair *p = context;
    int64_t at = p->n;
    int error = TW_OK;
    for (int t = p->setup.tensors - 1; t >= 0 && error == TW_OK; t--) {
        at -= p->setup.sizes[t];
        oddity o = gives(p, r, rank, t, at);
        error = tw_allreduce_start(r->groups[rank], t, o.grad, o.out);
    }
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

/* ---- comparisons */

static void compare_sparse(pair *p, int rank, int tensor) {
    tw_sparse cpu, cuda;
    int none = strcmp(p->setup.params.scheme, "dense") == 0 ? TW_ERR_STATE : TW_OK;
    check_error(tw_group_result(p->cpu.groups[rank], tensor, &cpu), none);
    check_error(tw_group_result(p->cuda.groups[rank], tensor, &cuda), none);
    if (none != TW_OK)
        return;
    int32_t *idx = check_alloc(cuda.count + 1, 4);
    float *val = check_alloc(cuda.count + 1, 4);
    gpu_ok(cudaMemcpy(idx, cuda.idx, 4 * (size_t)cuda.count, cudaMemcpyDefault));
    gpu_ok(cudaMemcpy(val, cuda.val, 4 * (size_t)cuda.count, cudaMemcpyDefault));
    tw_sparse copied = {.count = cuda.count, .idx = idx, .val = val};
    check_selection(&copied, cpu.count, cpu.idx, cpu.val);
    free(idx);
    free(val);
}

static void download(pair *p, int rank) {
    int64_t at = 0;
    for (int t = 0; t < p->setup.tensors; t++) {
        if (on_gpu(p, &p->cuda, t)) {
            gpu_ok(cudaMemcpy(p->copies[rank] + at, p->gpu_outs[rank] + at,
                              4 * (size_t)p->setup.sizes[t], cudaMemcpyDeviceToHost));
        }
        at += p->setup.sizes[t];
    }
}

void pair_check_outs(pair *p) {
    for (int r = 0; r < p->nranks; r++) {
        download(p, r);
        check_bits("out", p->copies[r], p->outs[r], p->n);
    }
}

void pair_step(pair *p, ranks_call call, int expected) {
    pair_upload(p);
    ranks_run(&p->cpu, call, p);
    ranks_error(&p->cpu, expected);
    ranks_run(&p->cuda, call, p);
    ranks_error(&p->cuda, expected);
    if (expected == TW_OK && call != reduce_one_silently)
        pair_check_outs(p);
    for (int r = 0; r < p->nranks && expected == TW_OK; r++)
        for (int t = 0; t < p->setup.tensors; t++)
            compare_sparse(p, r, t);
}

void compare_residuals(pair *p) {
    for (int t = 0; t < p->setup.tensors; t++) {
        int64_t n = p->setup.sizes[t];
        char what[64];
        snprintf(what, sizeof what, "tensor %d, residual", t);
        ranks_get_residuals(&p->cpu, t, p->residuals[0], n);
        ranks_get_residuals(&p->cuda, t, p->residuals[1], n);
        for (int r = 0; r < p->nranks; r++)
            check_bits(what, p->residuals[1][r], p->residuals[0][r], n);
    }
}
