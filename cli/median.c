/* median.c - sorts and takes the middle; the mean of the two in the middle when count is even */
#include "median.h"

#include <stdlib.h>

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    int64_t middle = count / 2;
    return count % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}
