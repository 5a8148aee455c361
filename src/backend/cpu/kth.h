/* kth.h - the exact k-th largest magnitude of a list, without sorting; see kth.c */
#ifndef TW_KTH_H
#define TW_KTH_H

#include <stdint.h>

struct tw__entry;
struct tw__kernels;

typedef struct tw__kth {
    uint32_t bits;   /* the rank-th largest magnitude bits, rank from 1 */
    int64_t greater; /* how many are greater */
    int64_t equal;   /* how many are equal, itself included */
} tw__kth;

tw__kth tw__kth_of_values(const struct tw__kernels *kernels, const float *val, int64_t len,
                          int64_t rank);
tw__kth tw__kth_of_entries(const struct tw__entry *entries, int64_t len, int64_t rank);
/* Values in several parts. A sample of their magnitude bits narrows the search, in scratch[room]. */
typedef struct tw__kth_part {
    const float *val; /* [len] */
    int64_t len;
} tw__kth_part;
typedef struct tw__kth_sample {
    const uint32_t *bits; /* [count] */
    int64_t count;
    uint32_t *scratch; /* [room], and TW__SLACK more */
    int64_t room;
} tw__kth_sample;
tw__kth tw__kth_of_parts(const struct tw__kernels *kernels, const tw__kth_part *parts, int nparts,
                         const tw__kth_sample *sample, int64_t rank);
/* The rank-th largest of bits[len]. */
uint32_t tw__kth_of_bits(const uint32_t *bits, int64_t len, int64_t rank);

/* First of the ascending idx[count] that is >= bound. */
int64_t tw__lower_bound(const int32_t *idx, int64_t count, int64_t bound);

#endif
