/* buffer.c - allocation of big arrays on huge pages
 *
 * Linux grants more memory than there is and kills the process that touches it. Asking first what
 * is free turns that into an error message.
 */
#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

size_t buffer_available(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (file == NULL)
        return SIZE_MAX;
    char line[128];
    size_t kilobytes = SIZE_MAX / 1024;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %zu", &kilobytes) == 1)
            break;
    fclose(file);
    return kilobytes / 8 * 7 * 1024; /* page tables and everybody else live on the rest */
}

void *buffer_create(int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > (SIZE_MAX - HUGE_PAGE) / size)
        return NULL;
    /* aligned_alloc wants a multiple of the alignment; whole pages also keep neighbours apart. */
    size_t bytes = ((size_t)count * size + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    void *memory = bytes <= buffer_available() ? aligned_alloc(HUGE_PAGE, bytes) : NULL;
    if (memory == NULL)
        return NULL;
#ifdef MADV_HUGEPAGE
    /* A hint only: a kernel without huge pages serves small ones, at slightly worse times. */
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    memset(memory, 0, bytes);
    return memory;
}

float *buffer_vector(int64_t n) {
    if (n >= (int64_t)(HUGE_PAGE / sizeof(float)))
        return buffer_create(n, sizeof(float));
    return calloc((size_t)n + 1, sizeof(float));
}
