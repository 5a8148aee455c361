/* median.h - the middle one of measured times: a few slow steps do not move it */
#ifndef CLI_MEDIAN_H
#define CLI_MEDIAN_H

#include <stdint.h>

/* Of values[count], which get sorted; count is at least 1. */
double median(double *values, int64_t count);

#endif
