/* failure.cuh - CUDA's errors as the library's, and the GPU that a call is about */
#ifndef TW_CUDA_FAILURE_CUH
#define TW_CUDA_FAILURE_CUH

#include "base/error.h"

#include <cuda_runtime.h>

namespace tw {

/* Works in the primary context of a GPU until it goes; then the thread has the context that it had
 * before, or none. cudaSetDevice cannot do that: a thread that never had a device seems to be on
 * GPU 0, and to go back there creates a context, which takes hundreds of megabytes. */
class Guard {
  public:
    explicit Guard(int ordinal);
    ~Guard();
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;
    cudaError_t error;
};

/* The primary context of a GPU exists, and Guard finds it. For whoever creates something there: after
 * cudaDeviceReset it is another one. */
cudaError_t retain_context(int ordinal);

/* The library's error for CUDA's; TW_OK for none. */
inline int failure(cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        return TW_OK;
    (void)cudaGetLastError(); /* it is reported here: the next call starts clean */
    if (error == cudaErrorMemoryAllocation)
        return tw__fail(TW_ERR_MEMORY, "%s: the GPU is out of memory; lower n or k, or free some",
                        doing);
    return tw__fail(TW_ERR_DEVICE, "%s: %s", doing, cudaGetErrorString(error));
}

} // namespace tw

#endif
