/* check.h - cmocka assertions that say what was compared, where, and both sides
 *
 * cmocka.h needs four other headers before it; every test gets them from here. A failing check also
 * prints the scene (n, k, data, step ... set with check_scene), so one line suffices to repeat it.
 */
#ifndef CHECK_H
#define CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"
#include "thinwire.h"

/* What the following checks are about, as printf. */
__attribute__((format(printf, 1, 2))) void check_scene(const char *format, ...);

/* Fail with a message, as printf. Does not return. */
__attribute__((format(printf, 1, 2))) void check_fail(const char *format, ...);

/* A call's status. A failure prints both codes and the library's last error. */
#define check_ok(call) check_status((call), TW_OK, #call, __FILE__, __LINE__)
#define check_error(call, want) check_status((call), (want), #call, __FILE__, __LINE__)
void check_status(int got, int want, const char *call, const char *file, int line);

/* A failure prints the condition as written. */
#define check_true(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            check_fail("%s:%d: %s", __FILE__, __LINE__, #condition);                               \
    } while (0)

/* Two integers, floats or texts. */
void check_int(const char *what, int64_t got, int64_t want);
void check_between(const char *what, int64_t got, int64_t low, int64_t high);
void check_float(const char *what, float got, float want); /* by bits */
void check_contains(const char *text, const char *part);

/* x in units of 2^-10, of which it must be a multiple: sums of such are exact. */
int64_t check_units(float x);

/* Vectors and selections, bit for bit. */
void check_bits(const char *what, const float *got, const float *want, int64_t n);
void check_selection(const tw_sparse *got, int64_t count, const int32_t *idx, const float *val);

/* For any selection: indices ascend and are below n, values are those of acc[n]. */
void check_sparse(const tw_sparse *sparse, const float *acc, int64_t n);

/* malloc that fails the test instead of returning NULL. */
void *check_alloc(int64_t count, int64_t size);

/* A selector, or a failed test. */
tw_selector *check_create(int64_t n, const tw_select_params *params);

/* The rows of the library's tables: how many, and the name of one. Loops over these test a new row
 * without being told. Exchanges begin with dense, wire formats with raw. */
int check_methods(void);
const char *check_method(int position);
/* Methods that a GPU has: the first so many. */
int check_gpu_methods(void);
/* Entries of n that a method may select. */
int64_t check_most(const char *method, int64_t k, int64_t n);
int check_exchanges(void);
const char *check_exchange(int position);
int check_wires(void);
const char *check_wire(int position);

/* The library's clock, for durations. */
double check_seconds(void);

/* skip() the running test when this machine lacks the kernels that THINWIRE_KERNELS asks for. */
void check_kernels_or_skip(void);

#endif
