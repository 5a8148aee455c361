/* test_checkpoint.c - a checkpoint from inside: what it restores, and what it refuses
 *
 * Workers are set to numbers that no run reaches soon, saved, and resumed by others. Files are
 * damaged bit by bit, and forged with right digests. What is refused changes nothing.
 */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "manifest.h"
#include "ranks.h"
#include "worker.h"

enum { MOST = 3, PATH = 200, STEP = 40 };

static char directory[64];
static dataset *data;

/* Ranks with their workers; `transports` is for gradients, `metrics` for the rest. */
typedef struct job {
    ranks transports, metrics;
    char checkpoints[MOST][PATH]; /* of each rank */
    trainer_spec specs[MOST];
    trainer_error errors[MOST];
    trainer_watch watch;
    worker workers[MOST];
    char note[1024]; /* rank 0's last */
} job;

static void keep_note(void *context, const char *text) {
    snprintf(context, sizeof((job *)0)->note, "%s", text);
}

static int create(ranks *r, int rank, void *context) {
    job *j = context;
    return worker_create(&j->workers[rank], r->transports[rank], j->metrics.transports[rank]);
}

static trainer_spec tiny_spec(void) {
    trainer_spec spec = {.model = {.name = "lstm",
                                   .max_batch = 2,
                                   .seed = 1,
                                   .vocabulary = dataset_get_info(data)->vocabulary,
                                   .length = 4,
                                   .width = 3,
                                   .layers = 1},
                         .optimizer = {.name = "adamw", .beta1 = 0.9, .beta2 = 0.999},
                         .group = TW_GROUP_PARAMS_INIT,
                         .form = BATCH_WORDS,
                         .batch = 2,
                         .length = 4,
                         .seed = 1,
                         .resume = true};
    spec.group.scheme = "topka";
    spec.group.select.density = 0.1;
    spec.group.select.threads = 1;
    spec.group.timeout = RANKS_TIMEOUT;
    return spec;
}

static void job_open(job *j, int nranks) {
    *j = (job){.note = ""};
    ranks_init(&j->transports, nranks);
    ranks_init(&j->metrics, nranks);
    for (int rank = 0; rank < nranks; rank++) {
        snprintf(j->checkpoints[rank], PATH, "%s/saved", directory);
        j->specs[rank] = tiny_spec();
        j->specs[rank].checkpoints = j->checkpoints[rank];
        j->workers[rank] = (worker){
            .spec = &j->specs[rank], .data = data, .error = &j->errors[rank], .watch = &j->watch};
    }
    static const trainer_watch nobody;
    for (int rank = 1; rank < nranks; rank++)
        j->workers[rank].watch = &nobody;
    j->watch = (trainer_watch){.context = j->note, .note = keep_note};
    ranks_run(&j->transports, create, j);
    ranks_ok(&j->transports);
}

static int free_rank(ranks *r, int rank, void *context) {
    (void)r;
    worker_free(&((job *)context)->workers[rank]);
    return TW_OK;
}

static void job_close(job *j) {
    ranks_run(&j->transports, free_rank, j);
    ranks_close(&j->transports);
    ranks_close(&j->metrics);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static int fill_residuals(worker *w) {
    for (int t = 0; t < w->model->ntensors; t++) {
        float *grad = w->model->tensors[w->model->ntensors - 1 - t].grad;
        int64_t n = w->model->tensors[w->model->ntensors - 1 - t].n;
        oracle_fill(grad, n, DATA_SUMMABLE, (uint64_t)(t * 10 + w->rank));
        TW_TRY(tw_allreduce(w->group, t, grad, grad));
    }
    return TW_OK;
}

/* As after 40 steps, of which the last two were refused in part. */
static int fill(ranks *r, int rank, void *context) {
    worker *w = &((job *)context)->workers[rank];
    const int64_t n = w->model->n;
    (void)r;
    oracle_fill(w->model->values, n, DATA_SUMMABLE, 91);
    oracle_fill(w->optimizer.slots[0], n, DATA_SUMMABLE, 92);
    oracle_fill(w->optimizer.slots[1], n, DATA_SUMMABLE, 93);
    oracle_fill(w->carry, n, DATA_SUMMABLE, 94);
    for (int64_t i = 0; i < n; i++)
        w->optimizer.slots[1][i] = fabsf(w->optimizer.slots[1][i]);
    w->carries = true;
    w->step = STEP;
    w->optimizer.steps = 33;
    w->skipped = 7;
    w->skipped_in_row = 2;
    w->elapsed = 1.5;
    return fill_residuals(w);
}

static void check_worker(const worker *got, const worker *want) {
    const int64_t n = want->model->n;
    check_int("step", got->step, want->step);
    check_int("steps of the optimiser", got->optimizer.steps, want->optimizer.steps);
    check_int("skipped", got->skipped, want->skipped);
    check_int("skipped in a row", got->skipped_in_row, want->skipped_in_row);
    check_int("carries", got->carries, want->carries);
    check_true(got->elapsed == want->elapsed);
    check_bits("parameters", got->model->values, want->model->values, n);
    check_bits("first moments", got->optimizer.slots[0], want->optimizer.slots[0], n);
    check_bits("second moments", got->optimizer.slots[1], want->optimizer.slots[1], n);
    check_bits("what is carried", got->carry, want->carry, n);
}

/* The sum of all ranks' residuals of a tensor, in units; to be freed. */
static int64_t *sum_residuals(const job *j, int tensor, int64_t n) {
    int64_t *sum = check_alloc(n, sizeof *sum);
    float *row = check_alloc(n, sizeof *row);
    for (int rank = 0; rank < j->transports.nranks; rank++) {
        check_ok(tw_group_get_residual(j->workers[rank].group, tensor, row));
        for (int64_t i = 0; i < n; i++)
            sum[i] += check_units(row[i]);
    }
    free(row);
    return sum;
}

static void check_residuals(const job *got, const job *want) {
    const model *m = want->workers[0].model;
    int64_t nonzeros = 0;
    for (int t = 0; t < m->ntensors; t++) {
        const int64_t n = m->tensors[m->ntensors - 1 - t].n;
        int64_t *a = sum_residuals(got, t, n), *b = sum_residuals(want, t, n);
        for (int64_t i = 0; i < n; i++) {
            check_int("sum of residuals", a[i], b[i]);
            nonzeros += b[i] != 0;
        }
        free(a);
        free(b);
    }
    check_true(nonzeros > 10);
}

/* ---- Saving and resuming --------------------------------------------------------------------- */

static int save(ranks *r, int rank, void *context) {
    worker *w = &((job *)context)->workers[rank];
    (void)r;
    TW_TRY(checkpoint_begin(w));
    return checkpoint_save(w);
}

/* One step more for residuals. */
static int step_and_save(ranks *r, int rank, void *context) {
    TW_TRY(fill_residuals(&((job *)context)->workers[rank]));
    return save(r, rank, context);
}

static int begin(ranks *r, int rank, void *context) {
    job *j = context;
    (void)r;
    j->errors[rank].text[0] = '\0';
    return checkpoint_begin(&j->workers[rank]);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)status, (void)type, (void)at;
    return remove(path);
}

static void remove_saved(void) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/saved", directory);
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A job of so many ranks with a checkpoint at STEP. */
static void open_saved(job *j, int nranks) {
    remove_saved();
    job_open(j, nranks);
    j->specs[0].resume = j->specs[1].resume = j->specs[2].resume = false;
    ranks_run(&j->transports, fill, j);
    ranks_ok(&j->transports);
    ranks_run(&j->transports, save, j);
    ranks_ok(&j->transports);
}

static void resume_on(int saved, int nranks) {
    job old, fresh;
    check_scene("saved by %d ranks, resumed by %d", saved, nranks);
    open_saved(&old, saved);
    job_open(&fresh, nranks);
    ranks_run(&fresh.transports, begin, &fresh);
    ranks_ok(&fresh.transports);
    check_contains(fresh.note, "resumed at step 40");
    for (int rank = 0; rank < nranks; rank++)
        check_worker(&fresh.workers[rank], &old.workers[0]);
    check_residuals(&fresh, &old);
    job_close(&fresh);
    job_close(&old);
}

static void test_resume(void **state) {
    (void)state;
    resume_on(1, 1);
    resume_on(2, 2);
    resume_on(3, 2);
    resume_on(2, 3);
    resume_on(3, 1);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void refuse(job *j, const job *before, const char *why) {
    ranks_run(&j->transports, begin, j);
    ranks_error(&j->transports, TW_ERR_DAMAGED);
    check_contains(j->note, "is not used");
    check_contains(j->note, why);
    for (int rank = 0; rank < j->transports.nranks; rank++)
        check_worker(&j->workers[rank], &before->workers[rank]);
}

static const char *const files[] = {"manifest",     "model.bin",  "rank-0.bin",
                                    "rank-0.state", "rank-1.bin", "rank-1.state"};
enum { FILES = sizeof files / sizeof files[0] };

static const char *saved_path(const char *file) {
    static char path[PATH];
    snprintf(path, sizeof path, "%s/saved/step-%09d/%s", directory, STEP, file);
    return path;
}

static char *read_saved(const char *name, size_t *size) {
    struct stat status;
    check_int("stat", stat(saved_path(name), &status), 0);
    *size = (size_t)status.st_size;
    char *bytes = check_alloc(status.st_size + 1, 1);
    FILE *file = fopen(saved_path(name), "rb");
    check_int("read", (int64_t)fread(bytes, 1, *size, file), (int64_t)*size);
    fclose(file);
    return bytes;
}

static void write_saved(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(saved_path(name), "wb");
    check_int("write", (int64_t)fwrite(bytes, 1, size, file), (int64_t)size);
    fclose(file);
}

/* One bit, or the end cut off, or bytes behind it. */
static size_t damage(char *bytes, size_t size, int round, oracle_rng *rng) {
    const size_t at = (size_t)oracle_below(rng, (int64_t)size);
    if (round % 4 == 1)
        return at;
    if (round % 16 == 3)
        return size + 1;
    bytes[at] = (char)(bytes[at] ^ (1 << oracle_below(rng, 8)));
    return size;
}

static void test_damage(void **state) {
    (void)state;
    enum { ROUNDS = 2000 };
    job old, fresh, twin;
    oracle_rng rng = {.key = 7};
    open_saved(&old, 2);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    for (int round = 0; round < ROUNDS; round++) {
        size_t size;
        const char *name = files[round % FILES];
        char *bytes = read_saved(name, &size);
        char *bad = check_alloc((int64_t)size + 1, 1);
        memcpy(bad, bytes, size);
        check_scene("%s, damage %d", name, round);
        write_saved(name, bad, damage(bad, size, round / FILES, &rng));
        refuse(&fresh, &twin, "");
        write_saved(name, bytes, size);
        free(bytes);
        free(bad);
    }
    ranks_run(&fresh.transports, begin, &fresh); /* the good files load */
    ranks_ok(&fresh.transports);
    check_worker(&fresh.workers[1], &old.workers[1]);
    job_close(&twin);
    job_close(&fresh);
    job_close(&old);
}

/* A manifest with right digests of what is now in the files. */
static void seal(manifest *m) {
    rank_digests digests[2];
    check_ok(file_digest(saved_path("model.bin"), &m->model));
    check_ok(file_digest(saved_path("rank-0.bin"), &digests[0].bin));
    check_ok(file_digest(saved_path("rank-1.bin"), &digests[1].bin));
    check_ok(file_digest(saved_path("rank-0.state"), &digests[0].state));
    check_ok(file_digest(saved_path("rank-1.state"), &digests[1].state));
    check_ok(manifest_write(saved_path("manifest"), m, digests));
}

static void test_forged_manifest(void **state) {
    (void)state;
    const int64_t huge = (int64_t)1 << 62, negative = -1, two = 2, more = STEP + 1;
    const int64_t none = 0, wraps = ((int64_t)1 << 60) + 2;
    const double nan_64 = NAN, endless = INFINITY;
    const struct {
        const char *what;
        size_t at;
        const void *value;
        const char *why;
    } cases[] = {
        {"step 2^62", offsetof(manifest, step), &huge, "cannot be"},
        {"step -1", offsetof(manifest, step), &negative, "cannot be"},
        {"another step", offsetof(manifest, step), &more, "saved at step 41"},
        {"another run", offsetof(manifest, run), &two, "another model, optimiser or seed"},
        {"steps of the optimiser: more", offsetof(manifest, optimizer_steps), &more, "cannot be"},
        {"steps of the optimiser: negative", offsetof(manifest, optimizer_steps), &negative,
         "cannot be"},
        {"skipped: more", offsetof(manifest, skipped), &more, "cannot be"},
        {"skipped: negative", offsetof(manifest, skipped), &negative, "cannot be"},
        {"in a row: more", offsetof(manifest, skipped_in_row), &more, "cannot be"},
        {"in a row: negative", offsetof(manifest, skipped_in_row), &negative, "cannot be"},
        {"carries: 2", offsetof(manifest, carries), &two, "cannot be"},
        {"elapsed: NaN", offsetof(manifest, elapsed), &nan_64, "cannot be"},
        {"elapsed: infinite", offsetof(manifest, elapsed), &endless, "cannot be"},
        {"no ranks", offsetof(manifest, nranks), &none, "not a whole manifest"},
        {"ranks whose digests wrap to two's", offsetof(manifest, nranks), &wraps,
         "not a whole manifest"},
    };
    job old, fresh, twin;
    rank_digests *digests;
    uint64_t digest;
    manifest good;
    open_saved(&old, 2);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    check_ok(manifest_read(saved_path("manifest"), &good, &digests, &digest));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        manifest forged = good;
        check_scene("forged manifest: %s", cases[i].what);
        memcpy((char *)&forged + cases[i].at, cases[i].value, 8);
        seal(&forged);
        refuse(&fresh, &twin, cases[i].why);
    }
    check_scene("a manifest that is sealed again");
    seal(&good);
    ranks_run(&fresh.transports, begin, &fresh);
    ranks_ok(&fresh.transports);
    free(digests);
    job_close(&twin);
    job_close(&fresh);
    job_close(&old);
}

static void test_forged_vectors(void **state) {
    (void)state;
    job old, fresh, twin;
    rank_digests *digests;
    uint64_t digest;
    manifest m;
    open_saved(&old, 2);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    const int64_t n = old.workers[0].model->n;
    const struct {
        const char *what, *file;
        int64_t at; /* element */
        float value;
    } cases[] = {
        {"parameter: NaN", "model.bin", n - 1, NAN},
        {"parameter: infinite", "model.bin", 0, -INFINITY},
        {"first moment: NaN", "model.bin", n, NAN},
        {"second moment: negative", "model.bin", 3 * n - 1, -1.0f},
        {"carried: NaN", "rank-0.bin", n - 1, NAN},
    };
    check_ok(manifest_read(saved_path("manifest"), &m, &digests, &digest));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size;
        char *bytes = read_saved(cases[i].file, &size), *forged = check_alloc((int64_t)size, 1);
        check_scene("forged %s", cases[i].what);
        memcpy(forged, bytes, size);
        memcpy(forged + sizeof(float) * (size_t)cases[i].at, &cases[i].value, sizeof(float));
        write_saved(cases[i].file, forged, size);
        seal(&m);
        refuse(&fresh, &twin, "numbers that cannot be");
        write_saved(cases[i].file, bytes, size);
        free(bytes);
        free(forged);
    }
    size_t size;
    char *bytes = read_saved("model.bin", &size);
    check_scene("forged model.bin: shorter");
    write_saved("model.bin", bytes, size - sizeof(float));
    seal(&m);
    refuse(&fresh, &twin, "truncated, or of another model");
    free(bytes);
    free(digests);
    job_close(&twin);
    job_close(&fresh);
    job_close(&old);
}

/* Files that are whole, and of another checkpoint. */
static void test_other_files(void **state) {
    (void)state;
    job old, fresh, twin;
    char *bytes[FILES];
    size_t sizes[FILES];
    open_saved(&old, 2);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    for (int i = 0; i < FILES; i++)
        bytes[i] = read_saved(files[i], &sizes[i]);
    for (int rank = 0; rank < 2; rank++) {
        old.workers[rank].step = STEP + 1;
        old.workers[rank].model->values[0] += 1.0f;
        old.workers[rank].carry[0] += 1.0f;
    }
    ranks_run(&old.transports, step_and_save, &old);
    ranks_ok(&old.transports);
    for (int i = 0; i < FILES; i++) {
        char later[PATH];
        check_scene("%s of another checkpoint", files[i]);
        snprintf(later, sizeof later, "%s/saved/step-%09d/%s", directory, STEP + 1, files[i]);
        check_int("rename", rename(later, saved_path(files[i])), 0);
        snprintf(later, sizeof later, "%s/saved/step-%09d", directory, STEP + 1);
        (void)nftw(later, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        refuse(&fresh, &twin, i == 0 ? "saved at step 41" : "");
        write_saved(files[i], bytes[i], sizes[i]);
        ranks_run(&old.transports, step_and_save, &old);
        ranks_ok(&old.transports);
    }
    for (int i = 0; i < FILES; i++)
        free(bytes[i]);
    job_close(&twin);
    job_close(&fresh);
    job_close(&old);
}

/* Of the three ranks that saved, two go on: nobody takes rank-2.bin, but it is checked. */
static void test_file_of_nobody(void **state) {
    (void)state;
    job old, fresh, twin;
    size_t size;
    check_scene("rank-2.bin is damaged");
    open_saved(&old, 3);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    char *bytes = read_saved("rank-2.bin", &size);
    bytes[size / 2] ^= 1;
    write_saved("rank-2.bin", bytes, size);
    refuse(&fresh, &twin, "rank-2.bin' does not match the manifest");
    free(bytes);
    job_close(&twin);
    job_close(&fresh);
    job_close(&old);
}

/* ---- What ranks see -------------------------------------------------------------------------- */

/* A rank that sees another directory, empty or with a checkpoint of its own: no rank waits for it. */
static void test_other_directory(void **state) {
    (void)state;
    job old, other, fresh, twin;
    char moved[PATH], saved[PATH];
    snprintf(saved, sizeof saved, "%s/saved", directory);
    snprintf(moved, sizeof moved, "%s/moved", directory);
    open_saved(&old, 2);
    check_int("rename", rename(saved, moved), 0);
    open_saved(&other, 2);
    other.workers[0].elapsed = other.workers[1].elapsed = 2.5;
    ranks_run(&other.transports, save, &other);
    ranks_ok(&other.transports);
    job_open(&fresh, 2);
    job_open(&twin, 2);
    check_scene("rank 1 sees another checkpoint");
    snprintf(fresh.checkpoints[1], PATH, "%s", moved);
    refuse(&fresh, &twin, "rank 1 sees another checkpoint");
    check_scene("rank 1 sees none");
    snprintf(fresh.checkpoints[1], PATH, "%s/nowhere", directory);
    refuse(&fresh, &twin, "another rank");
    check_scene("rank 1 sees one more");
    char link[PATH + 40], extra[PATH + 40];
    (void)nftw(moved, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    snprintf(link, sizeof link, "%s/step-%09d", moved, STEP);
    snprintf(extra, sizeof extra, "%s/step-%09d", moved, STEP + 10);
    check_int("mkdir", mkdir(moved, 0700), 0);
    check_int("mkdir", mkdir(extra, 0700), 0);
    check_int("symlink", symlink(saved_path(""), link), 0);
    snprintf(fresh.checkpoints[1], PATH, "%s", moved);
    ranks_run(&fresh.transports, begin, &fresh);
    ranks_ok(&fresh.transports);
    check_contains(fresh.note, "resumed at step 40");
    (void)nftw(moved, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    job_close(&twin);
    job_close(&fresh);
    job_close(&other);
    job_close(&old);
}

/* What a run could not go on from is not saved: it would take the place of what it could. */
static void test_not_finite(void **state) {
    (void)state;
    job j;
    struct stat status;
    check_scene("a parameter of rank 1 is NaN");
    open_saved(&j, 2);
    remove_saved();
    j.workers[1].model->values[3] = NAN;
    ranks_run(&j.transports, save, &j);
    ranks_ok(&j.transports);
    check_contains(j.note, "no checkpoint at step 40");
    check_true(stat(saved_path("manifest"), &status) != 0);
    job_close(&j);
}

/* ---- */

static int set_up(void **state) {
    (void)state;
    char path[PATH];
    snprintf(directory, sizeof directory, "/tmp/thinwire-checkpoint-XXXXXX");
    if (mkdtemp(directory) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/text", directory);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 100; i++)
        fprintf(file, "a%d b c%d d e f\n", i % 3, i % 2);
    fclose(file);
    return dataset_open(&data, path, NULL);
}

static int tear_down(void **state) {
    (void)state;
    dataset_close(data);
    return nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),          cmocka_unit_test(test_damage),
        cmocka_unit_test(test_forged_manifest), cmocka_unit_test(test_forged_vectors),
        cmocka_unit_test(test_other_files),     cmocka_unit_test(test_file_of_nobody),
        cmocka_unit_test(test_other_directory), cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
