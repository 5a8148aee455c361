/* methods.h - the six ways to select, as rows
 *
 * A method says from which magnitude on the pass should collect, and then chooses among what was
 * collected. To add one: a file select_<name>.c, a line here, a row in methods.c, a build line. */
#ifndef TW_SELECT_METHODS_H
#define TW_SELECT_METHODS_H

#include "select/selector.h"

typedef struct tw__method {
    const char *name;
    const char *description;
    int wants_sums;                    /* needs the sums over acc */
    int wants_marks;                   /* needs a bit per element */
    int samples;                       /* takes samples of dgc_sample */
    int exceeds_k;                     /* may choose up to TW__MOST * k entries */
    uint32_t (*guess)(tw_selector *s); /* magnitude bits to collect from, at least 1 */
    void (*choose)(tw_selector *s);    /* fills s->chosen and s->learned */
} tw__method;

extern const tw__method tw__select_exact;
extern const tw__method tw__select_reuse;
extern const tw__method tw__select_gaussian;
extern const tw__method tw__select_dgc;
extern const tw__method tw__select_random;
extern const tw__method tw__select_redsync;

/* Errors: TW_ERR_NAME, listing the names. */
int tw__method_find(const char *name, const tw__method **method);

/* Shared by the methods that learn where candidates start: what was learned, or at the first step
 * an estimate from a sample. */
uint32_t tw__method_learned_guess(tw_selector *s);
/* And after the choice: let about factor * k through in the next step. Returns the rank of the new
 * guess among this step's entries, 0 where the candidates do not tell. */
double tw__method_learn(tw_selector *s, double factor);

#endif
