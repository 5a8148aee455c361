/* real.h - the number type of the trainer: float, and double in the build that checks gradients
 *
 * Every layer is written once over `real`. The library thinwire_train is float. The tests compile
 * the same sources again with TRAIN_DOUBLE: there a central difference is good to nine digits, so
 * a wrong backward formula cannot hide behind rounding.
 */
#ifndef TRAIN_REAL_H
#define TRAIN_REAL_H

#ifdef TRAIN_DOUBLE
typedef double real;
#else
typedef float real;
#endif

#endif
