/* memory.h - where all of the library's memory comes from
 *
 * Two kinds, because a page that was never touched costs a fault in the middle of a step:
 *   tw__alloc    zeroed and touched, on huge pages where large: for what every step uses
 *   tw__reserve  address space alone, pages come when touched: for the undo log, of which a step
 *                uses a small part
 * Both are aligned to TW__ALIGNMENT at least and freed with free(). NULL when memory is out. */
#ifndef TW_BASE_MEMORY_H
#define TW_BASE_MEMORY_H

#include <stddef.h>

/* Two cache lines, as CPUs fetch them in pairs. */
#define TW__ALIGNMENT 128

/* Bytes that either call takes from the system for a request of this many. */
size_t tw__footprint(size_t bytes);

void *tw__alloc(size_t bytes);
void *tw__reserve(size_t bytes);

#endif
