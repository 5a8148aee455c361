/* fuzz_main.c - runs a fuzz target where there is no libFuzzer
 *
 *     fuzz_<part> run COUNT [SEED [ONLY]]   all seeds, then COUNT inputs; with ONLY just that one
 *     fuzz_<part> replay PATH...            files, and the files of directories
 *     fuzz_<part> seeds DIRECTORY           writes the seeds
 *
 * An input is a seed with a few changes, or random bytes. The same arguments give the same inputs
 * everywhere. On a violation the number of the input is printed, so that ONLY repeats it.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "oracle.h"

static volatile long current;
static uint8_t data[FUZZ_ROOM], other[FUZZ_ROOM];

static void say_which(int signal_number) {
    fprintf(stderr, "input number %ld\n",
            current); /* not async-signal-safe, but the process ends */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* ---- inputs */

static int count_seeds(void) {
    int count = 0;
    while (fuzz_seed(count, data, sizeof data) > 0)
        count++;
    return count;
}

static size_t random_bytes(oracle_rng *rng) {
    const size_t size = (size_t)oracle_below(rng, 241);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)oracle_next(rng);
    return size;
}

/* Replaces bytes, a small number, a stretch by one of another seed; cuts the end; removes some. */
static size_t change(oracle_rng *rng, size_t size, int seeds) {
    static const uint8_t edges[] = {0, 1, 2, 4, 127, 128, 254, 255};
    const size_t at = (size_t)oracle_below(rng, (int64_t)size), rest = size - at;
    const size_t some = 1 + (size_t)oracle_below(rng, (int64_t)(rest < 16 ? rest : 16));
    size_t more = 0;
    switch (oracle_below(rng, 8)) {
    case 0:
        return at > 0 ? at : 1;
    case 1:
        memmove(data + at, data + at + some, rest - some);
        return size > some ? size - some : 1;
    case 2:
        more = fuzz_seed((int)oracle_below(rng, seeds), other, sizeof other);
        more = more < at ? 0 : more - at < some ? more - at : some;
        memcpy(data + at, other + at, more);
        return size;
    case 3:
        data[at] = edges[oracle_below(rng, 8)];
        return size;
    case 4:
        data[at] = (uint8_t)(data[at] + oracle_below(rng, 9) - 4);
        return size;
    case 5:
        data[at] ^= (uint8_t)(1 << oracle_below(rng, 8));
        return size;
    default:
        data[at] = (uint8_t)oracle_next(rng);
        return size;
    }
}

static void run_one(uint64_t seed, long number, int seeds) {
    oracle_rng rng = {.key = seed * 1000000007u + (uint64_t)number};
    size_t size = 0;
    current = number;
    if (number < seeds)
        size = fuzz_seed((int)number, data, sizeof data);
    else if (seeds > 0 && oracle_below(&rng, 16) > 0) {
        size = fuzz_seed((int)oracle_below(&rng, seeds), data, sizeof data);
        for (int64_t changes = 1 + oracle_below(&rng, 4); changes > 0; changes--)
            size = change(&rng, size, seeds);
    } else
        size = random_bytes(&rng);
    LLVMFuzzerTestOneInput(data, size);
}

static int run(int argc, char **argv) {
    const int seeds = count_seeds();
    const long count = seeds + atol(argv[2]);
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (argc > 4)
        run_one(seed, atol(argv[4]), seeds);
    for (long number = 0; argc <= 4 && number < count; number++)
        run_one(seed, number, seeds);
    printf("%ld inputs from %d seeds and random seed %llu: no violation\n", argc > 4 ? 1 : count,
           seeds, (unsigned long long)seed);
    return 0;
}

/* ---- files */

static long replay_path(const char *path) {
    char below[4096];
    DIR *directory = opendir(path);
    const struct dirent *entry;
    long count = 0;
    if (directory == NULL) {
        LLVMFuzzerTestOneInput(data, fuzz_read(path, data, sizeof data));
        return 1;
    }
    while ((entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.') {
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
            count += replay_path(below);
        }
    closedir(directory);
    return count;
}

static int replay(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        current += replay_path(argv[i]);
    printf("%ld files: no violation\n", current);
    return 0;
}

int main(int argc, char **argv) {
    signal(SIGABRT, say_which);
    signal(SIGSEGV, say_which);
    fuzz_write_seeds(argc, argv);
    if (argc > 2 && strcmp(argv[1], "run") == 0)
        return run(argc, argv);
    if (argc > 2 && strcmp(argv[1], "replay") == 0)
        return replay(argc, argv);
    fprintf(stderr, "usage: %s run COUNT [SEED [ONLY]] | replay PATH... | seeds DIRECTORY\n",
            argv[0]);
    return 2;
}
