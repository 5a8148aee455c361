/* both.h - marks functions that C compiles for the CPU and nvcc for the GPU as well
 *
 * Both compile them without contracting a * b + c, so that they give the same bits. */
#ifndef TW_BASE_BOTH_H
#define TW_BASE_BOTH_H

#ifdef __CUDACC__
#define TW__BOTH __host__ __device__
#else
#define TW__BOTH
#endif

#endif
