/* lists.h - the CPU's work for exchanges: lists of entries, wire formats, whole vectors
 *
 *   lists.c        entries in the host's memory
 *   wire_codec.c   messages
 *   dense.c        whole vectors */
#ifndef TW_BACKEND_CPU_LISTS_H
#define TW_BACKEND_CPU_LISTS_H

#include "exchange/job.h"

#define TW__LISTS_WINDOW 16384 /* elements: 64 KiB of sums and 2 KiB of bits stay in the L2 cache */

/* The context of all three tables. */
typedef struct tw__cpu_lists {
    const tw__kernels *kernels;
    int most_runs; /* that one sum can have */
    float sums[TW__LISTS_WINDOW];
    uint64_t bits[TW__LISTS_WINDOW / 64];
    int64_t cursors[]; /* [most_runs] */
} tw__cpu_lists;

/* NULL: no memory. Free with free(). */
tw__cpu_lists *tw__cpu_lists_create(const tw__kernels *kernels, int most_runs);
size_t tw__cpu_lists_memory(int most_runs);

extern const tw__list_calls tw__lists_cpu;
extern const tw__wire_calls tw__wire_cpu;
extern const tw__dense_calls tw__dense_cpu;

#endif
