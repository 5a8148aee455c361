/* fuzz_files.c - files for loaders, and seeds as files; see fuzz.h */
#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

/* ---- files in memory */

const char *fuzz_file(int number, const void *data, size_t size) {
    static int files[FUZZ_FILES]; /* 0: not yet made */
    static char paths[FUZZ_FILES][32];
    REQUIRE(number >= 0 && number < FUZZ_FILES);
    if (files[number] == 0) {
        files[number] = memfd_create("fuzz", MFD_CLOEXEC);
        REQUIRE(files[number] > 0);
        snprintf(paths[number], sizeof paths[number], "/proc/self/fd/%d", files[number]);
    }
    REQUIRE(ftruncate(files[number], 0) == 0);
    REQUIRE(pwrite(files[number], data, size, 0) == (ssize_t)size);
    return paths[number];
}

/* ---- files on disk */

static char directory[64];

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)status, (void)type, (void)at;
    return remove(path);
}

static void remove_directory(void) {
    (void)nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* In memory where the system has such a file system. */
const char *fuzz_directory(void) {
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "%s/thinwire-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        REQUIRE(mkdtemp(directory) != NULL);
        REQUIRE(atexit(remove_directory) == 0);
    }
    return directory;
}

const char *fuzz_path(char *path, const char *name) {
    snprintf(path, FUZZ_PATH, "%s/%s", fuzz_directory(), name);
    return path;
}

void fuzz_write(const char *path, const void *data, size_t size) {
    if (data == NULL) {
        (void)unlink(path);
        return;
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    REQUIRE(file >= 0 && write(file, data, size) == (ssize_t)size);
    REQUIRE(close(file) == 0);
}

size_t fuzz_read(const char *path, void *data, size_t room) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0);
    const ssize_t size = read(file, data, room);
    REQUIRE(size >= 0 && close(file) == 0);
    return (size_t)size;
}

/* ---- seeds */

void fuzz_write_seeds(int argc, char **argv) {
    static uint8_t data[FUZZ_ROOM];
    char path[FUZZ_PATH];
    size_t size;
    int number = 0;
    if (argc != 3 || strcmp(argv[1], "seeds") != 0)
        return;
    for (; (size = fuzz_seed(number, data, sizeof data)) > 0; number++) {
        snprintf(path, sizeof path, "%s/seed-%04d", argv[2], number);
        fuzz_write(path, data, size);
    }
    printf("%s: %d seeds\n", argv[2], number);
    exit(0);
}

/* ---- totals */

static long long inputs, input_bytes;

input fuzz_begin(const uint8_t *data, size_t size) {
    inputs++;
    input_bytes += (long long)size;
    return (input){data, size};
}

static void print_totals(void) {
    fprintf(stderr, "total: %lld inputs, %lld bytes, %.1f s of CPU time\n", inputs, input_bytes,
            (double)clock() / CLOCKS_PER_SEC);
}

/* Short stacks of allocations, and little memory that waits for reuse: a fifth of the time. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "malloc_context_size=4:quarantine_size_mb=16";
}

/* libFuzzer calls it first. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    fuzz_write_seeds(*argc, *argv);
    return atexit(print_totals);
}
