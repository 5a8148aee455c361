/* gradient_check.h - gradients against central differences, and layers set up outside of models
 *
 * In the double build a central difference with step h = 1e-5 is off by about h^2 = 1e-10 of the
 * third derivative and 1e-16 / h = 1e-11 of the loss, so agreement to 1e-6 leaves a wrong formula no
 * room. In float it would be noise: gradients are checked in double only.
 */
#ifndef GRADIENT_CHECK_H
#define GRADIENT_CHECK_H

#include "check.h"
#include "layers/layers.h"

/* How to differ, and how much may be off: relative to the larger side, or to 0.01 of the largest
 * gradient, or to 0.001. */
typedef struct gradient_rule {
    double step, tolerance;
} gradient_rule;

/* For layers, which are smooth or have few kinks. */
#define GRADIENT_LAYER ((gradient_rule){1e-5, 1e-6})
/* For whole models: a step across the kink of a rectifier spoils a difference, and among a million
 * of them some are near. A shorter step meets few, and rounds more. */
#define GRADIENT_MODEL ((gradient_rule){1e-7, 1e-4})

/* Numbers in [-1, 1) that depend on seed and position. */
void gradient_fill(real *x, int64_t n, uint64_t seed);

/* Worst disagreement, in tolerances, between grad[n] and differences of loss() by at[n], over
 * `samples` coordinates spread over n (all, if n is no more). 1 and less is agreement. */
double gradient_error(gradient_rule rule, double (*loss)(void *context), void *context, real *at,
                      const real *grad, int64_t n, int samples);

/* The same as a check: fails with the coordinate's name, place and both sides. */
void gradient_check(const char *what, gradient_rule rule, double (*loss)(void *context),
                    void *context, real *at, const real *grad, int64_t n, int samples);

/* got[n] and want[n] bit for bit: fails with the place and both sides. */
void gradient_same(const char *what, const real *got, const real *want, int64_t n);

/* A layer outside of a model: its parameters, memory and threads. */
typedef struct layer_fixture {
    model m;      /* lists and blocks of the layer's parameters */
    char *memory; /* activations, then the memory of passes */
    char (*names)[LAYOUT_NAME];
    pass pass; /* training mode, nobody to tell */
} layer_fixture;

/* Build a layer as a model would: build(layer, layout) measures first, then fills. */
void layer_fixture_open(layer_fixture *l, int threads, void (*build)(void *layer, layout *to),
                        void *layer);
void layer_fixture_close(layer_fixture *l);

#endif
