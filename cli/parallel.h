/* parallel.h - a loop over [0, n) on all cores, in chunks whose bounds depend on n alone
 *
 * For preparing and checking data outside the timed regions. Fixed chunks mean that a result which
 * depends on the chunk does not depend on the number of threads.
 */
#ifndef CLI_PARALLEL_H
#define CLI_PARALLEL_H

#include <stdint.h>

#define PARALLEL_CHUNK 65536

/* Call work(context, begin, end) once for every chunk, begin a multiple of PARALLEL_CHUNK.
 * Chunks run at the same time and in any order; work must touch its own range only. */
void parallel_for(int64_t n, void (*work)(void *context, int64_t begin, int64_t end),
                  void *context);

#endif
