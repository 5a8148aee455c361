/* checkpoint.c - save a run so that it can go on bit for bit
 *
 * A checkpoint is a directory, which all ranks must see:
 *
 *     DIR/step-000000100/model.bin     rank 0: parameters and optimiser, the same on all ranks
 *                        rank-0.bin    every rank: running statistics, what is carried, counters
 *                        rank-0.state  every rank: its residuals and thresholds (tw_group_save)
 *
 * It is written under another name and renamed when all ranks are done, so a directory called
 * step-... is complete. A run keeps its two newest, and those of later steps, which it could not
 * use. Resuming takes the newest that is whole on all ranks; one that is damaged is named, and the
 * one before it is tried. A file is a header, vectors of floats, and a checksum. */
#include "worker.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "twtrain1"
#define KEPT 2
#define PATH_ROOM 1024

typedef struct header {
    char magic[8];
    int64_t step;
    int64_t optimizer_steps;
    int64_t skipped, skipped_in_row;
    int64_t nranks;
    int64_t carries;
    int64_t floats; /* in the vectors that follow */
    double elapsed;
} header;

_Static_assert(sizeof(header) == 72, "the header is written as it lies in memory: no padding");

uint64_t hash_words(uint64_t hash, const void *data, size_t bytes) {
    const char *at = data;
    assert(bytes % 4 == 0);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, at + i, 4);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

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

static int64_t total_floats(const vectors *v) {
    int64_t total = 0;
    for (int i = 0; i < v->count; i++)
        total += v->n[i];
    return total;
}

static int put(FILE *file, uint64_t *hash, const void *data, size_t bytes) {
    *hash = hash_words(*hash, data, bytes);
    return fwrite(data, 1, bytes, file) == bytes;
}

static int write_file(worker *w, const char *path, const vectors *v) {
    FILE *file = fopen(path, "wb");
    uint64_t hash = 0;
    header h = {.step = w->step,
                .optimizer_steps = w->optimizer.steps,
                .skipped = w->skipped,
                .skipped_in_row = w->skipped_in_row,
                .nranks = w->nranks,
                .carries = w->carries,
                .floats = total_floats(v),
                .elapsed = w->elapsed};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    int fine = file != NULL && put(file, &hash, &h, sizeof h);
    for (int i = 0; i < v->count && fine; i++)
        fine = put(file, &hash, v->at[i], sizeof(float) * (size_t)v->n[i]);
    fine = fine && fwrite(&hash, sizeof hash, 1, file) == 1 && fflush(file) == 0 &&
           fsync(fileno(file)) == 0;
    if ((file != NULL && fclose(file) != 0) || !fine)
        return worker_fail(w, TW_ERR_FILE, "cannot write '%s': %s", path, strerror(errno));
    return TW_OK;
}

/* What is wrong with a file; NULL: nothing. */
static const char *what_is_wrong(const char *data, size_t bytes, const vectors *v) {
    uint64_t sum;
    header h;
    memcpy(&h, data, sizeof h);
    memcpy(&sum, data + bytes - sizeof sum, sizeof sum);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0 || h.floats != total_floats(v))
        return "is not a checkpoint of this model";
    return sum == hash_words(0, data, bytes - sizeof sum) ? NULL : "does not match its checksum";
}

/* Reads a whole file and checks it against what this run expects. *data is memory to free, or NULL
 * with *why saying what is wrong. */
static int read_file(const char *path, const vectors *v, char **data, const char **why) {
    size_t bytes = sizeof(header) + sizeof(float) * (size_t)total_floats(v) + sizeof(uint64_t);
    FILE *file = fopen(path, "rb");
    char *read = file == NULL ? NULL : malloc(bytes + 1);
    size_t got = read == NULL ? 0 : fread(read, 1, bytes + 1, file);
    *data = NULL;
    *why = file == NULL ? "cannot be read" : read == NULL ? "does not fit into memory" : NULL;
    if (file != NULL)
        fclose(file);
    if (read == NULL)
        return file == NULL ? TW_ERR_FILE : TW_ERR_MEMORY;
    *why = got != bytes ? "is truncated, or of another model" : what_is_wrong(read, bytes, v);
    if (*why == NULL) {
        *data = read;
        return TW_OK;
    }
    free(read);
    return TW_ERR_DAMAGED;
}

static void take_vectors(const char *data, const vectors *v) {
    const char *at = data + sizeof(header);
    for (int i = 0; i < v->count; i++) {
        memcpy(v->at[i], at, sizeof(float) * (size_t)v->n[i]);
        at += sizeof(float) * (size_t)v->n[i];
    }
}

static void directory_name(const worker *w, char *path, int64_t step, const char *suffix) {
    snprintf(path, PATH_ROOM, "%s/step-%09lld%s", w->spec->checkpoints, (long long)step, suffix);
}

static void remove_directory(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char file[PATH_ROOM + 300];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.')
            (void)unlink(file);
    }
    if (directory != NULL)
        closedir(directory);
    (void)rmdir(path);
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
            remove_directory(path);
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

static int make_directory(worker *w, const char *path) {
    const char *at = w->spec->checkpoints;
    if (mkdir(at, 0777) == 0 || errno == EEXIST) {
        at = path;
        remove_directory(path);
        if (mkdir(path, 0777) == 0)
            return TW_OK;
    }
    return worker_fail(w, TW_ERR_FILE, "cannot make the directory '%s': %s", at, strerror(errno));
}

static int write_parts(worker *w, const char *directory) {
    char path[PATH_ROOM + 40];
    vectors mine = rank_vectors(w), shared = model_vectors(w);
    snprintf(path, sizeof path, "%s/rank-%d.bin", directory, w->rank);
    TW_TRY(write_file(w, path, &mine));
    snprintf(path, sizeof path, "%s/rank-%d.state", directory, w->rank);
    TW_TRY(worker_check(w, "saving residuals", tw_group_save(w->group, path)));
    snprintf(path, sizeof path, "%s/model.bin", directory);
    return w->rank == 0 ? write_file(w, path, &shared) : TW_OK;
}

int checkpoint_save(worker *w) {
    char part[PATH_ROOM], whole[PATH_ROOM];
    directory_name(w, part, w->step, ".part");
    directory_name(w, whole, w->step, "");
    int status = all_fine(w, w->rank == 0 ? make_directory(w, part) : TW_OK);
    if (status == TW_OK)
        status = all_fine(w, write_parts(w, part));
    if (status == TW_OK && w->rank == 0) {
        remove_directory(whole);
        if (rename(part, whole) != 0)
            status = worker_fail(w, TW_ERR_FILE, "cannot rename '%s': %s", part, strerror(errno));
        else
            remove_old(w);
    }
    status = all_fine(w, status);
    if (status != TW_OK)
        (void)worker_fail(w, status, "another rank could not write its part of the checkpoint");
    return status;
}

/* Residuals of the ranks that saved: this rank takes its own, or every nranks-th. */
static int load_residuals(worker *w, const char *directory, int saved, const char **why) {
    int count = w->rank < saved ? (saved - 1 - w->rank) / w->nranks + 1 : 0;
    char(*paths)[PATH_ROOM + 40] = calloc((size_t)count + 1, sizeof *paths);
    const char **list = calloc((size_t)count + 1, sizeof *list);
    for (int i = 0; paths != NULL && list != NULL && i < count; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/rank-%d.state", directory, w->rank + i * w->nranks);
        list[i] = paths[i];
    }
    int status = all_fine(w, paths == NULL || list == NULL ? TW_ERR_MEMORY : TW_OK);
    if (status != TW_OK)
        *why = "no memory for the names of its files";
    else if ((status = tw_group_load(w->group, list, count)) != TW_OK)
        *why = tw_last_error();
    free(paths);
    free(list);
    return status;
}

/* Loads a checkpoint whose files are whole; *why says what is wrong if they are not. */
static int load(worker *w, const char *directory, const char **why) {
    char path[PATH_ROOM + 40];
    vectors shared = model_vectors(w), mine = rank_vectors(w);
    header h = {.nranks = 1};
    char *model_data = NULL, *rank_data = NULL;
    snprintf(path, sizeof path, "%s/model.bin", directory);
    int status = read_file(path, &shared, &model_data, why);
    if (model_data != NULL)
        memcpy(&h, model_data, sizeof h);
    int another = h.nranks != w->nranks && w->rank >= h.nranks; /* nothing of its own was saved */
    snprintf(path, sizeof path, "%s/rank-%d.bin", directory, another ? 0 : w->rank);
    if (status == TW_OK)
        status = read_file(path, &mine, &rank_data, why);
    status = all_fine(w, status);
    if (status == TW_OK)
        status = load_residuals(w, directory, (int)h.nranks, why);
    if (status == TW_OK && model_data != NULL && rank_data != NULL) {
        take_vectors(model_data, &shared);
        take_vectors(rank_data, &mine);
        w->step = h.step;
        w->optimizer.steps = h.optimizer_steps;
        w->skipped = h.skipped;
        w->skipped_in_row = h.skipped_in_row;
        w->carries = h.carries != 0;
        w->elapsed = h.elapsed;
    }
    free(model_data);
    free(rank_data);
    return status;
}

int checkpoint_resume(worker *w) {
    int64_t steps[LISTED];
    int count = list_steps(w->spec->checkpoints, steps, LISTED);
    for (int i = 0; i < count; i++) {
        char directory[PATH_ROOM];
        const char *why = NULL;
        directory_name(w, directory, steps[i], "");
        int status = load(w, directory, &why);
        if (why == NULL)
            why = "another rank cannot read its part";
        if (status == TW_OK) {
            worker_note(w, "resumed at step %lld from '%s'", (long long)w->step, directory);
            return TW_OK;
        }
        /* errors that blame the checkpoint, which all ranks know then: an older one may do */
        if (status != TW_ERR_FILE && status != TW_ERR_DAMAGED && status != TW_ERR_MISMATCH &&
            status != TW_ERR_NUMBER)
            return worker_fail(w, status, "resuming from '%s': %s", directory, why);
        worker_note(w, "checkpoint '%s' is not used: %s", directory, why);
    }
    if (count > 0)
        return worker_fail(
            w, TW_ERR_DAMAGED,
            "none of %d checkpoints in '%s' can be used; give the options of the run "
            "that wrote them, or start again without --resume in another directory",
            count, w->spec->checkpoints);
    worker_note(w, "no checkpoint to resume from: starting at step 0");
    return TW_OK;
}
