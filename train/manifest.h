/* manifest.h - what makes the files of a checkpoint one: run, step, and a digest of every file
 *
 *     manifest | digests of rank 0's files | rank 1's ... | digest of all before
 *
 * in the byte order of the machine. A file of another step, run or rank has another digest. */
#ifndef TRAIN_MANIFEST_H
#define TRAIN_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

typedef struct manifest {
    char magic[8];
    uint64_t run;   /* what must be the same for a run to go on */
    uint64_t model; /* digest of model.bin */
    int64_t nranks; /* that saved */
    int64_t step;
    int64_t optimizer_steps;
    int64_t skipped, skipped_in_row;
    int64_t carries;
    double elapsed;
} manifest;

/* Of one rank's files: rank-R.bin and rank-R.state. */
typedef struct rank_digests {
    uint64_t bin, state;
} rank_digests;

/* A hash that goes on from `hash`. bytes: a multiple of 4. */
uint64_t hash_words(uint64_t hash, const void *data, size_t bytes);

/* Of a file on disk: the hash of its words that goes on from its size. Errors: TW_ERR_FILE. */
int file_digest(const char *path, uint64_t *digest);

/* m->magic need not be set. ranks: [m->nranks]. Errors: TW_ERR_FILE; TW_ERR_MEMORY. */
int manifest_write(const char *path, manifest *m, const rank_digests *ranks);

/* *ranks: [m->nranks], to free; NULL after an error. *digest: of the whole.
 * Errors: TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DAMAGED, also for numbers that no run has. */
int manifest_read(const char *path, manifest *m, rank_digests **ranks, uint64_t *digest);

#endif
