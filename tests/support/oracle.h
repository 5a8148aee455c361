/* oracle.h - what the tests compare the library with: data, conversions and a top-k by full sort
 *
 * Written to be obviously right, not fast. It shares nothing with the library but the random
 * generator, which only makes inputs. It knows no test framework, so the fuzzers use it too; the
 * assertions are in check.h.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <stdint.h>

/* ---- Random numbers: a stream of src/base/random.h, the same on every machine ---------------- */

typedef struct oracle_rng {
    uint64_t key;
    uint64_t counter; /* of the next draw */
} oracle_rng;

uint64_t oracle_next(oracle_rng *rng);
int64_t oracle_below(oracle_rng *rng, int64_t bound); /* 0 .. bound - 1 */
double oracle_uniform(oracle_rng *rng);               /* (0, 1) */
double oracle_gauss(oracle_rng *rng);                 /* mean 0, deviation 1 */

/* ---- Vectors --------------------------------------------------------------------------------- */

/* X(name, text): the kinds of data. */
#define ORACLE_DATA(X)                                                                             \
    X(DATA_SUMMABLE, "summable")         /* integers up to 100 times 2^-10: sums are exact */      \
    X(DATA_GAUSS, "gauss")               /* what fresh gradients look like */                      \
    X(DATA_LAPLACE, "laplace")           /* heavier tails */                                       \
    X(DATA_POWER5, "power5")             /* fifth power of a gauss: very heavy tails */            \
    X(DATA_ZEROS, "zeros")               /* nothing to select */                                   \
    X(DATA_CONSTANT, "constant")         /* nothing but ties */                                    \
    X(DATA_SPIKE, "spike")               /* one huge value among tiny ones */                      \
    X(DATA_TIES, "ties")                 /* -3 .. 3: mixed signs, many ties, many zeros */         \
    X(DATA_DENORMALS, "denormals")       /* below the smallest normal number */                    \
    X(DATA_SIGNED_ZEROS, "signed zeros") /* mostly +0 and -0 */                                    \
    X(DATA_ASCENDING, "ascending")       /* sorted: the largest come last */                       \
    X(DATA_DESCENDING, "descending")     /* sorted: the largest come first */                      \
    X(DATA_REGION, "region")             /* all that is large lies side by side */                 \
    X(DATA_BITS, "bits")                 /* any exponent up to 2^60, any mantissa */

typedef enum {
#define ORACLE_DATA_ENUM(name, text) name,
    ORACLE_DATA(ORACLE_DATA_ENUM)
#undef ORACLE_DATA_ENUM
        DATA_KINDS,
} oracle_data;

const char *oracle_data_name(oracle_data kind);
void oracle_fill(float *x, int64_t n, oracle_data kind, uint64_t seed);

/* ---- Element types: tw_type ------------------------------------------------------------------ */

int64_t oracle_type_size(int type); /* bytes of an element */

/* Write x[n] as the given type to bytes, which may have any alignment. What is too large for the
 * type becomes its largest finite number; NaN and infinity are kept. */
void oracle_encode(void *bytes, const float *x, int64_t n, int type);
void oracle_decode(float *x, const void *bytes, int64_t n, int type);

/* ---- Bits and selection ---------------------------------------------------------------------- */

uint32_t oracle_bits(float x);
uint32_t oracle_magnitude(float x); /* bits without sign: ordered like |x| */
float oracle_float(uint32_t bits);

/* The hash continued over data, a multiple of 4 bytes. Begin with 0. */
uint64_t oracle_hash(uint64_t hash, const void *data, int64_t bytes);

/* First index where the bits of a[n] and b[n] differ, -1 if none does. */
int64_t oracle_difference(const float *a, const float *b, int64_t n);

/* The min(k, non-zeros) largest magnitudes of acc[n], of equal ones the smaller index, by sorting
 * everything. idx[k] ascending and val[k] are filled; returns how many. */
int64_t oracle_topk(const float *acc, int64_t n, int64_t k, int32_t *idx, float *val);

#endif
