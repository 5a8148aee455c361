/* methods.h - how entries are selected: the table of methods
 *
 * A method says from which magnitude on the pass should collect, and then chooses among what was
 * collected.
 *
 * To add one: select_<name>.c with its row, its name in TW__METHODS, a build line. The tests run it
 * without being told. */
#ifndef TW_SELECT_METHODS_H
#define TW_SELECT_METHODS_H

#include "backend/cpu/cpu_selector.h"
#include "select/selector.h"

typedef struct tw__method {
    const char *name;
    const char *description;
    unsigned backends;                      /* that have it; 0: the CPU alone */
    int wants_sums;                         /* needs the sums over acc */
    int wants_marks;                        /* needs a bit per element */
    int samples;                            /* takes samples of dgc_sample */
    int exceeds_k;                          /* may choose up to TW__MOST * k entries */
    int unbounded;                          /* may choose all n */
    uint32_t (*guess)(tw__cpu_selector *s); /* magnitude bits to collect from, at least 1 */
    void (*choose)(tw__cpu_selector *s);    /* fills s->chosen and s->learned */
} tw__method;

/* All of them, in the order of tw_select_method(). */
#define TW__METHODS(X)                                                                             \
    X(exact) X(reuse) X(gaussian) X(dgc) X(random) X(redsync) X(gaussian_published)
#define TW__METHOD_ROW(name) extern const tw__method tw__select_##name;
TW__METHODS(TW__METHOD_ROW)

/* By position from 0; NULL past the last. */
const char *tw__method_name(int position);
/* Errors: TW_ERR_NAME, listing the names. */
int tw__method_find(const char *name, const tw__method **method);
/* Entries of n that it may choose. */
int64_t tw__method_most(const tw__method *method, int64_t k, int64_t n);

/* Shared by the methods that learn where candidates start: what was learned, or at the first step
 * an estimate from a sample. */
uint32_t tw__method_learned_guess(tw__cpu_selector *s);
/* And after the choice: let about factor * k through in the next step. Returns the rank of the new
 * guess among this step's entries, 0 where the candidates do not tell. */
double tw__method_learn(tw__cpu_selector *s, double factor);
/* The pass collects nothing; it still finds bad numbers. */
uint32_t tw__method_guess_none(tw__cpu_selector *s);

#endif
