/* checkpoint.c - save a run so that it can go on bit for bit
 *
 * A checkpoint is a directory, which all ranks must see:
 *
 *     DIR/step-000000100/model.bin     rank 0: parameters and optimiser, the same on all ranks
 *                        rank-0.bin    every rank: running statistics, what is carried
 *                        rank-0.state  every rank: its residuals and thresholds (tw_group_save)
 *                        manifest      rank 0, last: run, step, counters, digests of all files
 *
 * It is written under another name and renamed when all ranks are done, so a directory called
 * step-... is complete. A run keeps its two newest, and those of later steps, which it could not
 * use. Resuming takes the newest whose files are all those of its manifest; another one is named, and
 * the one before it is tried. The .bin files are vectors of floats. */
#include "worker.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define KEPT 2
#define PATH_ROOM 1024
#define FILE_ROOM (PATH_ROOM + 40) /* of a file in a directory */

/* The vectors of one file, in their order. */
typedef struct vectors {
    float *at[3];
    int64_t n[3];
    int count;
} vectors;

static vectors model_vectors(worker *w) {
    int64_t n = w->model->n;
    float **slots = w->optimizer.slots;
    return (vectors){{w->model->values, slots[0], slots[1]}, {n, n, n}, 1 + w->optimizer.nslots};
}

static vectors rank_vectors(worker *w) {
    return (vectors){{w->model->state, w->carry}, {w->model->nstate, w->model->n}, 2};
}

static size_t total_bytes(const vectors *v) {
    size_t total = 0;
    for (int i = 0; i < v->count; i++)
        total += sizeof(float) * (size_t)v->n[i];
    return total;
}

/* Whether a run can have these. The third vector is AdamW's second moment. */
static bool are_possible(const vectors *v) {
    bool possible = true;
    for (int i = 0; i < v->count; i++)
        for (int64_t j = 0; j < v->n[i]; j++)
            possible = possible && isfinite(v->at[i][j]) && (i < 2 || v->at[i][j] >= 0.0f);
    return possible;
}

static int write_vectors(const char *path, const vectors *v, uint64_t *digest) {
    tw__output out;
    int status = TW_OK;
    *digest = total_bytes(v);
    TW_TRY(tw__output_open(&out, path));
    for (int i = 0; i < v->count && status == TW_OK; i++) {
        size_t bytes = sizeof(float) * (size_t)v->n[i];
        *digest = hash_words(*digest, v->at[i], bytes);
        status = tw__output_put(&out, v->at[i], bytes);
    }
    return tw__output_close(&out, status);
}

static int other_file(const char *path) {
    return tw__fail(TW_ERR_DAMAGED,
                    "'%.200s' does not match the manifest: it is damaged, or of another checkpoint",
                    path);
}

/* The vectors of a file, in memory to free, once they are known to be those of the manifest. */
static int read_vectors(const char *path, vectors *v, uint64_t digest, char **data) {
    size_t bytes = total_bytes(v), size = 0;
    TW_TRY(tw__file_read(path, bytes, data, &size));
    if (size != bytes)
        return tw__fail(TW_ERR_DAMAGED, "'%.200s' is truncated, or of another model", path);
    if (hash_words(size, *data, size) != digest)
        return other_file(path);
    char *at = *data;
    for (int i = 0; i < v->count; at += sizeof(float) * (size_t)v->n[i++])
        v->at[i] = (float *)(void *)at;
    return are_possible(v)
               ? TW_OK
               : tw__fail(TW_ERR_DAMAGED, "'%.200s' holds numbers that cannot be", path);
}

static void take_vectors(const vectors *to, const vectors *from) {
    for (int i = 0; i < to->count; i++)
        memcpy(to->at[i], from->at[i], sizeof(float) * (size_t)to->n[i]);
}

static void directory_name(const worker *w, char *path, int64_t step, const char *suffix) {
    snprintf(path, PATH_ROOM, "%s/step-%09lld%s", w->spec->checkpoints, (long long)step, suffix);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)status, (void)type, (void)at;
    (void)remove(path);
    return 0;
}

/* Whatever it is, with all that is in it. Links are removed, not followed. */
static void remove_tree(const char *path) {
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps of complete checkpoints, newest first, at most `room`. */
static int list_steps(const char *checkpoints, int64_t *steps, int room) {
    DIR *directory = opendir(checkpoints);
    struct dirent *entry;
    int count = 0;
    while (directory != NULL && (entry = readdir(directory)) != NULL && count < room) {
        char *end = NULL;
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        int64_t step = strtoll(entry->d_name + 5, &end, 10);
        if (*end == '\0' && end != entry->d_name + 5)
            steps[count++] = step;
    }
    if (directory != NULL)
        closedir(directory);
    qsort(steps, (size_t)count, sizeof *steps, newest_first);
    return count;
}

enum { LISTED = 256 };

int trainer_checkpoints(const char *directory) {
    int64_t steps[LISTED];
    return list_steps(directory, steps, LISTED);
}

/* Removes older checkpoints than this step's, but for the newest. Those of later steps stay: another
 * run may be able to use them. */
static void remove_old(const worker *w) {
    int64_t steps[LISTED];
    int count = list_steps(w->spec->checkpoints, steps, LISTED), kept = 0;
    for (int i = 0; i < count; i++) {
        char path[PATH_ROOM];
        directory_name(w, path, steps[i], "");
        if (steps[i] <= w->step && kept++ >= KEPT)
            remove_tree(path);
    }
}

/* TW_OK where all ranks have TW_OK. Else TW_ERR_MEMORY on all where one lacks memory, as no rank may
 * go on then; else this rank's error, or TW_ERR_FILE for another's. Collective. */
static int all_fine(worker *w, int status) {
    memset(w->sums, 0, sizeof w->sums);
    w->sums[SUM_FLAG] = status == TW_OK ? 0.0f : 1.0f;
    w->sums[SUM_MEMORY] = status == TW_ERR_MEMORY ? 1.0f : 0.0f;
    TW_TRY(worker_allreduce_sums(w));
    if (w->sums[SUM_MEMORY] > 0.0f)
        return TW_ERR_MEMORY;
    return status == TW_OK && w->sums[SUM_FLAG] > 0.0f ? TW_ERR_FILE : status;
}

/* Fills w->words with those of every rank. Collective. */
static int gather_words(worker *w, uint64_t first, uint64_t second) {
    const uint64_t mine[WORDS] = {first, second};
    size_t many = (size_t)w->nranks * PIECES;
    memset(w->pieces, 0, sizeof *w->pieces * many);
    for (int i = 0; i < PIECES; i++)
        w->pieces[w->rank * PIECES + i] = (float)(mine[i / 4] >> 16 * (i % 4) & 0xffff);
    TW_TRY(worker_check(w, "comparing checkpoints",
                        tw_allreduce(w->metrics, METRICS_PIECES, w->pieces, w->pieces)));
    memset(w->words, 0, sizeof *w->words * (size_t)w->nranks);
    for (size_t i = 0; i < many; i++) {
        rank_digests *to = &w->words[i / PIECES];
        *(i % PIECES < 4 ? &to->bin : &to->state) |= (uint64_t)w->pieces[i] << 16 * (i % 4);
    }
    return TW_OK;
}

/* What must be the same for a run to go on. Its steps, rates, ranks and batches may change. */
static uint64_t run_of(const worker *w) {
    const model_spec *m = &w->spec->model;
    char words[256] = "";
    snprintf(words, sizeof words, "%s %s %lld %s %llu", m->name, m->size != NULL ? m->size : "",
             (long long)w->model->n, w->spec->optimizer.name, (unsigned long long)w->spec->seed);
    return hash_words(0, words, sizeof words);
}

/* ---- save */

static int make_directory(worker *w, const char *path) {
    if (mkdir(path, 0777) == 0)
        return TW_OK;
    return worker_fail(w, TW_ERR_FILE, "cannot make the directory '%s': %s", path, strerror(errno));
}

/* The files of this rank, and of rank 0 the model, whose digest is *whole. */
static int write_parts(worker *w, const char *directory, rank_digests *mine, uint64_t *whole) {
    char path[FILE_ROOM];
    vectors own = rank_vectors(w), shared = model_vectors(w);
    snprintf(path, sizeof path, "%s/rank-%d.bin", directory, w->rank);
    TW_TRY(write_vectors(path, &own, &mine->bin));
    snprintf(path, sizeof path, "%s/rank-%d.state", directory, w->rank);
    TW_TRY(tw_group_save(w->group, path));
    TW_TRY(file_digest(path, &mine->state));
    snprintf(path, sizeof path, "%s/model.bin", directory);
    return w->rank == 0 ? write_vectors(path, &shared, whole) : TW_OK;
}

/* Rank 0: with the manifest the checkpoint is complete, and gets its name. */
static int complete(worker *w, const char *part, uint64_t model_digest) {
    char path[FILE_ROOM], whole[PATH_ROOM];
    manifest m = {.run = run_of(w),
                  .model = model_digest,
                  .nranks = w->nranks,
                  .step = w->step,
                  .optimizer_steps = w->optimizer.steps,
                  .skipped = w->skipped,
                  .skipped_in_row = w->skipped_in_row,
                  .carries = w->carries,
                  .elapsed = w->elapsed};
    snprintf(path, sizeof path, "%s/manifest", part);
    directory_name(w, whole, w->step, "");
    TW_TRY(manifest_write(path, &m, w->words));
    remove_tree(whole);
    if (rename(part, whole) != 0)
        return tw__fail(TW_ERR_FILE, "cannot rename '%.200s': %s", part, strerror(errno));
    TW_TRY(tw__file_sync_name(whole));
    remove_old(w);
    return TW_OK;
}

/* Collective. */
static int save(worker *w) {
    char part[PATH_ROOM];
    rank_digests mine = {0, 0};
    uint64_t model_digest = 0;
    directory_name(w, part, w->step, ".part");
    if (w->rank == 0)
        remove_tree(part);
    TW_TRY(all_fine(w, w->rank == 0 ? make_directory(w, part) : TW_OK));
    TW_TRY(all_fine(w, worker_check(w, "saving", write_parts(w, part, &mine, &model_digest))));
    TW_TRY(gather_words(w, mine.bin, mine.state));
    int status = w->rank == 0 ? complete(w, part, model_digest) : TW_OK;
    return all_fine(w, worker_check(w, "saving", status));
}

int checkpoint_save(worker *w) {
    vectors own = rank_vectors(w), shared = model_vectors(w);
    int status = all_fine(w, are_possible(&own) && are_possible(&shared) ? TW_OK : TW_ERR_NUMBER);
    if (status == TW_ERR_NUMBER || status == TW_ERR_FILE) { /* here, or on another rank */
        worker_note(w, "no checkpoint at step %lld: parameters hold NaN or infinity",
                    (long long)w->step);
        return TW_OK;
    }
    if (status == TW_OK)
        status = save(w);
    if (status != TW_OK)
        (void)worker_fail(w, status, "another rank could not write its part of the checkpoint");
    return status;
}

/* ---- resume */

/* A checkpoint on its way into a worker. */
typedef struct loading {
    const char *directory;
    manifest m;
    rank_digests *ranks; /* [m.nranks] */
    uint64_t digest;     /* of the manifest */
    vectors shared, own; /* in the memory that follows */
    char *shared_data, *own_data;
    char why[512]; /* it is not used */
} loading;

/* Keeps the text of an error of this rank. */
static int note_why(loading *l, int status) {
    if (status != TW_OK && l->why[0] == '\0')
        snprintf(l->why, sizeof l->why, "%s", tw_last_error());
    return status;
}

static int read_manifest(worker *w, loading *l, int64_t step) {
    char path[FILE_ROOM];
    snprintf(path, sizeof path, "%s/manifest", l->directory);
    TW_TRY(manifest_read(path, &l->m, &l->ranks, &l->digest));
    if (l->m.step != step)
        return tw__fail(TW_ERR_MISMATCH, "it was saved at step %lld", (long long)l->m.step);
    if (l->m.run != run_of(w))
        return tw__fail(TW_ERR_MISMATCH, "it is of a run with another model, optimiser or seed");
    return TW_OK;
}

/* Every rank must see the same checkpoint. Collective. */
static int compare_manifests(worker *w, const loading *l) {
    TW_TRY(gather_words(w, l->digest, 0));
    for (int r = 1; r < w->nranks; r++)
        if (w->words[r].bin != w->words[0].bin)
            return tw__fail(TW_ERR_MISMATCH, "rank %d sees another checkpoint than rank 0", r);
    return TW_OK;
}

static int check_digest(const char *directory, int rank, const char *suffix, uint64_t expected) {
    char path[FILE_ROOM];
    uint64_t digest;
    snprintf(path, sizeof path, "%s/rank-%d.%s", directory, rank, suffix);
    TW_TRY(file_digest(path, &digest));
    return digest == expected ? TW_OK : other_file(path);
}

/* Every file of the checkpoint is checked by some rank, also those that no rank takes. */
static int read_parts(worker *w, loading *l) {
    char path[FILE_ROOM];
    int saved = (int)l->m.nranks;
    int from = w->rank < saved ? w->rank : 0; /* nothing of its own was saved: as rank 0's */
    l->shared = model_vectors(w);
    l->own = rank_vectors(w);
    snprintf(path, sizeof path, "%s/model.bin", l->directory);
    TW_TRY(read_vectors(path, &l->shared, l->m.model, &l->shared_data));
    snprintf(path, sizeof path, "%s/rank-%d.bin", l->directory, from);
    TW_TRY(read_vectors(path, &l->own, l->ranks[from].bin, &l->own_data));
    for (int r = w->rank; r < saved; r += w->nranks) {
        TW_TRY(check_digest(l->directory, r, "bin", l->ranks[r].bin));
        TW_TRY(check_digest(l->directory, r, "state", l->ranks[r].state));
    }
    return TW_OK;
}

/* Residuals of the ranks that saved: this rank takes its own, or every nranks-th. */
static int load_residuals(worker *w, const loading *l) {
    int saved = (int)l->m.nranks;
    int count = w->rank < saved ? (saved - 1 - w->rank) / w->nranks + 1 : 0;
    char(*paths)[FILE_ROOM] = calloc((size_t)count + 1, sizeof *paths);
    const char **list = calloc((size_t)count + 1, sizeof *list);
    for (int i = 0; paths != NULL && list != NULL && i < count; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/rank-%d.state", l->directory,
                 w->rank + i * w->nranks);
        list[i] = paths[i];
    }
    int status = TW_OK;
    if (paths == NULL || list == NULL)
        status = tw__fail(TW_ERR_MEMORY, "no memory for the names of its files");
    status = all_fine(w, status);
    if (status == TW_OK)
        status = tw_group_load(w->group, list, count);
    free(paths);
    free(list);
    return status;
}

static void take(worker *w, const loading *l) {
    vectors shared = model_vectors(w), own = rank_vectors(w);
    take_vectors(&shared, &l->shared);
    take_vectors(&own, &l->own);
    w->step = l->m.step;
    w->optimizer.steps = l->m.optimizer_steps;
    w->skipped = l->m.skipped;
    w->skipped_in_row = l->m.skipped_in_row;
    w->carries = l->m.carries != 0;
    w->elapsed = l->m.elapsed;
}

/* Nothing changes unless all ranks find all files as they were saved. Collective. */
static int load(worker *w, loading *l, int64_t step) {
    TW_TRY(all_fine(w, note_why(l, read_manifest(w, l, step))));
    TW_TRY(note_why(l, compare_manifests(w, l)));
    TW_TRY(all_fine(w, note_why(l, read_parts(w, l))));
    TW_TRY(note_why(l, load_residuals(w, l)));
    take(w, l);
    return TW_OK;
}

/* One that this run cannot use: an older one may do. All ranks know of these errors. */
static bool blames_checkpoint(int status) {
    return status == TW_ERR_FILE || status == TW_ERR_DAMAGED || status == TW_ERR_MISMATCH ||
           status == TW_ERR_NUMBER;
}

/* Tries one. *used: the run goes on from it. Collective. */
static int try_checkpoint(worker *w, int64_t step, bool *used) {
    char directory[PATH_ROOM];
    loading l = {.directory = directory};
    directory_name(w, directory, step, "");
    int status = load(w, &l, step);
    free(l.ranks);
    free(l.shared_data);
    free(l.own_data);
    const char *why = l.why[0] != '\0' ? l.why : "another rank cannot read its part";
    *used = status == TW_OK;
    if (*used)
        worker_note(w, "resumed at step %lld from '%s'", (long long)step, directory);
    else if (blames_checkpoint(status))
        worker_note(w, "checkpoint '%s' is not used: %s", directory, why);
    else
        return worker_fail(w, status, "resuming from '%s': %s", directory, why);
    return TW_OK;
}

/* Rank 0 says which: others may see another directory. */
static int resume(worker *w) {
    int64_t steps[LISTED];
    bool used = false;
    TW_TRY(gather_words(w, (uint64_t)list_steps(w->spec->checkpoints, steps, LISTED), 0));
    int count = (int)w->words[0].bin;
    for (int i = 0; i < count && !used; i++) {
        TW_TRY(gather_words(w, w->rank == 0 ? (uint64_t)steps[i] : 0, 0));
        TW_TRY(try_checkpoint(w, (int64_t)w->words[0].bin, &used));
    }
    if (count == 0)
        worker_note(w, "no checkpoint to resume from: starting at step 0");
    if (used || count == 0)
        return TW_OK;
    return worker_fail(w, TW_ERR_DAMAGED,
                       "none of %d checkpoints in '%s' can be used; give the options of the run "
                       "that wrote them, or start again without --resume in another directory",
                       count, w->spec->checkpoints);
}

int checkpoint_begin(worker *w) {
    struct stat status;
    const char *path = w->spec->checkpoints;
    bool exists = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    int made = all_fine(w, w->rank == 0 && !exists ? make_directory(w, path) : TW_OK);
    if (made != TW_OK)
        return worker_fail(w, made, "another rank could not make the directory for checkpoints");
    return w->spec->resume ? resume(w) : TW_OK;
}
