/* arena.h - pieces of one block of workspace
 *
 * A layout function takes its pieces in a fixed order. Run on an arena without memory it only
 * counts, so the same lines say how much is needed and later hand it out. */
#ifndef TW_BASE_ARENA_H
#define TW_BASE_ARENA_H

#include "base/memory.h"

#include <stdint.h>

typedef struct tw__arena {
    char *memory; /* NULL: count only */
    size_t used;
} tw__arena;

/* The next piece, of count things of this size, aligned to TW__ALIGNMENT. Never NULL; when
 * counting it leads nowhere. */
static inline void *tw__arena_take(tw__arena *arena, int64_t count, size_t size) {
    static char nowhere;
    size_t bytes = (size_t)count * size;
    void *piece = arena->memory == NULL ? &nowhere : arena->memory + arena->used;
    arena->used += (bytes + TW__ALIGNMENT - 1) / TW__ALIGNMENT * TW__ALIGNMENT;
    return piece;
}

#endif
