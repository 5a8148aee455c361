/* fuzz_main.c - runs a fuzz target on seeded random bytes, where there is no libFuzzer
 *
 *     fuzz_selector COUNT [SEED [ONLY]]    COUNT inputs; with ONLY just that one
 *
 * The same arguments give the same inputs everywhere. On a violation the number of the input is
 * printed, so that ONLY repeats it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"
#include "oracle.h"

static volatile long current;

static void say_which(int signal_number) {
    fprintf(stderr, "input number %ld\n",
            current); /* not async-signal-safe, but the process ends */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_one(uint64_t seed, long number) {
    uint8_t data[240];
    oracle_rng rng = {.key = seed * 1000000007u + (uint64_t)number};
    const int64_t size = oracle_below(&rng, (int64_t)sizeof data + 1);
    for (int64_t i = 0; i < size; i++)
        data[i] = (uint8_t)oracle_next(&rng);
    current = number;
    LLVMFuzzerTestOneInput(data, (size_t)size);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: fuzz_selector COUNT [SEED [ONLY]]\n");
        return 2;
    }
    const long count = atol(argv[1]);
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    signal(SIGABRT, say_which);
    signal(SIGSEGV, say_which);
    if (argc > 3)
        run_one(seed, atol(argv[3]));
    for (long number = 0; argc <= 3 && number < count; number++)
        run_one(seed, number);
    printf("%ld inputs from seed %llu: no violation\n", argc > 3 ? 1 : count,
           (unsigned long long)seed);
    return 0;
}
