/* layer_cases.h - every layer of the trainer behind one shape, so that one test serves all
 *
 * A case turns x[nx] into y[ny] and dy[ny] into dx[nx], in sizes that reach every branch of its
 * layer. tests/test_layers.c compares gradients with differences and bits between numbers of threads.
 */
#ifndef LAYER_CASES_H
#define LAYER_CASES_H

#include "gradient_check.h"

typedef struct layer_case layer_case;

/* A case at work. */
typedef struct layer_run {
    const layer_case *c;
    void *layer; /* the layer's own struct */
    layer_fixture fixture;
    real *x;     /* [nx] */
    real *y;     /* [ny] */
    real *dy;    /* [ny] may be used up by backward */
    real *dx;    /* [nx] */
    double loss; /* of cases that make their own; see layer_case.own_loss */
} layer_run;

struct layer_case {
    const char *name;
    size_t bytes; /* of the layer's struct */
    int64_t nx, ny;
    void (*build)(void *layer, layout *to);
    void (*forward)(layer_run *r);
    void (*backward)(layer_run *r); /* after a forward */
    bool own_loss; /* forward sets r->loss and y holds its gradient: else the loss is a sum of y */
};

extern const layer_case layer_cases[];
extern const int layer_ncases;

#endif
