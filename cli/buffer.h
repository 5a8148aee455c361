/* buffer.h - big arrays whose first use costs nothing inside a timed region
 *
 * 2 MiB aligned, offered to the kernel for huge pages and touched. Benchmarks compare passes over
 * memory: page faults and scattered small pages would be measured instead.
 */
#ifndef CLI_BUFFER_H
#define CLI_BUFFER_H

#include <stddef.h>
#include <stdint.h>

/* count zeroed elements of `size` bytes; free() them. NULL when out of memory. */
void *buffer_create(int64_t count, size_t size);

/* A vector of one rank of many: n zeroed floats, whole huge pages only where they fill them. free()
 * it. NULL when out of memory. */
float *buffer_vector(int64_t n);

/* Bytes that can be had safely, 7/8 of what Linux calls available; no limit where it says none. */
size_t buffer_available(void);

#endif
