/* methods.c - the table of methods */
#include "select/methods.h"

#include <math.h>

#define METHOD_ADDRESS(name) &tw__select_##name,
static const tw__method *const methods[] = {TW__METHODS(METHOD_ADDRESS)};

enum { METHODS = sizeof methods / sizeof methods[0] };

const char *tw__method_name(int position) {
    return position < METHODS ? methods[position]->name : NULL;
}

int tw__method_find(const char *name, const tw__method **method) {
    int at;
    TW_TRY(tw__name_find("method", name, tw__method_name, &at));
    *method = methods[at];
    return TW_OK;
}

int64_t tw__method_most(const tw__method *method, int64_t k, int64_t n) {
    if (method->unbounded)
        return n;
    return method->exceeds_k ? tw__at_most(TW__MOST * k, n) : k;
}

int tw_select_method(int position, const char **name, const char **description) {
    if (position < 0 || position >= METHODS)
        return TW_ERR_NAME;
    tw__tell(name, methods[position]->name);
    tw__tell(description, methods[position]->description);
    return TW_OK;
}

uint32_t tw__method_learned_guess(tw__cpu_selector *s) {
    if (s->learned.guess != 0)
        return s->learned.guess;
    if (s->n <= TW__BLOCK)
        return 1; /* all of it fits: nothing to guess */
    return tw__candidates_sample(s, 2.0 * (double)s->now.k, 0);
}

uint32_t tw__method_guess_none(tw__cpu_selector *s) {
    (void)s;
    return TW__INFINITY_BITS; /* which no element reaches */
}

double tw__method_learn(tw__cpu_selector *s, double factor) {
    double rank = ceil(factor * (double)s->now.next_k);
    s->learned.guess = tw__candidates_learn(s, (int64_t)rank);
    return rank <= (double)tw__candidates_total(s) ? rank : 0.0;
}
