/* buffer.c - allocation of big arrays on huge pages */
#include "buffer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

void *buffer_create(int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > (SIZE_MAX - HUGE_PAGE) / size) {
        return NULL;
    }
    /* aligned_alloc wants a multiple of the alignment; whole pages also keep neighbours apart. */
    size_t bytes = ((size_t)count * size + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, bytes);
    if (memory == NULL) {
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    /* A hint only: a kernel without huge pages serves small ones, at slightly worse times. */
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    memset(memory, 0, bytes);
    return memory;
}
