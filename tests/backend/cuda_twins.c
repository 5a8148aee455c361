/* cuda_twins.c - see cuda_twins.h */
#include "cuda_twins.h"

#include <stdlib.h>
#include <string.h>

#include "select/selector.h"

void *gpu_alloc(int64_t bytes) {
    void *memory = NULL;
    gpu_ok(cudaMalloc(&memory, (size_t)bytes + 16));
    return memory;
}

void twins_open(twins *t, int64_t n, const tw_select_params *params, int64_t shift) {
    int64_t size = oracle_type_size(params->type);
    *t = (twins){.n = n, .params = *params, .shift = shift};
    t->values = malloc(sizeof(float) * (size_t)n);
    t->typed = malloc((size_t)((n + shift) * size));
    t->idx = malloc(sizeof(int32_t) * (size_t)n);
    t->val = malloc(sizeof(float) * (size_t)n);
    assert_true(t->values && t->typed && t->idx && t->val);
    t->on_gpu = gpu_alloc((n + shift) * size);
    check_ok(tw_selector_create(&t->cpu, n, params));
    tw_select_params cuda = *params;
    cuda.device = TW_CUDA;
    cuda.threads = 0;
    check_ok(tw_selector_create(&t->cuda, n, &cuda));
}

void twins_close(twins *t) {
    tw_selector_free(t->cpu);
    tw_selector_free(t->cuda);
    gpu_ok(cudaFree(t->on_gpu));
    free(t->values);
    free(t->typed);
    free(t->idx);
    free(t->val);
}

char *gradient_cpu(const twins *t) {
    return t->typed + t->shift * oracle_type_size(t->params.type);
}

char *gradient_cuda(const twins *t) {
    return t->on_gpu + t->shift * oracle_type_size(t->params.type);
}

void twins_upload(twins *t) {
    int64_t size = oracle_type_size(t->params.type);
    oracle_encode(gradient_cpu(t), t->values, t->n, t->params.type);
    gpu_ok(cudaMemcpy(gradient_cuda(t), gradient_cpu(t), (size_t)(t->n * size),
                      cudaMemcpyHostToDevice));
}

void twins_fill(twins *t, oracle_data kind, float scale, uint64_t seed) {
    oracle_fill(t->values, t->n, kind, seed);
    for (int64_t i = 0; i < t->n; i++)
        t->values[i] *= scale;
    twins_upload(t);
}

static void check_refused(twins *t) {
    tw_select_info mine, theirs;
    tw_sparse sparse;
    check_error(tw_selector_wait(t->cuda, &sparse), TW_ERR_NUMBER);
    check_ok(tw_selector_info(t->cpu, &mine));
    check_ok(tw_selector_info(t->cuda, &theirs));
    check_int("bad index", theirs.bad_index, mine.bad_index);
}

int twins_run(twins *t) {
    tw_sparse sparse;
    int error = tw_selector_run(t->cpu, gradient_cpu(t), &t->mine);
    check_ok(tw_selector_run(t->cuda, gradient_cuda(t), &sparse));
    assert_int_equal(sparse.count, -1);
    if (error == TW_ERR_NUMBER) {
        check_refused(t);
        return 0;
    }
    check_ok(error);
    check_ok(tw_selector_wait(t->cuda, &sparse));
    size_t bytes = 4 * (size_t)sparse.count;
    gpu_ok(cudaMemcpy(t->idx, sparse.idx, bytes, cudaMemcpyDeviceToHost));
    gpu_ok(cudaMemcpy(t->val, sparse.val, bytes, cudaMemcpyDeviceToHost));
    tw_sparse got = {.count = sparse.count, .idx = t->idx, .val = t->val};
    check_selection(&got, t->mine.count, t->mine.idx, t->mine.val);
    tw_select_info mine, theirs;
    check_ok(tw_selector_info(t->cpu, &mine));
    check_ok(tw_selector_info(t->cuda, &theirs));
    check_float("threshold", theirs.threshold, mine.threshold);
    check_int("k", theirs.k, mine.k);
    return 1;
}

/* Every second entry of the selection was sent. */
static void commit_half(twins *t) {
    int64_t count = 0;
    int32_t *half = malloc(sizeof *half * (size_t)(t->mine.count + 1));
    assert_non_null(half);
    for (int64_t i = 0; i < t->mine.count; i += 2)
        half[count++] = t->mine.idx[i];
    int32_t *on_gpu = gpu_alloc(4 * count);
    gpu_ok(cudaMemcpy(on_gpu, half, 4 * (size_t)count, cudaMemcpyHostToDevice));
    check_ok(tw_selector_commit(t->cuda, on_gpu, count));
    check_ok(tw_selector_commit(t->cpu, half, count));
    gpu_ok(cudaFree(on_gpu));
    free(half);
}

void twins_end(twins *t, int how) {
    if (how == 1) {
        check_ok(tw_selector_undo(t->cpu, gradient_cpu(t)));
        check_ok(tw_selector_undo(t->cuda, gradient_cuda(t)));
    } else if (how == 2) {
        commit_half(t);
    } else {
        check_ok(tw_selector_commit(t->cpu, NULL, 0));
        check_ok(tw_selector_commit(t->cuda, NULL, 0));
    }
}

static void compare(twins *t, tw__vector which, const char *what) {
    float *mine = check_alloc(t->n, sizeof *mine), *theirs = check_alloc(t->n, sizeof *theirs);
    check_ok(t->cpu->backend->get(t->cpu->state, which, 0, t->n, mine));
    check_ok(t->cuda->backend->get(t->cuda->state, which, 0, t->n, theirs));
    for (int64_t i = 0; i < t->n; i++) {
        if (theirs[i] != mine[i]) { /* a zero may have another sign */
            fail_msg("%s %lld: %a on the CPU, %a on the GPU", what, (long long)i, (double)mine[i],
                     (double)theirs[i]);
        }
    }
    free(mine);
    free(theirs);
}

static double decayed(const tw_selector *selector) {
    tw_select_info info;
    check_ok(tw_selector_info(selector, &info));
    return info.decayed;
}

void compare_states(twins *t) {
    uint32_t moments = tw__moments_of(&t->params);
    if (t->params.feedback == TW_FEEDBACK_ON)
        compare(t, TW__RESIDUAL, "residual");
    if (decayed(t->cpu) != decayed(t->cuda))
        check_fail("decayed is %.17g on the CPU, %.17g on the GPU", decayed(t->cpu),
                   decayed(t->cuda));
    if (moments > 0)
        compare(t, TW__FIRST, "first moment");
    if (moments > 1)
        compare(t, TW__SECOND, "second moment");
}
