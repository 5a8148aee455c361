/* memory.c - aligned memory, touched or reserved; see memory.h */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

static size_t alignment_of(size_t bytes) {
    return bytes >= HUGE_PAGE ? HUGE_PAGE : (size_t)TW__ALIGNMENT;
}

size_t tw__footprint(size_t bytes) {
    size_t alignment = alignment_of(bytes);
    assert(bytes <= SIZE_MAX - alignment);
    return bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
}

/* Only a hint: a system that ignores it is slower, not wrong. */
static void advise(void *memory, size_t bytes, int huge) {
#if defined(__linux__)
    if (bytes >= HUGE_PAGE)
        (void)madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)memory, (void)bytes, (void)huge;
#endif
}

void *tw__alloc(size_t bytes) {
    size_t size = tw__footprint(bytes);
    void *memory = aligned_alloc(alignment_of(bytes), size);
    if (memory == NULL)
        return NULL;
    advise(memory, size, 1);
    return memset(memory, 0, size);
}

void *tw__reserve(size_t bytes) {
    size_t size = tw__footprint(bytes);
    void *memory = aligned_alloc(alignment_of(bytes), size);
    if (memory != NULL)
        advise(memory, size, 0);
    return memory;
}
