/* batches.c - from an epoch and a step to the examples of a batch, row by row
 *
 *     position in the epoch = (step * workers + worker) * count + row
 *     example               = order(seed, epoch)[position]        test: example = position
 *     randomness            = key(seed, split, epoch, example): the same for any sharding
 *
 * Randomness is a function: no state, no tables. An order of n things is a Feistel network (Luby and
 * Rackoff, 1988) on the smallest even number of bits that can count them; results past n are sent
 * through again until they fall inside (cycle walking), fewer than four times on average. So position
 * i of an epoch costs the same at any i, and all of them together hit every example once.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/random.h"
#include "data/data.h"

/* ---- Randomness --------------------------------------------------------------------------------- */

/* A key of its own for each value under `key`. */
static uint64_t random_key(uint64_t key, uint64_t value) {
    return tw__random(tw__random(key, 0) ^ value, 1);
}

/* 0 .. bound-1, for a bound of 1 .. 2^31; biased by 2^-32 at most. Not tw__random_below, which takes
 * more bits: batches stay as they were in earlier versions, and runs resume. */
static int64_t random_below(uint64_t key, uint64_t counter, int64_t bound) {
    return (int64_t)((tw__random(key, counter) >> 32) * (uint64_t)bound >> 32);
}

enum { FEISTEL_ROUNDS = 6 };

static uint64_t feistel(uint64_t key, int half, uint64_t x) {
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t left = x >> half, right = x & mask;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) {
        const uint64_t next = left ^ (tw__random(key, (uint64_t)round << 32 | right) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

/* Which of n things (1 .. 2^62) comes at `position` (0 .. n-1) in the order of this key. */
static int64_t random_order(uint64_t key, int64_t n, int64_t position) {
    assert(position >= 0 && position < n);
    int half = 1;
    while ((n - 1) >> (2 * half) != 0)
        half++;
    uint64_t x = (uint64_t)position;
    do
        x = feistel(key, half, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* ---- Images ------------------------------------------------------------------------------------- */

/* Augmentation as is usual for CIFAR-10 (He et al., 2016): four black pixels are added on each side,
 * a window of the old size is cut out anywhere, and half of the images are turned left to right. */
enum { PADDING = 4, SHIFTS = 2 * PADDING + 1 };
enum { DRAW_DOWN, DRAW_RIGHT, DRAW_FLIP };

/* pixel[channels] at row y and column x, black outside. */
static void copy_pixel(const dataset *set, const uint8_t *image, int32_t y, int32_t x,
                       float *pixel) {
    const dataset_info *info = &set->info;
    const bool inside = y >= 0 && y < info->height && x >= 0 && x < info->width;
    const uint8_t *from = image + ((int64_t)y * info->width + x) * info->channels;
    for (int32_t c = 0; c < info->channels; c++)
        pixel[c] = set->levels[c][inside ? from[c] : 0];
}

static void fill_image(const dataset *set, const batch_spec *spec, int64_t example, uint64_t key,
                       const batch_buffers *buffers, int64_t row) {
    const dataset_info *info = &set->info;
    const image_split *images = &set->images[spec->split];
    const int64_t size = (int64_t)info->height * info->width * info->channels;
    const uint8_t *image = images->pixels + example * size; /* [height][width][channels] */
    float *pixel = buffers->images + row * size;
    /* pixel (0, 0) of the result is pixel (down, right) of the image */
    const bool augment = spec->augment && spec->split == DATASET_TRAIN;
    const int32_t down = augment ? (int32_t)random_below(key, DRAW_DOWN, SHIFTS) - PADDING : 0;
    const int32_t right = augment ? (int32_t)random_below(key, DRAW_RIGHT, SHIFTS) - PADDING : 0;
    const bool flip = augment && random_below(key, DRAW_FLIP, 2) == 1;
    for (int32_t y = 0; y < info->height; y++) {
        for (int32_t x = 0; x < info->width; x++) {
            const int32_t from = flip ? info->width - 1 - x : x;
            copy_pixel(set, image, y + down, from + right, pixel);
            pixel += info->channels;
        }
    }
    buffers->labels[row] = images->labels[example];
}

/* ---- Words -------------------------------------------------------------------------------------- */

/* A window of the text, and the words that follow as labels. */
static void fill_window(const dataset *set, const batch_spec *spec, int64_t window,
                        const batch_buffers *buffers, int64_t row) {
    const int64_t length = spec->length;
    const int32_t *from = set->text[spec->split].tokens + window * length; /* [length + 1] */
    const size_t size = (size_t)length * sizeof *from;
    memcpy(buffers->tokens + row * length, from, size);
    memcpy(buffers->labels + row * length, from + 1, size);
}

/* ---- Masked words ------------------------------------------------------------------------------- */

/* One row of BERT's batch: two sentences, some words of which are to be guessed.
 *
 *   tokens    CLS  the cat MASK .  SEP  it slept .  SEP PAD PAD
 *   labels    -    -   -   sat  -  -    -  -     -  -   -   -       - is TOKEN_IGNORE
 *   segments  0    0   0   0    0  0    1  1     1  1   0   0       follows 1, lengths 10
 *
 * Exactly 15 % of the words, rounded, but at least one: the first ones in a random order. Sentences
 * too long for the row are cut at their ends, the longer one first (Devlin et al., 2019).
 */
enum { PERCENT = 15, SPECIAL = 3 /* CLS and two SEP */ };
enum { KEY_PAIR, KEY_POSITIONS, KEY_FATES, KEY_WORDS };
enum { OF_TEN_MASKED = 8, OF_TEN_RANDOM = 1 };

typedef struct row {
    int32_t *tokens, *labels, *segments; /* [length] each */
    int32_t length;
    int32_t used; /* tokens so far */
} row;

static void put(row *r, int32_t token, int32_t segment) {
    assert(r->used < r->length);
    r->tokens[r->used] = token;
    r->labels[r->used] = TOKEN_IGNORE;
    r->segments[r->used++] = segment;
}

static void put_sentence(row *r, const int32_t *tokens, int32_t words, int32_t segment) {
    for (int32_t i = 0; i < words; i++)
        put(r, tokens[i], segment);
    put(r, TOKEN_SEP, segment);
}

/* The sentence after `first`, or any but these two. */
static int64_t draw_partner(const token_split *text, int64_t first, uint64_t key, bool *follows) {
    *follows = random_below(key, 0, 2) == 1;
    if (*follows)
        return first + 1;
    const int64_t other = random_below(key, 1, text->sentence_count - 2);
    return other < first ? other : other + 2;
}

/* Cut *a and *b to `room` words together. */
static void fit(int32_t *a, int32_t *b, int32_t room) {
    const int32_t half = room / 2; /* what b gets when both are too long */
    if (*a <= room - *b)
        return;
    if (*b <= half)
        *a = room - *b;
    else if (*a <= room - half)
        *b = room - *a;
    else {
        *a = room - half;
        *b = half;
    }
}

/* Hide some of the words: a of them from position 1 on, the rest after the SEP that follows. */
static void mask(row *r, const vocabulary *v, int32_t a, int32_t words, uint64_t key) {
    const uint64_t fates = random_key(key, KEY_FATES);
    const int64_t rounded = ((int64_t)words * PERCENT + 50) / 100;
    for (int64_t i = 0; i < (rounded > 1 ? rounded : 1); i++) {
        const int64_t which = random_order(random_key(key, KEY_POSITIONS), words, i);
        const int64_t at = which < a ? which + 1 : which + 2;
        r->labels[at] = r->tokens[at];
        const int64_t fate = random_below(fates, (uint64_t)i, 10);
        if (fate < OF_TEN_MASKED)
            r->tokens[at] = TOKEN_MASK;
        else if (fate < OF_TEN_MASKED + OF_TEN_RANDOM)
            r->tokens[at] =
                v->first_word + (int32_t)random_below(random_key(key, KEY_WORDS), (uint64_t)i,
                                                      v->size - v->first_word);
    }
}

static void fill_masked(const dataset *set, const batch_spec *spec, int64_t example, uint64_t key,
                        const batch_buffers *buffers, int64_t index) {
    const token_split *text = &set->text[spec->split];
    const int64_t start = index * spec->length;
    row r = {buffers->tokens + start, buffers->labels + start, buffers->segments + start,
             spec->length, 0};
    bool follows;
    const int64_t first = text->pairs[example];
    const int64_t second = draw_partner(text, first, random_key(key, KEY_PAIR), &follows);
    const sentence *a = &text->sentences[first];
    const sentence *b = &text->sentences[second];
    int32_t a_words = a->words, b_words = b->words;
    fit(&a_words, &b_words, spec->length - SPECIAL);
    put(&r, TOKEN_CLS, 0);
    put_sentence(&r, text->tokens + a->first, a_words, 0);
    put_sentence(&r, text->tokens + b->first, b_words, 1);
    buffers->lengths[index] = r.used;
    buffers->follows[index] = follows;
    while (r.used < r.length)
        put(&r, TOKEN_PAD, 0);
    mask(&r, &set->words, a_words, a_words + b_words, key);
}

/* ---- Batches ------------------------------------------------------------------------------------ */

enum { LEAST_MASKED_LENGTH = 5 /* CLS word SEP word SEP */ };
enum { KEY_ORDER, KEY_EXAMPLE };

static int32_t workers_of(const batch_spec *spec) {
    return spec->workers ? spec->workers : 1;
}

static int check_spec(const dataset *set, const batch_spec *spec) {
    static const char *const needs[] = {"images", "text", "text opened for masked batches"};
    const bool image = set->info.kind == DATASET_IMAGES;
    if (spec->form < BATCH_IMAGES || spec->form > BATCH_MASKED || spec->split < DATASET_TRAIN ||
        spec->split >= DATASET_SPLITS)
        return tw__fail(TW_ERR_PARAM, "batch: form %d of split %d is not known", (int)spec->form,
                        (int)spec->split);
    if (image != (spec->form == BATCH_IMAGES) || (spec->form == BATCH_MASKED && !set->info.masked))
        return tw__fail(TW_ERR_PARAM, "batch: the model needs %s, but the data are %s",
                        needs[spec->form], image ? "images" : "text for a word model");
    if (spec->count < 1 || spec->workers < 0 || spec->worker < 0 ||
        spec->worker >= workers_of(spec))
        return tw__fail(TW_ERR_PARAM,
                        "batch: %d examples for worker %d of %d; at least one example, and a "
                        "worker from 0 on",
                        spec->count, spec->worker, workers_of(spec));
    const int32_t least = spec->form == BATCH_MASKED ? LEAST_MASKED_LENGTH : 1;
    if (!image && spec->length < least)
        return tw__fail(TW_ERR_PARAM, "batch: a length of %d tokens; at least %d", spec->length,
                        least);
    return TW_OK;
}

/* Examples of the split in this form. */
static int64_t examples_of(const dataset *set, const batch_spec *spec) {
    const token_split *text = &set->text[spec->split];
    return spec->form == BATCH_IMAGES  ? set->images[spec->split].count
           : spec->form == BATCH_WORDS ? (text->count - 1) / spec->length
                                       : text->pair_count;
}

int dataset_steps(const dataset *set, const batch_spec *spec, int64_t *steps) {
    *steps = 0;
    TW_TRY(check_spec(set, spec));
    const int64_t examples = examples_of(set, spec);
    const int64_t each = (int64_t)spec->count * workers_of(spec);
    const bool train = spec->split == DATASET_TRAIN;
    if (examples < (train ? each : 1))
        return tw__fail(TW_ERR_PARAM,
                        "batch: %d examples for each of %d workers, but there are only %" PRId64
                        "; use smaller batches, shorter sequences or more data",
                        spec->count, workers_of(spec), examples);
    *steps = train ? examples / each : (examples + each - 1) / each;
    return TW_OK;
}

int dataset_batch(const dataset *set, const batch_spec *spec, int64_t epoch, int64_t step,
                  const batch_buffers *buffers, int32_t *filled) {
    *filled = 0;
    int64_t steps;
    TW_TRY(dataset_steps(set, spec, &steps));
    if (epoch < 0 || step < 0 || step >= steps)
        return tw__fail(TW_ERR_PARAM,
                        "batch: step %" PRId64 " of epoch %" PRId64 "; an epoch has %" PRId64
                        " steps",
                        step, epoch, steps);
    const batch_buffers *b = buffers;
    if (!b->labels || (spec->form == BATCH_IMAGES ? !b->images : !b->tokens) ||
        (spec->form == BATCH_MASKED && (!b->segments || !b->lengths || !b->follows)))
        return tw__fail(TW_ERR_NULL, "batch: a buffer that this form fills is NULL");
    const bool train = spec->split == DATASET_TRAIN;
    const int64_t examples = examples_of(set, spec);
    const int64_t first = (step * workers_of(spec) + spec->worker) * spec->count;
    const uint64_t key =
        random_key(random_key(spec->seed, (uint64_t)spec->split), train ? (uint64_t)epoch : 0);
    for (; *filled < spec->count && first + *filled < examples; ++*filled) {
        const int64_t at = first + *filled;
        const int64_t example = train ? random_order(random_key(key, KEY_ORDER), examples, at) : at;
        const uint64_t own = random_key(random_key(key, KEY_EXAMPLE), (uint64_t)example);
        if (spec->form == BATCH_IMAGES)
            fill_image(set, spec, example, own, buffers, *filled);
        else if (spec->form == BATCH_WORDS)
            fill_window(set, spec, example, buffers, *filled);
        else
            fill_masked(set, spec, example, own, buffers, *filled);
    }
    return TW_OK;
}
