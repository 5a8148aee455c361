/* guard.cu - contexts of GPUs, by the driver's calls; see failure.cuh
 *
 * The driver's library is not linked, since the library must load where there is none: its calls are
 * looked up. CUDA's runtime works in whatever context is current. */
#include "backend/cuda/failure.cuh"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>

namespace tw {

namespace {

constexpr int MOST_GPUS = 128;

struct Driver {
    decltype(&cuInit) init;
    decltype(&cuDeviceGet) get;
    decltype(&cuDevicePrimaryCtxRetain) retain;
    decltype(&cuCtxPushCurrent) push;
    decltype(&cuCtxPopCurrent) pop;
    bool works;
};

Driver driver;
pthread_once_t looked_up = PTHREAD_ONCE_INIT;
CUcontext contexts[MOST_GPUS]; /* by ordinal; NULL: not retained yet */

template <typename Call> bool look_up(void *library, const char *name, Call *call) {
    *call = reinterpret_cast<Call>(dlsym(library, name));
    return *call != nullptr;
}

/* By the names that cuda.h gives these calls. */
void look_up_driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    driver.works = library != nullptr && look_up(library, "cuInit", &driver.init) &&
                   look_up(library, "cuDeviceGet", &driver.get) &&
                   look_up(library, "cuDevicePrimaryCtxRetain", &driver.retain) &&
                   look_up(library, "cuCtxPushCurrent_v2", &driver.push) &&
                   look_up(library, "cuCtxPopCurrent_v2", &driver.pop) &&
                   driver.init(0) == CUDA_SUCCESS;
}

} // namespace

cudaError_t retain_context(int ordinal) {
    CUdevice device;
    CUcontext context = nullptr;
    (void)pthread_once(&looked_up, look_up_driver);
    if (!driver.works)
        return cudaErrorInsufficientDriver;
    if (ordinal < 0 || ordinal >= MOST_GPUS || driver.get(&device, ordinal) != CUDA_SUCCESS)
        return cudaErrorInvalidDevice;
    CUresult result = driver.retain(&context, device);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? cudaErrorMemoryAllocation
                                                  : cudaErrorDevicesUnavailable;
    __atomic_store_n(&contexts[ordinal], context, __ATOMIC_RELEASE);
    return cudaSuccess;
}

Guard::Guard(int ordinal) {
    bool known = ordinal >= 0 && ordinal < MOST_GPUS &&
                 __atomic_load_n(&contexts[ordinal], __ATOMIC_ACQUIRE) != nullptr;
    error = known ? cudaSuccess : retain_context(ordinal);
    if (error == cudaSuccess &&
        driver.push(__atomic_load_n(&contexts[ordinal], __ATOMIC_ACQUIRE)) != CUDA_SUCCESS)
        error = cudaErrorInvalidDevice;
}

Guard::~Guard() {
    CUcontext context;
    if (error == cudaSuccess)
        (void)driver.pop(&context);
}

} // namespace tw
