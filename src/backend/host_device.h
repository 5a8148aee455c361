/* host_device.h - marks functions that C compiles for the CPU and nvcc for the GPU as well
 *
 * Both compile them without contracting a * b + c, so that they give the same bits. Loops that are
 * unrolled let a GPU, which divides slowly, divide constants beforehand. */
#ifndef TW_BACKEND_HOST_DEVICE_H
#define TW_BACKEND_HOST_DEVICE_H

#ifdef __CUDACC__
#define TW__HOST_DEVICE __host__ __device__
#else
#define TW__HOST_DEVICE
#endif

#ifdef __CUDA_ARCH__
#define TW__UNROLL _Pragma("unroll")
#else
#define TW__UNROLL
#endif

#endif
