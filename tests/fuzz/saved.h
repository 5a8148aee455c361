/* saved.h - makes the checksum of a saved state right, so that what is behind it is reached
 *
 * Knows the layout of src/group/state_file.c from its documentation alone:
 * magic[8], version, byte order, rank, nranks, ntensors, 0 (32 bits each), bytes of the file (64),
 * tensors, checksum (64). */
#ifndef FUZZ_SAVED_H
#define FUZZ_SAVED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SAVED_RANK = 16, SAVED_BYTES = 32, SAVED_LEAST = 48 };

/* data[size] gets another rank and number of ranks. */
static inline void saved_set_rank(uint8_t *data, size_t size, int rank, int nranks) {
    const uint32_t numbers[2] = {(uint32_t)rank, (uint32_t)nranks};
    if (size >= SAVED_LEAST)
        memcpy(data + SAVED_RANK, numbers, sizeof numbers);
}

/* Makes length and checksum of data[size] right, and drops what is not a whole word. Returns the
 * size. */
static inline size_t saved_mend(uint8_t *data, size_t size) {
    uint64_t hash = 0, word;
    if (size < SAVED_LEAST)
        return size;
    size -= size % 8;
    word = size;
    memcpy(data + SAVED_BYTES, &word, sizeof word);
    for (size_t at = 0; at + 8 < size; at += 8) {
        memcpy(&word, data + at, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    memcpy(data + size - 8, &hash, sizeof hash);
    return size;
}

#endif
