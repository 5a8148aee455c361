/* memory.h - allocation, arenas and slabs
 *
 * A page that is touched for the first time costs a page fault. Steps must not pay for it, so there
 * are two ways to allocate:
 *   tw__alloc    zeroed and touched, on huge pages if large: for memory that every step uses
 *   tw__reserve  address space only, not initialised: for memory of which a step uses a small part,
 *                such as the undo log
 * Both align to TW__ALIGNMENT at least and return NULL when memory is out. Free with free(). */
#ifndef TW_BASE_MEMORY_H
#define TW_BASE_MEMORY_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static_assert(sizeof(size_t) >= 8, "sizes are computed without a check for overflow");

/* Two cache lines, as CPUs fetch them in pairs. A power of two. */
#define TW__ALIGNMENT 128

/* Bytes that either call takes from the system for a request of this many. */
size_t tw__footprint(size_t bytes);

void *tw__alloc(size_t bytes);
void *tw__reserve(size_t bytes);

/* ---- arena: parts of one block of workspace
 *
 * A layout function takes its parts in a fixed order. On an arena without memory it only counts:
 * the same lines tell how much is needed and later hand it out. */
typedef struct tw__arena {
    char *memory; /* NULL: count only */
    size_t used;
} tw__arena;

/* The next part: `count` elements of `size` bytes, aligned to TW__ALIGNMENT. Never NULL. When
 * counting, the result must not be dereferenced. */
static inline void *tw__arena_take(tw__arena *arena, int64_t count, size_t size) {
    static char nowhere;
    assert(count >= 0 && (uintptr_t)arena->memory % TW__ALIGNMENT == 0);
    assert(size == 0 || (uint64_t)count <= SIZE_MAX / size);
    size_t bytes = (size_t)count * size;
    void *part = arena->memory == NULL ? &nowhere : arena->memory + arena->used;
    arena->used += (bytes + TW__ALIGNMENT - 1) / TW__ALIGNMENT * TW__ALIGNMENT;
    return part;
}

/* ---- slab: objects of one size, taken and given back in any order
 *
 * Grows by a block when empty and never shrinks, so a steady state allocates nothing. Objects are
 * not initialised, and their pages not touched before they are taken. For one thread at a time. */
typedef struct tw__slab_block {
    struct tw__slab_block *next;
    size_t used;         /* bytes of objects that were taken at least once */
    max_align_t objects; /* the first of slab->grow * slab->size bytes */
} tw__slab_block;

typedef struct tw__slab {
    size_t size, grow;      /* bytes of an object, objects per block */
    void *unused;           /* given back; each object begins with a pointer to the next */
    tw__slab_block *blocks; /* newest first */
} tw__slab;

static inline int tw__slab_grow(tw__slab *slab) {
    tw__slab_block *b = (tw__slab_block *)malloc(sizeof *b + slab->grow * slab->size);
    if (b == NULL)
        return 0;
    b->next = slab->blocks;
    b->used = 0;
    slab->blocks = b;
    return 1;
}

/* Allocates the first block. Returns 0 when memory is out. */
static inline int tw__slab_init(tw__slab *slab, size_t size, size_t grow) {
    assert(size > 0 && grow > 0 && grow <= SIZE_MAX / 2 / size);
    slab->size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    slab->grow = grow;
    slab->unused = slab->blocks = NULL;
    return tw__slab_grow(slab);
}

/* NULL when memory is out. */
static inline void *tw__slab_take(tw__slab *slab) {
    void *object = slab->unused;
    assert(slab->blocks != NULL && slab->blocks->used <= slab->grow * slab->size);
    if (object != NULL) {
        slab->unused = *(void **)object;
        return object;
    }
    if (slab->blocks->used == slab->grow * slab->size && !tw__slab_grow(slab))
        return NULL;
    object = (char *)slab->blocks + offsetof(tw__slab_block, objects) + slab->blocks->used;
    slab->blocks->used += slab->size;
    return object;
}

static inline void tw__slab_put(tw__slab *slab, void *object) {
    assert(object != NULL && object != slab->unused);
    *(void **)object = slab->unused;
    slab->unused = object;
}

/* Frees all objects. A slab of zeros is fine. */
static inline void tw__slab_free(tw__slab *slab) {
    for (tw__slab_block *b = slab->blocks, *next = NULL; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
}

#endif
