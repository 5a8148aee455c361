/* test_group_state.c - saved and loaded: the run goes on bit by bit, also on other ranks; damage is
 * noticed
 *
 * With as many ranks as before, a loaded group must give what the saved one gives, step by step.
 * With other numbers of ranks the sum of residuals over all ranks is kept. A file that is cut or
 * altered anywhere, that belongs to another group, or that is taken twice, is refused on all ranks
 * and nothing changes. Files lie in a directory of their own, removed at the end.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ranks.h"

enum { MOST_RANKS = 8, TENSORS = 2, PATH = 128 };
static const int64_t sizes[TENSORS] = {903, 57};

static char directory[64];
static oracle_data data = DATA_SUMMABLE; /* of the gradients */

static int make_directory(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/thinwire-state-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    DIR *entries = opendir(directory);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        char path[PATH + 256];
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        unlink(path); /* "." and ".." stay */
    }
    if (entries)
        closedir(entries);
    return rmdir(directory);
}

/* ---- Files ---------------------------------------------------------------------------------------- */

/* The path of a rank's file of some name; one of a few buffers. */
static const char *path_of(const char *name, int rank) {
    static char paths[64][PATH];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, PATH, "%s/%s-%d", directory, name, rank);
    return path;
}

static char *read_bytes(const char *path, int64_t *size) {
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

static void write_bytes(const char *path, const char *bytes, int64_t size) {
    FILE *file = fopen(path, "wb");
    check_true(file != NULL);
    check_int("bytes written", (int64_t)fwrite(bytes, 1, (size_t)size, file), size);
    fclose(file);
}

/* ---- Runs ----------------------------------------------------------------------------------------- */

/* Which files each rank names. */
typedef struct claims {
    const char *paths[MOST_RANKS][MOST_RANKS];
    int count[MOST_RANKS];
} claims;

static int load_rank(ranks *r, int rank, void *context) {
    const claims *c = context;
    return tw_group_load(r->groups[rank], c->paths[rank], c->count[rank]);
}

static int save_rank(ranks *r, int rank, void *context) {
    return tw_group_save(r->groups[rank], path_of(context, rank));
}

/* path_of keeps its place in a static: saved one after the other. */
static void save_all(ranks *r, const char *name) {
    for (int rank = 0; rank < r->nranks; rank++)
        check_ok(save_rank(r, rank, (void *)(uintptr_t)name));
}

static void load_all(ranks *r, const char *name) {
    claims c = {.count = {0}};
    for (int rank = 0; rank < r->nranks; rank++) {
        c.paths[rank][0] = path_of(name, rank);
        c.count[rank] = 1;
    }
    ranks_run(r, load_rank, &c);
}

static float **gradients(int nranks, int tensor, int step) {
    float **grads = rows_alloc(nranks, sizes[tensor]);
    for (int rank = 0; rank < nranks; rank++)
        oracle_fill(grads[rank], sizes[tensor], data,
                    (uint64_t)((step * 10 + tensor) * 100 + rank));
    return grads;
}

/* One step of all tensors; the result of each is returned in outs. */
static void run_step(ranks *r, int step, float **outs[TENSORS]) {
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        float **grads = gradients(r->nranks, tensor, step);
        outs[tensor] = rows_alloc(r->nranks, sizes[tensor]);
        ranks_allreduce(r, tensor, (void *const *)grads, outs[tensor]);
        ranks_ok(r);
        rows_free(grads);
    }
}

static void run_steps(ranks *r, int first, int last) {
    float **outs[TENSORS];
    for (int step = first; step < last; step++) {
        run_step(r, step, outs);
        for (int tensor = 0; tensor < TENSORS; tensor++)
            rows_free(outs[tensor]);
    }
}

static void same_residuals(ranks *a, ranks *b) {
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        float **want = rows_alloc(b->nranks, sizes[tensor]);
        ranks_get_residuals(b, tensor, want, sizes[tensor]);
        ranks_check_residuals(a, tensor, want, sizes[tensor]);
        rows_free(want);
    }
}

/* Both go the same way, step by step. Returns in how many steps tensor 0 got fewer entries than k:
 * by a reused global threshold, as its sums are not zero. */
static int same_steps(ranks *a, ranks *b, int first, int last) {
    float **got[TENSORS], **want[TENSORS];
    int fewer = 0;
    for (int step = first; step < last; step++) {
        run_step(a, step, got);
        run_step(b, step, want);
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            for (int rank = 0; rank < a->nranks; rank++)
                check_bits("out", got[tensor][rank], want[tensor][rank], sizes[tensor]);
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
        same_residuals(a, b);
    }
    return fewer;
}

static tw_group_params usual(const char *scheme) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.06;
    params.select.threads = 1;
    params.select.reuse_period = 50; /* a threshold that must be kept */
    params.select.seed = 9;
    params.result = TW_SUM;
    return params;
}

/* ---- Going on --------------------------------------------------------------------------------------- */

static void check_steps(ranks *r, int steps) {
    tw_step_info info;
    tw_sparse sparse;
    check_ok(tw_group_info(r->groups[0], 0, &info));
    check_int("info.step after loading", info.step, steps);
    check_error(tw_group_result(r->groups[0], 0, &sparse), TW_ERR_STATE);
}

/* Returns as same_steps does. */
static int go_on(const tw_group_params *params, int nranks, int steps) {
    ranks old, fresh;
    ranks_open(&old, nranks, params, sizes, TENSORS);
    run_steps(&old, 0, steps);
    save_all(&old, "go-on");
    ranks_open(&fresh, nranks, params, sizes, TENSORS);
    run_steps(&fresh, 500, 502); /* what it held is replaced */
    load_all(&fresh, "go-on");
    ranks_ok(&fresh);
    check_steps(&fresh, steps);
    same_residuals(&fresh, &old);
    const int fewer = same_steps(&fresh, &old, steps, steps + 6);
    ranks_close(&old);
    ranks_close(&fresh);
    return fewer;
}

static void test_go_on(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        for (int variant = 0; variant < 4; variant++) {
            tw_group_params params = usual(scheme);
            params.select.momentum = variant == 1 ? 0.5f : 0.0f;
            params.select.warmup_steps = variant == 2 ? 9 : 0;
            params.select.feedback = variant == 3 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
            params.global = variant % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
            check_scene("%s goes on, variant %d", scheme, variant);
            go_on(&params, 1 + (i + variant) % 4, 5);
        }
}

/* Every selection method keeps what it has learned, and so does the global selection. */
static void test_go_on_methods(void **state) {
    (void)state;
    int reused = 0;
    data = DATA_POWER5; /* heavy tails: thresholds serve for long */
    for (int method = 0; method < check_methods(); method++)
        for (int steps = 0; steps <= 7; steps += 7) {
            tw_group_params params = usual("oktopk");
            params.select.method = check_method(method);
            params.global = TW_GLOBAL_REUSE;
            check_scene("%s goes on after %d steps", params.select.method, steps);
            reused += go_on(&params, 3, steps);
        }
    data = DATA_SUMMABLE;
    check_true(reused > 10); /* or global thresholds never mattered */
}

/* Saved again at once, the files are the same; a save changes nothing. */
static void test_save_twice(void **state) {
    (void)state;
    ranks r;
    int64_t size, other_size;
    const tw_group_params params = usual("oktopk");
    check_scene("saved twice");
    ranks_open(&r, 2, &params, sizes, TENSORS);
    run_steps(&r, 0, 3);
    save_all(&r, "once");
    save_all(&r, "twice");
    for (int rank = 0; rank < 2; rank++) {
        char *a = read_bytes(path_of("once", rank), &size);
        char *b = read_bytes(path_of("twice", rank), &other_size);
        check_int("size", other_size, size);
        check_true(memcmp(a, b, (size_t)size) == 0);
        free(a);
        free(b);
    }
    ranks_close(&r);
}

/* ---- Other numbers of ranks --------------------------------------------------------------------------- */

static int64_t units(float x) {
    const double scaled = (double)x * 1024.0;
    if (scaled != floor(scaled))
        check_fail("%a is no multiple of 2^-10", (double)x);
    return (int64_t)scaled;
}

/* The sum of residuals over ranks in units of 2^-10, element by element; to be freed. */
static int64_t *total(ranks *r, int tensor) {
    float **rows = rows_alloc(r->nranks, sizes[tensor]);
    int64_t *sum = check_alloc(sizes[tensor], sizeof *sum);
    ranks_get_residuals(r, tensor, rows, sizes[tensor]);
    for (int rank = 0; rank < r->nranks; rank++)
        for (int64_t i = 0; i < sizes[tensor]; i++)
            sum[i] += units(rows[rank][i]);
    rows_free(rows);
    return sum;
}

static void same_total(ranks *a, ranks *b) {
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        int64_t *got = total(a, tensor), *want = total(b, tensor), nonzeros = 0;
        for (int64_t i = 0; i < sizes[tensor]; i++) {
            if (got[i] != want[i])
                check_fail("element %lld of tensor %d: residuals sum to %lld, before to %lld",
                           (long long)i, tensor, (long long)got[i], (long long)want[i]);
            nonzeros += want[i] != 0;
        }
        check_true(nonzeros > 10);
        free(got);
        free(want);
    }
}

/* File i goes to rank (i * stride) mod P. */
static claims spread(const char *name, int files, int nranks, int stride) {
    claims c = {.count = {0}};
    for (int i = 0; i < files; i++) {
        const int rank = i * stride % nranks;
        c.paths[rank][c.count[rank]++] = path_of(name, i);
    }
    return c;
}

static void move_ranks(const char *scheme, int from, int to, int stride) {
    ranks old, fresh;
    const tw_group_params params = usual(scheme);
    check_scene("%s from %d to %d ranks, stride %d", scheme, from, to, stride);
    ranks_open(&old, from, &params, sizes, TENSORS);
    run_steps(&old, 0, 5);
    save_all(&old, "move");
    ranks_open(&fresh, to, &params, sizes, TENSORS);
    run_steps(&fresh, 700, 702);
    claims c = spread("move", from, to, stride);
    ranks_run(&fresh, load_rank, &c);
    ranks_ok(&fresh);
    same_total(&fresh, &old);
    run_steps(&fresh, 5, 8);
    tw_step_info info;
    check_ok(tw_group_info(fresh.groups[0], 0, &info));
    check_int("steps counted on", info.step, 8);
    ranks_close(&old);
    ranks_close(&fresh);
}

static void test_other_ranks(void **state) {
    (void)state;
    const int moves[][3] = {{4, 2, 1}, {2, 4, 1}, {2, 4, 3}, {3, 5, 2},
                            {5, 1, 1}, {1, 3, 1}, {6, 4, 1}, {8, 3, 2}};
    const char *const schemes[] = {"topka", "gtopk", "oktopk"};
    for (int i = 0; i < 8; i++)
        for (int s = 0; s < 3; s++)
            move_ranks(schemes[s], moves[i][0], moves[i][1], moves[i][2]);
}

/* As many ranks as before, but the files in other hands: what is taken is kept. */
static void test_files_permuted(void **state) {
    (void)state;
    move_ranks("oktopk", 5, 5, 2);
    move_ranks("gtopk", 3, 3, 2);
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

/* Two ranks with saved files "good", to be compared with themselves after each refused load. */
typedef struct victim {
    ranks r, twin;
    char *good; /* rank 0's file */
    int64_t size;
} victim;

static void victim_open(victim *v) {
    tw_group_params params = usual("oktopk");
    params.select.momentum = 0.5f;
    ranks_open(&v->r, 2, &params, sizes, TENSORS);
    ranks_open(&v->twin, 2, &params, sizes, TENSORS);
    run_steps(&v->r, 0, 3);
    save_all(&v->r, "good");
    v->good = read_bytes(path_of("good", 0), &v->size);
    run_steps(&v->r, 3, 5); /* so that a load that slips through shows */
    run_steps(&v->twin, 0, 5);
}

static void victim_close(victim *v) {
    same_residuals(&v->r, &v->twin);
    same_steps(&v->r, &v->twin, 5, 7);
    load_all(&v->r, "good"); /* the file itself was fine all the time */
    ranks_ok(&v->r);
    ranks_close(&v->r);
    ranks_close(&v->twin);
    free(v->good);
}

/* These bytes as rank 0's file, the good one as rank 1's: refused on both, and the same. */
static void refuse_bytes(victim *v, const char *bytes, int64_t size) {
    claims c = {.paths = {{path_of("bad", 0)}, {path_of("good", 1)}}, .count = {1, 1}};
    write_bytes(c.paths[0][0], bytes, size);
    ranks_run(&v->r, load_rank, &c);
    if (v->r.status[0] != TW_ERR_DAMAGED && v->r.status[0] != TW_ERR_MISMATCH)
        check_fail("rank 0 gave %d (%s)", v->r.status[0], v->r.text[0]);
    ranks_error(&v->r, v->r.status[0]);
}

static void test_truncated(void **state) {
    (void)state;
    victim v;
    victim_open(&v);
    for (int64_t size = 0; size < v.size; size += size < 700 || size > v.size - 20 ? 1 : 97) {
        check_scene("%lld of %lld bytes", (long long)size, (long long)v.size);
        refuse_bytes(&v, v.good, size);
    }
    victim_close(&v);
}

static void test_longer(void **state) {
    (void)state;
    victim v;
    victim_open(&v);
    char *bytes = check_alloc(v.size + 9, 1);
    memcpy(bytes, v.good, (size_t)v.size);
    for (int more = 1; more <= 9; more += 4) {
        check_scene("%d bytes more", more);
        refuse_bytes(&v, bytes, v.size + more);
    }
    free(bytes);
    victim_close(&v);
}

static void test_altered(void **state) {
    (void)state;
    victim v;
    victim_open(&v);
    char *bytes = check_alloc(v.size, 1);
    memcpy(bytes, v.good, (size_t)v.size);
    for (int64_t at = 0; at < v.size; at += at < 2000 || at > v.size - 64 ? 1 : 13) {
        const char flips[] = {1, (char)0x80, (char)0xff};
        const char flip = flips[at % 3];
        check_scene("byte %lld of %lld altered", (long long)at, (long long)v.size);
        bytes[at] = (char)(bytes[at] ^ flip);
        refuse_bytes(&v, bytes, v.size);
        bytes[at] = (char)(bytes[at] ^ flip);
    }
    free(bytes);
    victim_close(&v);
}

/* Not such a file at all. */
static void test_nonsense(void **state) {
    (void)state;
    victim v;
    victim_open(&v);
    oracle_rng rng = {4};
    char *bytes = check_alloc(v.size, 1);
    for (int round = 0; round < 20; round++) {
        check_scene("nonsense %d", round);
        for (int64_t i = round < 10 ? 0 : 16; i < v.size; i++)
            bytes[i] = (char)oracle_next(&rng);
        if (round >= 10)
            memcpy(bytes, v.good, 16);
        refuse_bytes(&v, bytes, round % 2 ? v.size : oracle_below(&rng, v.size));
    }
    free(bytes);
    victim_close(&v);
}

/* ---- Files of other groups, and files in wrong hands --------------------------------------------------------- */

/* Loads of `r` with these claims must give this error on all ranks and change nothing. */
static void refuse_claims(ranks *r, claims *c, int error) {
    float **before[TENSORS];
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        before[tensor] = rows_alloc(r->nranks, sizes[tensor]);
        ranks_get_residuals(r, tensor, before[tensor], sizes[tensor]);
    }
    ranks_run(r, load_rank, c);
    ranks_error(r, error);
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        ranks_check_residuals(r, tensor, before[tensor], sizes[tensor]);
        rows_free(before[tensor]);
    }
}

static void save_other(const tw_group_params *params, const int64_t *other_sizes, int tensors) {
    ranks r;
    ranks_open(&r, 2, params, other_sizes, tensors);
    save_all(&r, "other");
    ranks_close(&r);
}

static void refuse_other(ranks *r, const char *field) {
    claims c = spread("other", 2, 2, 1);
    refuse_claims(r, &c, TW_ERR_MISMATCH);
    ranks_say(r, "%s", field);
}

static void test_other_groups(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = usual("oktopk");
    const int64_t other_n[TENSORS] = {903, 58}, more[3] = {903, 57, 57};
    ranks_open(&r, 2, &params, sizes, TENSORS);
    run_steps(&r, 0, 3);
    check_scene("another n");
    save_other(&params, other_n, TENSORS);
    refuse_other(&r, "n");
    ranks_say(&r, "58");
    check_scene("fewer tensors");
    save_other(&params, sizes, 1);
    refuse_other(&r, "tensors");
    check_scene("more tensors");
    save_other(&params, more, 3);
    refuse_other(&r, "tensors");
    check_scene("with momentum");
    tw_group_params other = params;
    other.select.momentum = 0.5f;
    save_other(&other, sizes, TENSORS);
    refuse_other(&r, "momentum");
    run_steps(&r, 3, 5);
    ranks_close(&r);
}

static void test_wrong_hands(void **state) {
    (void)state;
    ranks old, r;
    const tw_group_params params = usual("oktopk");
    ranks_open(&old, 3, &params, sizes, TENSORS);
    run_steps(&old, 0, 3);
    save_all(&old, "three");
    run_steps(&old, 3, 4);
    save_all(&old, "later");
    ranks_open(&r, 2, &params, sizes, TENSORS);
    run_steps(&r, 0, 2);
    const char *const file[3] = {path_of("three", 0), path_of("three", 1), path_of("three", 2)};

    claims twice = {.paths = {{file[0], file[1]}, {file[1], file[2]}}, .count = {2, 2}};
    check_scene("file 1 is taken by two ranks");
    refuse_claims(&r, &twice, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 1");
    claims same = {.paths = {{file[0], file[0], file[1]}, {file[2]}}, .count = {3, 1}};
    check_scene("file 0 is taken twice by one rank");
    refuse_claims(&r, &same, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 0");
    claims missing = {.paths = {{file[0]}, {file[1]}}, .count = {1, 1}};
    check_scene("file 2 is taken by nobody");
    refuse_claims(&r, &missing, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 2");
    claims none = {.count = {0, 0}};
    check_scene("no file at all");
    refuse_claims(&r, &none, TW_ERR_MISMATCH);
    claims mixed = {.paths = {{file[0], file[1]}, {path_of("later", 2)}}, .count = {2, 1}};
    check_scene("file 2 is of a later step");
    refuse_claims(&r, &mixed, TW_ERR_MISMATCH);
    claims one = {.paths = {{file[0], path_of("later", 1)}, {file[2]}}, .count = {2, 1}};
    check_scene("file 1 is of a later step than file 0 of the same rank");
    refuse_claims(&r, &one, TW_ERR_MISMATCH);
    claims right = {.paths = {{file[0], file[2]}, {file[1]}}, .count = {2, 1}};
    check_scene("each taken once");
    ranks_run(&r, load_rank, &right);
    ranks_ok(&r);
    ranks_close(&old);
    ranks_close(&r);
}

/* ---- The file system ------------------------------------------------------------------------------------------ */

static void test_missing_file(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = usual("gtopk");
    ranks_open(&r, 2, &params, sizes, TENSORS);
    run_steps(&r, 0, 2);
    save_all(&r, "here");
    claims c = {.paths = {{path_of("here", 0)}, {path_of("not-here", 1)}}, .count = {1, 1}};
    check_scene("a file that is not there");
    refuse_claims(&r, &c, TW_ERR_FILE);
    ranks_say(&r, "not-here");
    ranks_say(&r, "rank 1");
    c.paths[1][0] = directory;
    check_scene("a directory");
    refuse_claims(&r, &c, TW_ERR_FILE);
    c.paths[1][0] = NULL;
    check_scene("a path that is NULL");
    refuse_claims(&r, &c, TW_ERR_NULL);
    load_all(&r, "here");
    ranks_ok(&r);
    ranks_close(&r);
}

/* What cannot be written leaves the file that was there, and nothing beside it. */
static int files_in_directory(void) {
    int count = 0;
    DIR *entries = opendir(directory);
    check_true(entries != NULL);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static void test_unwritable(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = usual("gtopk");
    char path[PATH];
    check_scene("unwritable");
    ranks_open(&r, 2, &params, sizes, TENSORS);
    run_steps(&r, 0, 2);
    save_all(&r, "keep");
    int64_t size, after_size;
    char *before = read_bytes(path_of("keep", 0), &size);
    const int files = files_in_directory();
    run_steps(&r, 2, 3);
    snprintf(path, sizeof path, "%s/nowhere/file", directory);
    check_error(tw_group_save(r.groups[0], path), TW_ERR_FILE);
    check_contains(tw_last_error(), "nowhere");
    check_error(tw_group_save(r.groups[0], directory), TW_ERR_FILE);
    check_error(tw_group_save(r.groups[0], ""), TW_ERR_FILE);
    check_int("files in the directory", files_in_directory(), files);
    char *after = read_bytes(path_of("keep", 0), &after_size);
    check_int("size", after_size, size);
    check_true(memcmp(after, before, (size_t)size) == 0);
    free(before);
    free(after);
    run_steps(&r, 3, 5);
    ranks_close(&r);
}

/* A disk that is full, by a limit on the size of files: the old file stays, nothing beside it. */
static void test_disk_full(void **state) {
    (void)state;
    ranks r;
    struct rlimit limit, tight;
    int64_t size, after_size;
    const tw_group_params params = usual("gtopk");
    check_scene("a write that fails");
    ranks_open(&r, 1, &params, sizes, TENSORS);
    run_steps(&r, 0, 2);
    save_all(&r, "full");
    char *before = read_bytes(path_of("full", 0), &size);
    const int files = files_in_directory();
    run_steps(&r, 2, 3);
    getrlimit(RLIMIT_FSIZE, &limit);
    tight = limit;
    tight.rlim_cur = (rlim_t)size / 2;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    const int error = tw_group_save(r.groups[0], path_of("full", 0));
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_DFL);
    check_error(error, TW_ERR_FILE);
    check_int("files in the directory", files_in_directory(), files);
    char *after = read_bytes(path_of("full", 0), &after_size);
    check_int("size", after_size, size);
    check_true(memcmp(after, before, (size_t)size) == 0);
    free(before);
    free(after);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_go_on),          cmocka_unit_test(test_go_on_methods),
        cmocka_unit_test(test_save_twice),     cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_files_permuted), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_longer),         cmocka_unit_test(test_altered),
        cmocka_unit_test(test_nonsense),       cmocka_unit_test(test_other_groups),
        cmocka_unit_test(test_wrong_hands),    cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_unwritable),     cmocka_unit_test(test_disk_full),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
