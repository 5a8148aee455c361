/* fuzz.h - what the fuzz targets share: their input as a stream of bytes, seeds, files, REQUIRE
 *
 * A target is one file, fuzz_<part>.c, with the two functions below. Two programs come of it: with
 * clang and THINWIRE_FUZZ libFuzzer drives it, elsewhere fuzz_main.c does. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thinwire.h"

/* Tries one input, which it reads through fuzz_begin. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Inputs that are accepted, to start from. Writes the seed of this number to data[room] and returns
 * its size; 0 past the last. */
enum { FUZZ_ROOM = 1 << 16 };
size_t fuzz_seed(int number, uint8_t *data, size_t room);

/* If the arguments are `seeds DIRECTORY`: writes all seeds there and ends the process. */
void fuzz_write_seeds(int argc, char **argv);

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: violated: %s\nlast error: %s\n", __FILE__, __LINE__,           \
                    #condition, tw_last_error());                                                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- time: fuzz_clock.c, for targets whose line in CMakeLists.txt says CLOCK */

/* Nanoseconds of the library's clock, 100 more after each look at it. 0: real time. */
extern int64_t fuzz_now;

/* ---- files: fuzz_files.c */

/* A file in memory that holds data[size]. There are FUZZ_FILES of them; returns the path of this
 * one. */
enum { FUZZ_FILES = 4 };
const char *fuzz_file(int number, const void *data, size_t size);

/* A new directory for the files of this process, removed at its end. */
const char *fuzz_directory(void);
/* path[FUZZ_PATH] gets that of a file in it. */
enum { FUZZ_PATH = 300 };
const char *fuzz_path(char *path, const char *name);
/* Writes a file, or removes it if data is NULL. */
void fuzz_write(const char *path, const void *data, size_t size);
/* Reads a file into data[room]; returns its size. */
size_t fuzz_read(const char *path, void *data, size_t room);

/* ---- input */

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

/* Counts inputs and bytes for the line that ends a run of libFuzzer. */
input fuzz_begin(const uint8_t *data, size_t size);

/* The next bytes; zeros behind the end. */
static inline uint32_t take(input *in, int bytes) {
    uint32_t value = 0;
    for (; bytes > 0; bytes--) {
        value = value << 8 | (in->left ? *in->data : 0);
        if (in->left) {
            in->data++;
            in->left--;
        }
    }
    return value;
}

/* A part of the input: its length in two bytes, then as many bytes, or all that are left. */
static inline input take_part(input *in) {
    const size_t asked = take(in, 2);
    const input part = {in->data, asked < in->left ? asked : in->left};
    in->data += part.left;
    in->left -= part.left;
    return part;
}

/* ---- seeds: the other direction */

typedef struct output {
    uint8_t *data; /* [room] */
    size_t size, room;
} output;

static inline void put(output *out, uint32_t value, int bytes) {
    REQUIRE(out->room - out->size >= (size_t)bytes);
    for (; bytes > 0; bytes--)
        out->data[out->size++] = (uint8_t)(value >> 8 * (bytes - 1));
}

static inline void put_part(output *out, const void *data, size_t size) {
    put(out, (uint32_t)size, 2);
    REQUIRE(size <= UINT16_MAX && out->room - out->size >= size);
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

/* ---- rows of the library's tables */

static inline int count_methods(void) {
    int count = 0;
    while (tw_select_method(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

static inline int count_exchanges(void) {
    int count = 0;
    while (tw_exchange(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

static inline int count_wires(void) {
    int count = 0;
    while (tw_wire(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

/* One of `count` rows. */
static inline int take_row(input *in, int count) {
    REQUIRE(count > 0);
    return (int)(take(in, 1) % (uint32_t)count);
}

#endif
