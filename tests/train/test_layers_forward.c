/* test_layers_forward.c - forward passes against loops that say what is meant, in double
 *
 * Gradient checks cannot see a layer that computes the wrong thing and its right gradient. Built in
 * float, as the trainer runs, and in double, where the tolerance is the tighter.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gradient_check.h"
#include "layers/layers.h"
#include "layers/vector.h"

#define TOLERANCE (sizeof(real) == sizeof(double) ? 1e-13 : 2e-6)

static real *filled(int64_t n, uint64_t seed) {
    real *x = check_alloc(n, sizeof(real));
    gradient_fill(x, n, seed);
    return x;
}

/* A value against what it should be, relative to `size`: how large such values are. */
static void check_near(const char *what, int64_t at, double got, double want, double size) {
    if (!(fabs(got - want) <= TOLERANCE * fmax(size, fabs(want))))
        check_fail("%s[%lld]: %.12g, should be %.12g", what, (long long)at, got, want);
}

static void check_close(const char *what, int64_t at, double got, double want) {
    check_near(what, at, got, want, 1.0);
}

static void fill_params(layer_fixture *l) {
    for (int i = 0; i < l->m.ntensors; i++)
        gradient_fill(l->m.tensors[i].value, l->m.tensors[i].n, 20 + (uint64_t)i);
}

/* ---- Convolution --------------------------------------------------------------------------------- */

typedef struct conv_at_work {
    conv2d layer; /* first: build gets its address */
    conv2d_shape shape;
} conv_at_work;

static void build_conv(void *context, layout *to) {
    conv_at_work *c = context;
    conv2d_create(&c->layer, to, "conv", c->shape);
}

static double conv_meant(const conv_at_work *c, const real *x, int b, int i, int j, int o) {
    const conv2d_shape s = c->shape;
    const int pad = s.kernel / 2;
    double sum = s.bias ? (double)c->layer.bias.value[o] : 0;
    for (int k = 0; k < s.kernel; k++) {
        for (int l = 0; l < s.kernel; l++) {
            const int y = i * s.stride + k - pad, z = j * s.stride + l - pad;
            for (int ch = 0; ch < s.in && y >= 0 && y < s.height && z >= 0 && z < s.width; ch++) {
                sum += (double)x[((b * s.height + y) * s.width + z) * s.in + ch] *
                       (double)c->layer.weight.value[((k * s.kernel + l) * s.in + ch) * s.out + o];
            }
        }
    }
    return sum;
}

static void check_conv(int count, conv2d_shape shape) {
    conv_at_work c = {.shape = shape};
    layer_fixture l;
    layer_fixture_open(&l, 2, build_conv, &c);
    fill_params(&l);
    const int height = (shape.height + shape.stride - 1) / shape.stride;
    const int width = (shape.width + shape.stride - 1) / shape.stride;
    real *x = filled((int64_t)count * shape.height * shape.width * shape.in, 3);
    real *y = filled((int64_t)count * height * width * shape.out, 4);
    conv2d_forward(&c.layer, &l.pass, count, x, y);
    check_scene("%dx%d, %d to %d, kernel %d, stride %d", shape.height, shape.width, shape.in,
                shape.out, shape.kernel, shape.stride);
    const double size = 1 + sqrt(shape.kernel * shape.kernel * shape.in) / 3; /* of such sums */
    int64_t at = 0;
    for (int b = 0; b < count; b++) {
        for (int i = 0; i < height; i++) {
            for (int j = 0; j < width; j++) {
                for (int o = 0; o < shape.out; o++) {
                    check_near("y", at, (double)y[at], conv_meant(&c, x, b, i, j, o), size);
                    at++;
                }
            }
        }
    }
    free(x);
    free(y);
    layer_fixture_close(&l);
}

static void test_conv2d(void **state) {
    (void)state;
    check_conv(3, (conv2d_shape){5, 6, 3, 4, 3, 1, true});
    check_conv(2, (conv2d_shape){8, 8, 5, 6, 3, 1, true});
    check_conv(2, (conv2d_shape){6, 7, 3, 4, 3, 2, false});
    check_conv(2, (conv2d_shape){5, 5, 2, 3, 1, 2, true});
    check_conv(1, (conv2d_shape){2, 2, 3, 2, 5, 1, true});
    check_conv(9, (conv2d_shape){40, 36, 3, 2, 3, 1, true});    /* several tiles */
    check_conv(2, (conv2d_shape){2, 2, 9, 140, 3, 1, true});    /* halves of channels */
    check_conv(33, (conv2d_shape){4, 4, 40, 36, 3, 1, true});   /* by winograd: narrow */
    check_conv(2, (conv2d_shape){2, 6, 200, 195, 3, 1, false}); /* and wide */
}

/* ---- Pool ------------------------------------------------------------------------------------------ */

static void build_pool(void *layer, layout *to) {
    maxpool_create(layer, to, 2, 5, 4, 3);
}

static void test_maxpool(void **state) {
    (void)state;
    maxpool m;
    layer_fixture l;
    layer_fixture_open(&l, 1, build_pool, &m);
    real *x = filled(2 * 5 * 4 * 3, 5), y[2 * 2 * 2 * 3];
    maxpool_forward(&m, &l.pass, 2, x, y);
    for (int i = 0; i < 2 * 2 * 2 * 3; i++) {
        const int c = i % 3, column = i / 3 % 2, line = i / 6 % 2, b = i / 12;
        const real *at = x + ((b * 5 + 2 * line) * 4 + 2 * column) * 3 + c;
        double most =
            fmax(fmax((double)at[0], (double)at[3]), fmax((double)at[12], (double)at[15]));
        check_close("y", i, (double)y[i], most);
    }
    free(x);
    layer_fixture_close(&l);
}

/* ---- Norms ----------------------------------------------------------------------------------------- */

enum { ROWS = 200, WIDTH = 5 };

static void build_batch_norm(void *layer, layout *to) {
    batch_norm_create(layer, to, "norm", WIDTH, true);
}

/* Mean and variance of column c of x[ROWS][WIDTH]. */
static void moments(const real *x, int c, double *mean, double *variance) {
    *mean = *variance = 0;
    for (int i = 0; i < ROWS; i++)
        *mean += (double)x[i * WIDTH + c] / ROWS;
    for (int i = 0; i < ROWS; i++) {
        double off = (double)x[i * WIDTH + c] - *mean;
        *variance += off * off / ROWS;
    }
}

static void check_normed(const batch_norm *b, const real *x, const real *y, int c, double mean,
                         double variance) {
    for (int i = c; i < ROWS * WIDTH; i += WIDTH) {
        double xhat = ((double)x[i] - mean) / sqrt(variance + 1e-5);
        double want = (double)b->scale.value[c] * xhat + (double)b->shift.value[c];
        check_close("y", i, (double)y[i], fmax(want, 0));
    }
}

/* Batch statistics in training, which move the running ones; these in evaluation, and they stay. */
static void test_batch_norm(void **state) {
    (void)state;
    batch_norm b;
    layer_fixture l;
    layer_fixture_open(&l, 2, build_batch_norm, &b);
    fill_params(&l);
    real *x = filled(ROWS * WIDTH, 6), *y = filled(ROWS * WIDTH, 7);
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = x[i] * 3 + 2;
    batch_norm_forward(&b, &l.pass, ROWS, x, y);
    double mean[WIDTH], variance[WIDTH];
    for (int c = 0; c < WIDTH; c++) {
        moments(x, c, &mean[c], &variance[c]);
        check_normed(&b, x, y, c, mean[c], variance[c]);
        check_close("running mean", c, (double)b.running_mean[c], 0.1 * mean[c]);
        check_close("running variance", c, (double)b.running_variance[c],
                    0.9 + 0.1 * variance[c] * ROWS / (ROWS - 1));
    }
    l.pass.training = false;
    batch_norm_forward(&b, &l.pass, ROWS, x, y);
    for (int c = 0; c < WIDTH; c++) {
        check_normed(&b, x, y, c, 0.1 * mean[c], 0.9 + 0.1 * variance[c] * ROWS / (ROWS - 1));
        check_close("running mean", c, (double)b.running_mean[c], 0.1 * mean[c]);
    }
    free(x);
    free(y);
    layer_fixture_close(&l);
}

static void build_layer_norm(void *layer, layout *to) {
    layer_norm_create(layer, to, "norm", ROWS, WIDTH);
}

static void test_layer_norm(void **state) {
    (void)state;
    layer_norm n;
    layer_fixture l;
    layer_fixture_open(&l, 2, build_layer_norm, &n);
    fill_params(&l);
    real *x = filled(ROWS * WIDTH, 8), *y = filled(ROWS * WIDTH, 9);
    layer_norm_forward(&n, &l.pass, ROWS, x, y);
    for (int i = 0; i < ROWS; i++) {
        double mean = 0, variance = 0;
        for (int j = 0; j < WIDTH; j++)
            mean += (double)x[i * WIDTH + j] / WIDTH;
        for (int j = 0; j < WIDTH; j++) {
            double off = (double)x[i * WIDTH + j] - mean;
            variance += off * off / WIDTH;
        }
        for (int j = 0; j < WIDTH; j++) {
            double xhat = ((double)x[i * WIDTH + j] - mean) / sqrt(variance + 1e-12);
            check_close("y", i * WIDTH + j, (double)y[i * WIDTH + j],
                        (double)n.scale.value[j] * xhat + (double)n.shift.value[j]);
        }
    }
    free(x);
    free(y);
    layer_fixture_close(&l);
}

/* ---- LSTM ------------------------------------------------------------------------------------------ */

enum { TIMES = 4, SEQUENCES = 3, IN = 5, HIDDEN = 6 };

static void build_lstm(void *layer, layout *to) {
    lstm_create(layer, to, "lstm", SEQUENCES, TIMES, IN, HIDDEN);
}

static double gate_meant(const lstm *l, const real *x, const double *h, int gate, int j) {
    const int at = gate * HIDDEN + j;
    double sum = (double)l->bias.value[at];
    for (int i = 0; i < IN; i++)
        sum += (double)x[i] * (double)l->x_weight.value[i * 4 * HIDDEN + at];
    for (int i = 0; i < HIDDEN; i++)
        sum += h[i] * (double)l->h_weight.value[i * 4 * HIDDEN + at];
    return gate == 2 ? tanh(sum) : 1 / (1 + exp(-sum));
}

static void check_sequence(const lstm *l, const real *x, const real *y, int s) {
    double h[HIDDEN] = {0}, c[HIDDEN] = {0}, next[HIDDEN];
    for (int t = 0; t < TIMES; t++) {
        const real *input = x + (t * SEQUENCES + s) * IN;
        for (int j = 0; j < HIDDEN; j++) {
            double i = gate_meant(l, input, h, 0, j), f = gate_meant(l, input, h, 1, j);
            double g = gate_meant(l, input, h, 2, j), o = gate_meant(l, input, h, 3, j);
            c[j] = f * c[j] + i * g;
            next[j] = o * tanh(c[j]);
            check_close("h", t, (double)y[(t * SEQUENCES + s) * HIDDEN + j], next[j]);
        }
        memcpy(h, next, sizeof h);
    }
}

static void test_lstm(void **state) {
    (void)state;
    lstm layer;
    layer_fixture l;
    layer_fixture_open(&l, 1, build_lstm, &layer);
    fill_params(&l);
    real *x = filled(TIMES * SEQUENCES * IN, 10);
    const real *y = lstm_forward(&layer, &l.pass, SEQUENCES, x);
    for (int s = 0; s < SEQUENCES; s++)
        check_sequence(&layer, x, y, s);
    free(x);
    layer_fixture_close(&l);
}

/* ---- Attention -------------------------------------------------------------------------------------- */

enum { COUNT = 2, LENGTH = 4, MODEL = 6, HEADS = 3, DEPTH = MODEL / HEADS };

static void build_attention(void *layer, layout *to) {
    attention_create(layer, to, "attention", COUNT, LENGTH, MODEL, HEADS, 1);
}

/* Column `column` of q, k, v (three widths side by side) of row `row`. */
static double joined(const attention *a, const real *x, int row, int column) {
    double sum = (double)a->qkv.bias.value[column];
    for (int i = 0; i < MODEL; i++)
        sum += (double)x[row * MODEL + i] * (double)a->qkv.weight.value[i * 3 * MODEL + column];
    return sum;
}

/* mixed[s][column] of a sequence whose first `to` positions count. */
static double mixed_meant(const attention *a, const real *x, int first, int s, int column, int to) {
    const int start = column / DEPTH * DEPTH;
    double total = 0, sum = 0;
    for (int t = 0; t < to; t++) {
        double score = 0;
        for (int d = start; d < start + DEPTH; d++)
            score += joined(a, x, first + s, d) * joined(a, x, first + t, MODEL + d);
        double weight = exp(score / sqrt(DEPTH));
        total += weight;
        sum += weight * joined(a, x, first + t, 2 * MODEL + column);
    }
    return sum / total;
}

static void test_attention(void **state) {
    (void)state;
    attention a;
    layer_fixture l;
    layer_fixture_open(&l, 2, build_attention, &a);
    fill_params(&l);
    const int32_t lengths[COUNT] = {LENGTH, 2};
    real *x = filled(COUNT * LENGTH * MODEL, 11), *y = filled(COUNT * LENGTH * MODEL, 12);
    attention_forward(&a, &l.pass, COUNT, lengths, x, y);
    for (int i = 0; i < COUNT * LENGTH * MODEL; i++) {
        const int b = i / (LENGTH * MODEL), s = i / MODEL % LENGTH, o = i % MODEL;
        double want = (double)a.out.bias.value[o];
        for (int c = 0; c < MODEL; c++) {
            want += mixed_meant(&a, x, b * LENGTH, s, c, lengths[b]) *
                    (double)a.out.weight.value[c * MODEL + o];
        }
        check_close("y", i, (double)y[i], want);
    }
    free(x);
    free(y);
    layer_fixture_close(&l);
}

/* ---- Loss and functions ------------------------------------------------------------------------------ */

enum { EXAMPLES = 30, CLASSES = 7 };

static void build_loss(void *layer, layout *to) {
    cross_entropy_create(layer, to, EXAMPLES, CLASSES);
}

static void test_cross_entropy(void **state) {
    (void)state;
    cross_entropy e;
    layer_fixture l;
    layer_fixture_open(&l, 1, build_loss, &e);
    real *x = filled(EXAMPLES * CLASSES, 13), *kept = filled(EXAMPLES * CLASSES, 13);
    int32_t labels[EXAMPLES];
    double loss = 0;
    int count = 0, correct = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        labels[i] = i % 3 == 0 ? MODEL_IGNORE : i % CLASSES;
        double total = 0;
        int best = 0;
        for (int c = 0; c < CLASSES; c++) {
            total += exp((double)kept[i * CLASSES + c]);
            best = kept[i * CLASSES + c] > kept[i * CLASSES + best] ? c : best;
        }
        if (labels[i] != MODEL_IGNORE) {
            loss += log(total) - (double)kept[i * CLASSES + labels[i]];
            count++;
            correct += best == labels[i];
        }
    }
    model_result made = cross_entropy_forward(&e, &l.pass, EXAMPLES, labels, x);
    check_int("count", made.count, count);
    check_int("correct", made.correct, correct);
    check_close("loss", 0, made.loss, loss / count);
    memset(labels, 0xff, sizeof labels); /* all ignored */
    made = cross_entropy_forward(&e, &l.pass, EXAMPLES, labels, x);
    check_true(made.loss == 0 && made.count == 0 && x[0] == 0);
    free(x);
    free(kept);
    layer_fixture_close(&l);
}

static void test_gelu(void **state) {
    (void)state;
    layer_fixture l;
    layer_norm any;
    layer_fixture_open(&l, 1, build_layer_norm, &any);
    const real x[4] = {0, 1, -1, 3};
    const double want[4] = {0, 0.84134474606854293, -0.15865525393145707, 2.9959503059051072};
    real y[4];
    gelu_forward(&l.pass, 4, x, y);
    for (int i = 0; i < 4; i++)
        check_close("y", i, (double)y[i], want[i]);
    layer_fixture_close(&l);
}

/* Within 2 units in the last place over all of its range; NaN stays. */
static void test_exponential(void **state) {
    (void)state;
    const double unit = sizeof(real) == sizeof(double) ? 0x1p-52 : 0x1p-23;
    for (int i = -86000; i <= 87000; i++) {
        real x = (real)(i * 1e-3);
        double want = exp((double)x), off = fabs((double)exponential(x) - want) / want;
        if (!(off <= 2 * unit))
            check_fail("exponential(%.9g) is off by %.2f units", (double)x, off / unit);
    }
    check_true(exponential((real)-1000) >= 0 && exponential((real)-1000) < 2e-38);
    check_true(isnan((double)exponential((real)NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv2d),     cmocka_unit_test(test_maxpool),
        cmocka_unit_test(test_batch_norm), cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_lstm),       cmocka_unit_test(test_attention),
        cmocka_unit_test(test_gelu),       cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_exponential)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
