/* vector.c - memory, hashes and medians
 *
 * Linux grants more memory than there is and kills the process that touches it. Asking first what
 * is free turns that into an error message.
 */
#include "vector.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

#define ALWAYS_FREE ((size_t)1 << 20) /* bytes that are worth no question */

size_t vector_available(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (file == NULL)
        return SIZE_MAX;
    char line[128];
    size_t kilobytes = SIZE_MAX / 1024;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %zu", &kilobytes) == 1)
            break;
    fclose(file);
    return kilobytes / 8 * 7 * 1024; /* page tables and other processes live on the rest */
}

void *vector_alloc(int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > SIZE_MAX / 2 / size)
        return NULL;
    size_t bytes = (size_t)count * size;
    return bytes <= ALWAYS_FREE || bytes <= vector_available() ? tw__alloc(bytes) : NULL;
}

uint64_t vector_hash(const float *values, int64_t n, uint64_t hash) {
    for (int64_t i = 0; i < n; i += 2) {
        uint64_t word = 0;
        memcpy(&word, values + i, (i + 1 < n ? 2 : 1) * sizeof *values);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double vector_median(double *values, int64_t count) {
    assert(count > 0);
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    int64_t middle = count / 2;
    return count % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}
