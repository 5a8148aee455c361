/* batch_masked.c - one row of BERT's batch: two sentences, some words of which are to be guessed
 *
 *   tokens    CLS  the cat MASK .  SEP  it slept .  SEP PAD PAD
 *   labels    -    -   -   sat  -  -    -  -     -  -   -   -       - is TOKEN_IGNORE
 *   segments  0    0   0   0    0  0    1  1     1  1   0   0       follows 1, lengths 10
 *
 * Exactly 15 % of the words, rounded, but at least one: the first ones in a random order. Sentences
 * too long for the row are cut at their ends, the longer one first (Devlin et al., 2019).
 */
#include "chance.h"
#include "parts.h"

enum { PERCENT = 15, SPECIAL = 3 /* CLS and two SEP */ };
enum { KEY_PAIR, KEY_PLACES, KEY_FATES, KEY_WORDS };
enum { OF_TEN_MASKED = 8, OF_TEN_RANDOM = 1 };

typedef struct row {
    int32_t *tokens, *labels, *segments; /* [length] each */
    int32_t length;
    int32_t used; /* tokens so far */
} row;

static void put(row *r, int32_t token, int32_t segment) {
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
    *follows = chance_below(key, 0, 2) == 1;
    if (*follows)
        return first + 1;
    const int64_t other = chance_below(key, 1, text->sentence_count - 2);
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

/* Hide some of the words: a of them from place 1 on, the rest after the SEP that follows. */
static void mask(row *r, const vocabulary *v, int32_t a, int32_t words, uint64_t key) {
    const uint64_t fates = chance_key(key, KEY_FATES);
    const int64_t rounded = ((int64_t)words * PERCENT + 50) / 100;
    for (int64_t i = 0; i < (rounded > 1 ? rounded : 1); i++) {
        const int64_t place = chance_order(chance_key(key, KEY_PLACES), words, i);
        const int64_t at = place < a ? place + 1 : place + 2;
        r->labels[at] = r->tokens[at];
        const int64_t fate = chance_below(fates, (uint64_t)i, 10);
        if (fate < OF_TEN_MASKED)
            r->tokens[at] = TOKEN_MASK;
        else if (fate < OF_TEN_MASKED + OF_TEN_RANDOM)
            r->tokens[at] =
                v->first_word + (int32_t)chance_below(chance_key(key, KEY_WORDS), (uint64_t)i,
                                                      v->size - v->first_word);
    }
}

void batch_masked(const dataset *set, const batch_plan *plan, int64_t example, uint64_t key,
                  const batch_buffers *buffers, int64_t index) {
    const token_split *text = &set->text[plan->split];
    const int64_t start = index * plan->length;
    row r = {buffers->tokens + start, buffers->labels + start, buffers->segments + start,
             plan->length, 0};
    bool follows;
    const int64_t first = text->pairs[example];
    const int64_t second = draw_partner(text, first, chance_key(key, KEY_PAIR), &follows);
    const sentence *a = &text->sentences[first];
    const sentence *b = &text->sentences[second];
    int32_t a_words = a->words;
    int32_t b_words = b->words;
    fit(&a_words, &b_words, plan->length - SPECIAL);
    put(&r, TOKEN_CLS, 0);
    put_sentence(&r, text->tokens + a->first, a_words, 0);
    put_sentence(&r, text->tokens + b->first, b_words, 1);
    buffers->lengths[index] = r.used;
    buffers->follows[index] = follows;
    while (r.used < r.length)
        put(&r, TOKEN_PAD, 0);
    mask(&r, &set->words, a_words, a_words + b_words, key);
}
