/* test_data.c - the embedded set, and batches of images: order, shards, normalisation, augmentation
 *
 * Checksums of the embedded set are those of the whole Fashion-MNIST's images, taken with another
 * program. Shards are checked on images that carry their number: which worker got which is exact.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "data/data.h"
#include "data_files.h"

enum { FASHION_PIXELS = 28 * 28, PIXELS = IDX_ROWS * IDX_COLUMNS, MOST_EXAMPLES = 1000 };

/* ---- The embedded set ----------------------------------------------------------------------------- */

static uint32_t crc(const uint8_t *at, int64_t size) {
    return (uint32_t)crc32(0, at, (uInt)size);
}

static void check_image(const image_split *images, int64_t i, int label, uint32_t sum) {
    check_scene("embedded image %d", (int)i);
    check_int("label", images->labels[i], label);
    check_int("crc", crc(images->pixels + i * FASHION_PIXELS, FASHION_PIXELS), sum);
}

static void check_balance(const image_split *images, int64_t each) {
    int64_t seen[10] = {0};
    for (int64_t i = 0; i < images->count; i++)
        seen[images->labels[i]]++;
    for (int class = 0; class < 10; class ++)
        check_int("images of a class", seen[class], each);
}

static void test_embedded(void **state) {
    (void)state;
    check_scene("embedded");
    dataset *set = files_open(DATASET_EMBEDDED, NULL);
    const dataset_info *info = dataset_get_info(set);
    const image_split *train = &set->images[DATASET_TRAIN];
    const image_split *test = &set->images[DATASET_TEST];
    check_int("kind", info->kind, DATASET_IMAGES);
    check_int("training images", info->count[DATASET_TRAIN], 10000);
    check_int("test images", info->count[DATASET_TEST], 2000);
    check_int("channels", info->channels, 1);
    check_int("height", info->height, 28);
    check_int("width", info->width, 28);
    check_int("classes", info->classes, 10);
    check_int("mean", lroundf(info->mean[0] * 10000), 2867);
    check_int("std", lroundf(info->std[0] * 10000), 3540);
    check_balance(train, 1000);
    check_balance(test, 200);
    check_image(train, 0, 9, 0xf270beb5);
    check_image(train, 1, 0, 0x8679905e);
    check_image(train, 5000, 4, 0x4ee88fc6);
    check_image(train, 9999, 0, 0x0827b220);
    check_image(test, 0, 9, 0x52830860);
    check_image(test, 1999, 9, 0x786ea2fc);
    check_int("training pixels", crc(train->pixels, 10000 * FASHION_PIXELS), 0x8f680c6e);
    check_int("training labels", crc(train->labels, 10000), 0xa8fa5302);
    check_int("test pixels", crc(test->pixels, 2000 * FASHION_PIXELS), 0x58bdc0e4);
    check_int("test labels", crc(test->labels, 2000), 0x379f76fd);
    dataset_close(set);
}

static void test_limits(void **state) {
    (void)state;
    const dataset_options options = {.train_limit = 300, .test_limit = 1000000};
    dataset *set = files_open(DATASET_EMBEDDED, &options);
    check_int("training images", dataset_get_info(set)->count[DATASET_TRAIN], 300);
    check_int("test images", dataset_get_info(set)->count[DATASET_TEST], 2000);
    dataset_close(set);
    files_refused(DATASET_EMBEDDED, &(dataset_options){.train_limit = -1}, TW_ERR_PARAM, "limit",
                  "-1");
    files_refused(DATASET_EMBEDDED, &(dataset_options){.classes = 257}, TW_ERR_PARAM, "257", "256");
    files_refused(DATASET_EMBEDDED, &(dataset_options){.classes = 9}, TW_ERR_DAMAGED, "label 9",
                  "embedded");
}

/* ---- Batches -------------------------------------------------------------------------------------- */

/* Buffers for `count` images of the set. */
static batch_buffers image_buffers(const dataset *set, int64_t count) {
    const dataset_info *info = dataset_get_info(set);
    const int64_t size = (int64_t)info->height * info->width * info->channels;
    return (batch_buffers){.images = check_alloc(count * size, sizeof(float)),
                           .labels = check_alloc(count, sizeof(int32_t))};
}

static void free_buffers(batch_buffers *b) {
    free(b->images);
    free(b->labels);
}

static int64_t steps_of(const dataset *set, const batch_spec *spec) {
    int64_t steps;
    if (dataset_steps(set, spec, &steps) != TW_OK)
        check_fail("dataset_steps: %s", tw_last_error());
    return steps;
}

static int32_t fill(const dataset *set, const batch_spec *spec, int64_t epoch, int64_t step,
                    const batch_buffers *b) {
    int32_t filled;
    if (dataset_batch(set, spec, epoch, step, b, &filled) != TW_OK)
        check_fail("dataset_batch: %s", tw_last_error());
    return filled;
}

/* Which examples an epoch of all workers takes, in order of position, into numbers[]; how many. */
static int64_t take_epoch(const dataset *set, batch_spec spec, int64_t epoch, int64_t *numbers) {
    batch_buffers b = image_buffers(set, spec.count);
    const int64_t steps = steps_of(set, &spec);
    int64_t taken = 0;
    for (int64_t step = 0; step < steps; step++) {
        for (spec.worker = 0; spec.worker < spec.workers; spec.worker++) {
            const int32_t filled = fill(set, &spec, epoch, step, &b);
            if (spec.split == DATASET_TRAIN)
                check_int("filled", filled, spec.count);
            for (int64_t row = 0; row < filled; row++) {
                numbers[taken] = image_number(set, b.images + row * PIXELS);
                check_int("label", b.labels[row], numbers[taken++] % 10);
            }
        }
    }
    free_buffers(&b);
    return taken;
}

/* No number twice. */
static void check_distinct(const int64_t *numbers, int64_t count, int64_t n) {
    bool seen[MOST_EXAMPLES] = {false};
    for (int64_t i = 0; i < count; i++) {
        check_between("number", numbers[i], 0, n - 1);
        check_true(!seen[numbers[i]]);
        seen[numbers[i]] = true;
    }
}

static void test_shards(void **state) {
    (void)state;
    files_write_idx(MOST_EXAMPLES, 37, "");
    dataset *set = files_open(files_path(""), NULL);
    int64_t first[MOST_EXAMPLES];
    int64_t now[MOST_EXAMPLES];
    for (int workers = 1; workers <= 40; workers += 3) {
        for (int count = 1; count <= 25; count += 4) {
            check_scene("workers=%d count=%d", workers, count);
            batch_spec spec = {.count = count, .workers = workers, .seed = 7};
            const int64_t each = (int64_t)workers * count;
            const int64_t want = MOST_EXAMPLES / each * each;
            check_int("taken", take_epoch(set, spec, 2, now), want);
            check_distinct(now, want, MOST_EXAMPLES); /* all of them where `each` divides */
            if (workers == 1 && count == 1)
                memcpy(first, now, sizeof first);
            check_true(memcmp(first, now, (size_t)want * sizeof *now) == 0); /* any sharding */
            spec.split = DATASET_TEST;
            check_int("tested", take_epoch(set, spec, 2, now), 37);
            for (int64_t i = 0; i < 37; i++)
                check_int("in order", now[i], i);
        }
    }
    dataset_close(set);
}

/* Places at which two orders agree: one on average for random ones. */
static int64_t agreement(const int64_t *a, const int64_t *b) {
    int64_t same = 0;
    for (int64_t i = 0; i < MOST_EXAMPLES; i++)
        same += a[i] == b[i];
    return same;
}

static void test_orders(void **state) {
    (void)state;
    dataset *set = files_open(files_path(""), NULL);
    int64_t orders[4][MOST_EXAMPLES];
    batch_spec spec = {.count = 10, .workers = 4, .seed = 1};
    take_epoch(set, spec, 0, orders[0]);
    take_epoch(set, spec, 1, orders[1]);
    spec.seed = 2;
    take_epoch(set, spec, 0, orders[2]);
    for (int64_t i = 0; i < MOST_EXAMPLES; i++)
        orders[3][i] = i;
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++)
            check_between("places in common", agreement(orders[a], orders[b]), 0, 8);
    dataset_close(set);
}

/* Any batch, asked for alone from a set opened again, is what it was in the run. */
static void test_resume(void **state) {
    (void)state;
    enum { COUNT = 16, STEPS = 6 };
    static float run[STEPS][COUNT * FASHION_PIXELS];
    const batch_spec spec = {.count = COUNT, .worker = 2, .workers = 4, .augment = true, .seed = 3};
    dataset *set = files_open(DATASET_EMBEDDED, NULL);
    batch_buffers b = image_buffers(set, COUNT);
    for (int64_t step = 0; step < STEPS; step++) {
        fill(set, &spec, 5, step, &b);
        memcpy(run[step], b.images, sizeof run[step]);
    }
    dataset_close(set);
    set = files_open(DATASET_EMBEDDED, NULL);
    for (int64_t step = STEPS - 1; step >= 0; step--) {
        check_scene("resumed at step %d", (int)step);
        fill(set, &spec, 5, step, &b);
        check_bits("images", b.images, run[step], COUNT * FASHION_PIXELS);
    }
    free_buffers(&b);
    dataset_close(set);
}

/* Pixels as they are, when nothing is augmented: (p / 255 - mean) / std. */
static void test_normalised(void **state) {
    (void)state;
    dataset *set = files_open(DATASET_EMBEDDED, NULL);
    const batch_spec spec = {.split = DATASET_TEST, .count = 2000, .augment = true};
    batch_buffers b = image_buffers(set, spec.count);
    check_int("filled", fill(set, &spec, 0, 0, &b), 2000);
    const dataset_info *info = dataset_get_info(set);
    const uint8_t *pixels = set->images[DATASET_TEST].pixels;
    for (int64_t i = 0; i < 2000 * FASHION_PIXELS; i++) {
        const float want = ((float)pixels[i] / 255 - info->mean[0]) / info->std[0];
        check_true(fabsf(b.images[i] - want) < 1e-5f);
    }
    free_buffers(&b);
    dataset_close(set);
}

/* ---- Augmentation --------------------------------------------------------------------------------- */

/* image[32][32][3] is the source moved by (down, right), then flipped or not. */
static bool is_view(const dataset *set, const float *image, const uint8_t *source, int down,
                    int right, bool flip) {
    for (int y = 0; y < 32; y++) {
        for (int x = 0; x < 32; x++) {
            const int from_y = y + down;
            const int from_x = (flip ? 31 - x : x) + right;
            const bool inside = from_y >= 0 && from_y < 32 && from_x >= 0 && from_x < 32;
            for (int c = 0; c < 3; c++) {
                const uint8_t level = inside ? source[(from_y * 32 + from_x) * 3 + c] : 0;
                if (image[(y * 32 + x) * 3 + c] != set->levels[c][level])
                    return false;
            }
        }
    }
    return true;
}

/* Counts the shift and the flip that explain the image. */
static void explain(const dataset *set, const float *image, const uint8_t *source, int downs[9],
                    int rights[9], int flips[2]) {
    for (int view = 0; view < 9 * 9 * 2; view++) {
        const int down = view / 18;
        const int right = view / 2 % 9;
        if (is_view(set, image, source, down - 4, right - 4, view % 2)) {
            downs[down]++;
            rights[right]++;
            flips[view % 2]++;
            return;
        }
    }
    check_fail("an augmented image is no crop of its source");
}

static void test_augmented(void **state) {
    (void)state;
    enum { EPOCHS = 900 };
    files_clear();
    files_write_cifar(1);
    dataset *set = files_open(files_path(""), NULL);
    const batch_spec spec = {.count = 5, .augment = true, .seed = 11};
    const batch_spec plain = {.count = 5, .seed = 11}; /* the same order */
    batch_buffers b = image_buffers(set, 5);
    batch_buffers source = image_buffers(set, 5);
    int downs[9] = {0};
    int rights[9] = {0};
    int flips[2] = {0};
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        fill(set, &spec, epoch, 0, &b);
        fill(set, &plain, epoch, 0, &source);
        const int64_t number = image_number(set, source.images);
        explain(set, b.images, set->images[DATASET_TRAIN].pixels + number * 3072, downs, rights,
                flips);
    }
    for (int i = 0; i < 9; i++) { /* 100 each; five deviations of 9.4 */
        check_between("crops down", downs[i], 53, 147);
        check_between("crops right", rights[i], 53, 147);
    }
    check_between("flipped", flips[1], EPOCHS / 2 - 75, EPOCHS / 2 + 75);
    free_buffers(&b);
    free_buffers(&source);
    dataset_close(set);
}

/* ---- Bad plans, threads --------------------------------------------------------------------------- */

static void refused_plan(const dataset *set, batch_spec spec, const char *part) {
    int64_t steps;
    check_error(dataset_steps(set, &spec, &steps), TW_ERR_PARAM);
    check_contains(tw_last_error(), part);
    int32_t filled;
    const batch_buffers none = {0};
    check_error(dataset_batch(set, &spec, 0, 0, &none, &filled), TW_ERR_PARAM);
}

static void test_bad_plans(void **state) {
    (void)state;
    dataset *set = files_open(DATASET_EMBEDDED, NULL);
    check_scene("bad plans");
    refused_plan(set, (batch_spec){.count = 0}, "0 examples");
    refused_plan(set, (batch_spec){.count = 1, .worker = 4, .workers = 4}, "worker 4 of 4");
    refused_plan(set, (batch_spec){.count = 1, .worker = -1, .workers = 4}, "worker -1 of 4");
    refused_plan(set, (batch_spec){.count = 1, .workers = -1}, "-1");
    refused_plan(set, (batch_spec){.count = 5001, .workers = 2}, "only 10000");
    refused_plan(set, (batch_spec){.count = INT32_MAX, .workers = INT32_MAX}, "only 10000");
    refused_plan(set, (batch_spec){.form = BATCH_WORDS, .count = 1, .length = 8}, "needs text");
    refused_plan(set, (batch_spec){.form = (batch_form)9, .count = 1}, "form 9");
    const batch_spec spec = {.count = 100};
    const batch_buffers none = {0};
    int32_t filled;
    check_error(dataset_batch(set, &spec, 0, 0, &none, &filled), TW_ERR_NULL);
    check_error(dataset_batch(set, &spec, 0, 100, &none, &filled), TW_ERR_PARAM);
    check_contains(tw_last_error(), "100 steps");
    check_error(dataset_batch(set, &spec, -1, 0, &none, &filled), TW_ERR_PARAM);
    check_error(dataset_batch(set, &spec, 0, -1, &none, &filled), TW_ERR_PARAM);
    dataset_close(set);
    dataset_close(NULL);
}

typedef struct reader {
    const dataset *set;
    uint64_t sum;
} reader;

static void *read_batches(void *argument) {
    reader *r = argument;
    const batch_spec spec = {.count = 8, .worker = 1, .workers = 3, .augment = true, .seed = 5};
    static _Thread_local float images[8 * FASHION_PIXELS];
    int32_t labels[8];
    const batch_buffers b = {.images = images, .labels = labels};
    int32_t filled;
    for (int64_t step = 0; step < 40; step++) {
        if (dataset_batch(r->set, &spec, step, step, &b, &filled) != TW_OK)
            return NULL;
        r->sum = r->sum * 31 + crc32(0, (const Bytef *)images, sizeof images);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    dataset *set = files_open(DATASET_EMBEDDED, NULL);
    reader alone = {.set = set};
    read_batches(&alone);
    reader readers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (reader){.set = set};
        check_int("thread", pthread_create(&threads[i], NULL, read_batches, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        check_true(readers[i].sum == alone.sum);
    }
    dataset_close(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedded),  cmocka_unit_test(test_limits),
        cmocka_unit_test(test_shards),    cmocka_unit_test(test_orders),
        cmocka_unit_test(test_resume),    cmocka_unit_test(test_normalised),
        cmocka_unit_test(test_augmented), cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
