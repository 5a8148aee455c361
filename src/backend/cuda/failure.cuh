/* failure.cuh - CUDA's errors as the library's, and the GPU that a call is about */
#ifndef TW_CUDA_FAILURE_CUH
#define TW_CUDA_FAILURE_CUH

#include "base/error.h"

#include <cuda_runtime.h>

namespace tw {

/* Works on this GPU until it goes; then on the one that the thread had before. */
class Guard {
  public:
    explicit Guard(int ordinal) {
        known_ = cudaGetDevice(&before_) == cudaSuccess;
        error = cudaSetDevice(ordinal);
    }
    ~Guard() {
        if (known_)
            (void)cudaSetDevice(before_);
    }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;
    cudaError_t error;

  private:
    int before_;
    bool known_;
};

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
