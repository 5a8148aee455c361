/* allocations.c - the allocating functions of the C library, counted; see allocations.h */
#include "allocations.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

_Atomic int64_t allocation_calls, allocation_bytes;
_Thread_local int64_t allocation_fails_in;

/* Count a call; 0 if it is the one to fail. */
static int admit(size_t size) {
    allocation_calls++;
    if (allocation_fails_in > 0 && --allocation_fails_in == 0)
        return 0;
    allocation_bytes += (int64_t)size;
    return 1;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_reallocarray(void *old, size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_memalign(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__real_mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_reallocarray(void *old, size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_memalign(size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset);

void *__wrap_malloc(size_t size) {
    return admit(size) ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
    return admit(count * size) ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size) {
    return admit(size) ? __real_realloc(old, size) : NULL;
}

void *__wrap_reallocarray(void *old, size_t count, size_t size) {
    return admit(count * size) ? __real_reallocarray(old, count, size) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return admit(size) ? __real_aligned_alloc(alignment, size) : NULL;
}

void *__wrap_memalign(size_t alignment, size_t size) {
    return admit(size) ? __real_memalign(alignment, size) : NULL;
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    return admit(size) ? __real_posix_memalign(memory, alignment, size) : ENOMEM;
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    return admit(size) ? __real_mmap(at, size, protection, flags, file, offset) : MAP_FAILED;
}

void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset) {
    return admit(size) ? __real_mmap64(at, size, protection, flags, file, offset) : MAP_FAILED;
}
