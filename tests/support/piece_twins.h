/* piece_twins.h - the same group twice: gradients in one vector, and in pieces
 *
 * The first lies on the CPU. The second lies where piece_memory says. Both get the same numbers, step
 * by step; results, dense and sparse, residuals and parameters must agree bit for bit.
 */
#ifndef PIECE_TWINS_H
#define PIECE_TWINS_H

#include "ranks.h"

enum { PIECES_MOST = 300 };

/* The memory of pieces. */
typedef struct piece_memory {
    int device;      /* tw_device */
    int any_address; /* pieces need not be aligned to their elements */
    void *(*alloc)(int64_t bytes);
    void (*free)(void *memory);
    void (*copy)(void *to, const void *from, int64_t bytes); /* any to any */
} piece_memory;
extern const piece_memory piece_memory_cpu;

/* Where the result goes in the second group. */
typedef enum { PIECES_OUT_NONE, PIECES_OUT_APART, PIECES_OUT_GRAD, PIECES_OUTS } pieces_out;

typedef struct piece_case {
    tw_group_params params;
    int nranks;
    int steps;
    int npieces;
    int64_t sizes[PIECES_MOST];
    pieces_out out; /* GRAD: with f32 */
    oracle_data data;
    int bad_step;  /* in which an element is NaN; -1: none */
    int load_step; /* before which each group loads what the other saved; -1: none */
    uint64_t seed;
} piece_case;

/* A common case: `npieces` pieces of 1 to `largest` elements. */
piece_case piece_case_default(const char *scheme, int npieces, int64_t largest, uint64_t seed);

void piece_check(const piece_case *c, const piece_memory *memory);

#endif
