/* group_state.c - groups that are saved and loaded; see group_state.h */
#include "group_state.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const int64_t state_sizes[STATE_TENSORS] = {903, 57};
oracle_data state_data = DATA_SUMMABLE;
char state_directory[64];

int state_begin(void **state) {
    (void)state;
    snprintf(state_directory, sizeof state_directory, "/tmp/thinwire-state-XXXXXX");
    return mkdtemp(state_directory) ? 0 : -1;
}

int state_end(void **state) {
    (void)state;
    DIR *entries = opendir(state_directory);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        char path[STATE_PATH + 256];
        snprintf(path, sizeof path, "%s/%s", state_directory, e->d_name);
        unlink(path); /* "." and ".." stay */
    }
    if (entries)
        closedir(entries);
    return rmdir(state_directory);
}

/* ---- Files ----------------------------------------------------------------------------------- */

const char *state_path(const char *name, int rank) {
    static char paths[64][STATE_PATH];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, STATE_PATH, "%s/%s-%d", state_directory, name, rank);
    return path;
}

char *state_read(const char *path, int64_t *size) {
    FILE *file = fopen(path, "rb");
    check_true(file != NULL);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = check_alloc(*size + 1, 1);
    check_int("bytes read", (int64_t)fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

void state_write(const char *path, const char *bytes, int64_t size) {
    FILE *file = fopen(path, "wb");
    check_true(file != NULL);
    check_int("bytes written", (int64_t)fwrite(bytes, 1, (size_t)size, file), size);
    fclose(file);
}

/* ---- Saving, loading, steps ------------------------------------------------------------------ */

state_files state_spread(const char *name, int files, int nranks, int stride) {
    state_files c = {.count = {0}};
    for (int i = 0; i < files; i++) {
        const int rank = i * stride % nranks;
        c.paths[rank][c.count[rank]++] = state_path(name, i);
    }
    return c;
}

int state_load(ranks *r, int rank, void *context) {
    const state_files *c = context;
    return tw_group_load(r->groups[rank], c->paths[rank], c->count[rank]);
}

/* Not on threads: state_path has static buffers. */
void state_save_all(ranks *r, const char *name) {
    for (int rank = 0; rank < r->nranks; rank++)
        check_ok(tw_group_save(r->groups[rank], state_path(name, rank)));
}

void state_load_all(ranks *r, const char *name) {
    state_files c = {.count = {0}};
    for (int rank = 0; rank < r->nranks; rank++) {
        c.paths[rank][0] = state_path(name, rank);
        c.count[rank] = 1;
    }
    ranks_run(r, state_load, &c);
}

static float **gradients(int nranks, int tensor, int step) {
    float **grads = rows_alloc(nranks, state_sizes[tensor]);
    for (int rank = 0; rank < nranks; rank++)
        oracle_fill(grads[rank], state_sizes[tensor], state_data,
                    (uint64_t)((step * 10 + tensor) * 100 + rank));
    return grads;
}

/* One step of all tensors; the result of each is returned in outs. */
static void run_step(ranks *r, int step, float **outs[STATE_TENSORS]) {
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        float **grads = gradients(r->nranks, tensor, step);
        outs[tensor] = rows_alloc(r->nranks, state_sizes[tensor]);
        ranks_allreduce(r, tensor, (void *const *)grads, outs[tensor]);
        ranks_ok(r);
        rows_free(grads);
    }
}

void state_steps(ranks *r, int first, int last) {
    float **outs[STATE_TENSORS];
    for (int step = first; step < last; step++) {
        run_step(r, step, outs);
        for (int tensor = 0; tensor < STATE_TENSORS; tensor++)
            rows_free(outs[tensor]);
    }
}

void state_same_residuals(ranks *a, ranks *b) {
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        float **want = rows_alloc(b->nranks, state_sizes[tensor]);
        ranks_get_residuals(b, tensor, want, state_sizes[tensor]);
        ranks_check_residuals(a, tensor, want, state_sizes[tensor]);
        rows_free(want);
    }
}

int state_same_steps(ranks *a, ranks *b, int first, int last) {
    float **got[STATE_TENSORS], **want[STATE_TENSORS];
    int fewer = 0;
    for (int step = first; step < last; step++) {
        run_step(a, step, got);
        run_step(b, step, want);
        for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
            for (int rank = 0; rank < a->nranks; rank++)
                check_bits("out", got[tensor][rank], want[tensor][rank], state_sizes[tensor]);
            tw_step_info one, two;
            check_ok(tw_group_info(a->groups[0], tensor, &one));
            check_ok(tw_group_info(b->groups[0], tensor, &two));
            check_int("info.step", one.step, two.step);
            check_int("info.k", one.k, two.k);
            check_int("info.applied", one.applied, two.applied);
            fewer += tensor == 0 && one.applied < one.k;
            rows_free(got[tensor]);
            rows_free(want[tensor]);
        }
        state_same_residuals(a, b);
    }
    return fewer;
}

tw_group_params state_params(const char *scheme) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.06;
    params.select.threads = 1;
    params.select.reuse_period = 50; /* a threshold that must be kept */
    params.select.seed = 9;
    params.result = TW_SUM;
    return params;
}
