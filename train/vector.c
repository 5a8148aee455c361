/* vector.c - see vector.h */
#include "vector.h"

VECTOR void vector_add(real *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}
