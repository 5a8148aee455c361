/* vector.h - marks the loops that are worth compiling for wider registers, and one that many share
 *
 * VECTOR before a function: GCC makes an AVX-512, an AVX2 and a plain version of it, and the loader
 * picks. None of them may contract or reorder arithmetic (-ffp-contract=off, no fast-math), so all
 * give the same bits. Loops run over channels or rows of memory with independent lanes; sums are
 * kept per lane, never across lanes. Sanitizers start too late for the loader's choice: plain then.
 */
#ifndef TRAIN_VECTOR_H
#define TRAIN_VECTOR_H

#include <stdint.h>

#include "real.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define VECTOR
#endif

/* Before a loop whose lanes are independent, which the compiler cannot see through its pointers. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* sum[n] += x[n]; they do not overlap. */
void vector_add(real *restrict sum, const real *restrict x, int64_t n);

#endif
