/* manifest.c - see manifest.h */
#include "manifest.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

#define MAGIC "twtrain2"
#define MOST_STEPS ((int64_t)1 << 48) /* as in a saved state: nine years of microseconds */
#define MOST_RANKS ((size_t)1 << 20)
#define PIECE ((size_t)1 << 16)

_Static_assert(sizeof(manifest) == 80, "it is written as it lies in memory: no padding");

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

int file_digest(const char *path, uint64_t *digest) {
    FILE *file = NULL;
    char piece[PIECE];
    size_t size, got;
    TW_TRY(tw__file_open(path, &file, &size));
    *digest = size;
    while ((got = fread(piece, 1, sizeof piece, file)) > 0) {
        memset(piece + got, 0, (0 - got) % 4); /* a file of ours is made of words */
        *digest = hash_words(*digest, piece, got + (0 - got) % 4);
    }
    int failed = ferror(file);
    (void)fclose(file);
    return failed ? tw__fail(TW_ERR_FILE, "'%.200s' cannot be read to its end", path) : TW_OK;
}

int manifest_write(const char *path, manifest *m, const rank_digests *ranks) {
    tw__output out;
    memcpy(m->magic, MAGIC, sizeof m->magic);
    size_t bytes = sizeof *ranks * (size_t)m->nranks;
    uint64_t digest = hash_words(hash_words(0, m, sizeof *m), ranks, bytes);
    TW_TRY(tw__output_open(&out, path));
    int status = tw__output_put(&out, m, sizeof *m);
    if (status == TW_OK)
        status = tw__output_put(&out, ranks, bytes);
    if (status == TW_OK)
        status = tw__output_put(&out, &digest, sizeof digest);
    return tw__output_close(&out, status);
}

/* A right digest says nothing of who made it. */
static int is_possible(const manifest *m) {
    return m->step >= 0 && m->step <= MOST_STEPS && m->optimizer_steps >= 0 &&
           m->optimizer_steps <= m->step && m->skipped >= 0 && m->skipped <= m->step &&
           m->skipped_in_row >= 0 && m->skipped_in_row <= m->skipped &&
           (m->carries == 0 || m->carries == 1) && isfinite(m->elapsed) && m->elapsed >= 0.0;
}

static int check(const char *path, const char *bytes, size_t size, manifest *m, uint64_t *digest) {
    size_t fixed = sizeof *m + sizeof *digest;
    if (size >= fixed)
        memcpy(m, bytes, sizeof *m);
    if (size < fixed || memcmp(m->magic, MAGIC, sizeof m->magic) != 0 || m->nranks < 1 ||
        (uint64_t)m->nranks > MOST_RANKS ||
        size != fixed + sizeof(rank_digests) * (size_t)m->nranks)
        return tw__fail(TW_ERR_DAMAGED, "'%.200s' is not a whole manifest", path);
    memcpy(digest, bytes + size - sizeof *digest, sizeof *digest);
    if (*digest != hash_words(0, bytes, size - sizeof *digest))
        return tw__fail(TW_ERR_DAMAGED, "'%.200s' does not match its digest", path);
    if (!is_possible(m))
        return tw__fail(TW_ERR_DAMAGED, "'%.200s' holds numbers that cannot be", path);
    return TW_OK;
}

int manifest_read(const char *path, manifest *m, rank_digests **ranks, uint64_t *digest) {
    char *bytes = NULL;
    size_t size = 0, most = sizeof *m + sizeof(rank_digests) * MOST_RANKS + sizeof *digest;
    *ranks = NULL;
    TW_TRY(tw__file_read(path, most, &bytes, &size));
    int status = check(path, bytes, size, m, digest);
    if (status == TW_OK) {
        *ranks = calloc((size_t)m->nranks, sizeof **ranks);
        if (*ranks != NULL)
            memcpy(*ranks, bytes + sizeof *m, sizeof **ranks * (size_t)m->nranks);
        else
            status = tw__fail(TW_ERR_MEMORY, "no memory for a manifest of %lld ranks",
                              (long long)m->nranks);
    }
    free(bytes);
    return status;
}
