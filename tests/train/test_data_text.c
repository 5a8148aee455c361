/* test_data_text.c - words, ids, windows of a text, and the pairs of sentences that BERT trains on
 *
 * Masked batches are undone with their labels: what comes out must be two sentences of the text,
 * the second after the first where the batch says so. Shares are within five deviations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/data.h"
#include "data_files.h"

static void check_word(const dataset *set, int32_t id, const char *want) {
    if (strcmp(set->words.names[id], want) != 0)
        check_fail("id %d is '%s', not '%s'", id, set->words.names[id], want);
}

static void check_tokens(const dataset *set, dataset_split split, const char *want) {
    char text[256] = "";
    size_t size = 0;
    const token_split *stream = &set->text[split];
    for (int64_t i = 0; i < stream->count; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%s%s", i > 0 ? " " : "",
                                 set->words.names[stream->tokens[i]]);
    if (strcmp(text, want) != 0)
        check_fail("tokens '%s', not '%s'", text, want);
}

/* ---- Words ---------------------------------------------------------------------------------------- */

static void test_words(void **state) {
    (void)state;
    check_scene("two texts");
    files_write_text("train.txt", " b a c\n\n c\t<unk> b  c\r\nlast");
    files_write_text("test.txt", "c new <eos> a\n");
    dataset *set = files_open(files_path(""), NULL);
    const dataset_info *info = dataset_get_info(set);
    check_int("kind", info->kind, DATASET_TOKENS);
    check_int("vocabulary", info->vocabulary, 6);
    const char *words[] = {"<unk>", "<eos>", "c", "b", "a", "last"};
    for (int32_t id = 0; id < 6; id++)
        check_word(set, id, words[id]);
    check_tokens(set, DATASET_TRAIN, "b a c <eos> <eos> c <unk> b c <eos> last <eos>");
    check_tokens(set, DATASET_TEST, "c <unk> <eos> a <eos>");
    check_int("tokens", info->count[DATASET_TRAIN], 12);
    dataset_close(set);
    set = files_open(files_path(""), &(dataset_options){.vocabulary = 4, .train_limit = 8});
    check_int("vocabulary", dataset_get_info(set)->vocabulary, 4);
    check_tokens(set, DATASET_TRAIN, "b <unk> c <eos> <eos> c <unk> b");
    dataset_close(set);
    set = files_open(files_path(""), &(dataset_options){.masked = false, .vocabulary = 1000});
    check_int("vocabulary", dataset_get_info(set)->vocabulary, 6);
    dataset_close(set);
}

/* One file is cut after nine tenths; gzip is unpacked under any name. */
static void test_one_file(void **state) {
    (void)state;
    check_scene("one text");
    char text[1000];
    size_t size = 0;
    for (int line = 0; line < 100; line++)
        size += (size_t)snprintf(text + size, sizeof text - size, "line %03d\n", line);
    files_write("book.txt.gz", text, size);
    check_int("rename", rename(files_path("book.txt.gz"), files_path("book")), 0);
    dataset *set = files_open(files_path("book"), NULL);
    const dataset_info *info = dataset_get_info(set);
    check_int("training tokens", info->count[DATASET_TRAIN], 91 * 3);
    check_int("test tokens", info->count[DATASET_TEST], 9 * 3);
    check_int("vocabulary", info->vocabulary, 2 + 1 + 91);
    check_word(set, 2, "line");
    check_word(set, 3, "000");
    dataset_close(set);
}

/* Each window once in an epoch, and labels one word further on. */
static void test_windows(void **state) {
    (void)state;
    enum { LENGTH = 7, COUNT = 2, WORKERS = 3 };
    dataset *set = files_open(files_path("book"), NULL);
    const token_split *stream = &set->text[DATASET_TRAIN];
    const int64_t windows = (stream->count - 1) / LENGTH;
    batch_spec spec = {
        .form = BATCH_WORDS, .count = COUNT, .length = LENGTH, .workers = WORKERS, .seed = 1};
    int32_t tokens[COUNT * LENGTH];
    int32_t labels[COUNT * LENGTH];
    const batch_buffers b = {.tokens = tokens, .labels = labels};
    int64_t steps;
    check_ok(dataset_steps(set, &spec, &steps));
    check_int("steps", steps, windows / (COUNT * WORKERS));
    bool seen[64] = {false};
    for (int64_t step = 0; step < steps; step++) {
        for (spec.worker = 0; spec.worker < WORKERS; spec.worker++) {
            int32_t filled;
            check_ok(dataset_batch(set, &spec, 4, step, &b, &filled));
            for (int row = 0; row < COUNT; row++) {
                int64_t window = 0; /* words of lines are unique, so windows are */
                while (memcmp(stream->tokens + window * LENGTH, tokens + row * LENGTH,
                              LENGTH * sizeof *tokens) != 0)
                    check_true(++window < windows);
                check_true(memcmp(stream->tokens + window * LENGTH + 1, labels + row * LENGTH,
                                  LENGTH * sizeof *tokens) == 0);
                check_true(!seen[window]);
                seen[window] = true;
            }
        }
    }
    dataset_close(set);
}

static void test_bad_texts(void **state) {
    (void)state;
    check_scene("bad texts");
    files_clear();
    char path[64];
    snprintf(path, sizeof path, "%s", files_path(""));
    files_write_text("train.txt", "some words here\n");
    files_refused(path, NULL, TW_ERR_FILE, path, "test.txt");
    files_write_text("test.txt", "");
    files_refused(path, NULL, TW_ERR_DAMAGED, path, "test text");
    files_write_text("train.txt", "");
    files_refused(path, NULL, TW_ERR_DAMAGED, path, "no words");
    files_write_text("train.txt", " \n\t \n<unk> <eos>\n");
    files_refused(path, NULL, TW_ERR_DAMAGED, path, "no words");
    files_write("train.txt", "some\0words", 10);
    files_refused(path, NULL, TW_ERR_DAMAGED, "train.txt", "byte 4");
    files_write_text("one", "a single line\n");
    files_refused(files_path("one"), NULL, TW_ERR_DAMAGED, "one", "test text");
    files_write_text("empty", "");
    files_refused(files_path("empty"), NULL, TW_ERR_DAMAGED, "empty", "no words");
    files_write_text("train.txt", "Never two . \n\n sentences . \n\n in a row .\n");
    files_write_text("test.txt", "One . Two . Three .\n");
    files_refused(path, &(dataset_options){.masked = true}, TW_ERR_DAMAGED, path, "in a row");
    files_refused(path, &(dataset_options){.vocabulary = 2}, TW_ERR_PARAM, "vocabulary", "3");
    files_refused(path, &(dataset_options){.vocabulary = 6, .masked = true}, TW_ERR_PARAM,
                  "vocabulary", "7");
}

static void test_bad_plans(void **state) {
    (void)state;
    check_scene("bad plans");
    dataset *set = files_open(files_path(""), NULL);
    int64_t steps;
    const batch_spec spec = {.form = BATCH_MASKED, .count = 1, .length = 8};
    check_error(dataset_steps(set, &spec, &steps), TW_ERR_PARAM);
    check_contains(tw_last_error(), "masked");
    const batch_spec longer = {.form = BATCH_WORDS, .count = 1, .length = 100};
    check_error(dataset_steps(set, &longer, &steps), TW_ERR_PARAM);
    const batch_spec empty = {.form = BATCH_WORDS, .count = 1};
    check_error(dataset_steps(set, &empty, &steps), TW_ERR_PARAM);
    dataset_close(set);
}

/* ---- Masked batches ------------------------------------------------------------------------------- */

enum { SENTENCES = 3000, LENGTH = 24, COUNT = 10, WORDS = 200 };

/* Sentences of 1 to 20 words and a full stop; every tenth ends its paragraph. */
static void write_story(const char *name, int sentences) {
    const size_t room = (size_t)sentences * 20 * 6 + 1;
    char *text = check_alloc((int64_t)room, 1);
    size_t size = 0;
    uint32_t x = 1;
    for (int i = 0; i < sentences; i++) {
        for (int w = 0; w <= i * 7 % 20; w++) {
            x = x * 1664525u + 1013904223u;
            size += (size_t)snprintf(text + size, room - size, "w%u ", (x >> 16) % WORDS);
        }
        size += (size_t)snprintf(text + size, room - size, i % 10 == 9 ? ".\n\n" : ".\n");
    }
    files_write(name, text, size);
    free(text);
}

typedef struct tally {
    int64_t rows, follow, words, masked, random, kept;
} tally;

/* The sentence from which words[count] were cut, `from` on; -1 where there is none. */
static int64_t find_sentence(const token_split *text, const int32_t *words, int32_t count,
                             int64_t from) {
    for (int64_t i = from; i < text->sentence_count; i++) {
        const sentence *s = &text->sentences[i];
        if (s->words >= count &&
            memcmp(text->tokens + s->first, words, (size_t)count * sizeof *words) == 0)
            return i;
    }
    return -1;
}

/* tokens[a+b+3] without masks are two sentences, and they follow each other if they should. */
static void check_pair(const token_split *text, const int32_t *tokens, int32_t a, int32_t b,
                       bool follows) {
    bool after = false; /* short sentences occur more than once: any of them will do */
    int64_t first = -1;
    while (!after && (first = find_sentence(text, tokens + 1, a, first + 1)) >= 0)
        after = text->sentences[first].followed &&
                find_sentence(text, tokens + a + 2, b, first + 1) == first + 1;
    check_true(find_sentence(text, tokens + 1, a, 0) >= 0);
    check_true(find_sentence(text, tokens + a + 2, b, 0) >= 0);
    if (follows || a + b > 8) /* long ones are unique */
        check_int("follows", after, follows);
}

/* Undo the masks of one row, counting what they were. */
static int64_t unmask(int32_t *tokens, const int32_t *labels, int32_t length, tally *t) {
    int64_t predicted = 0;
    for (int32_t i = 0; i < length; i++) {
        if (labels[i] == TOKEN_IGNORE)
            continue;
        predicted++;
        t->masked += tokens[i] == TOKEN_MASK;
        t->kept += tokens[i] == labels[i];
        t->random += tokens[i] != TOKEN_MASK && tokens[i] != labels[i];
        check_true(labels[i] >= TOKEN_MASKED_WORDS);
        check_true(tokens[i] >= TOKEN_MASKED_WORDS || tokens[i] == TOKEN_MASK);
        tokens[i] = labels[i];
    }
    return predicted;
}

static void check_row(const dataset *set, dataset_split split, const batch_buffers *b, int row,
                      tally *t) {
    int32_t *tokens = b->tokens + row * LENGTH;
    const int32_t *segments = b->segments + row * LENGTH;
    const int32_t used = b->lengths[row];
    const int64_t predicted = unmask(tokens, b->labels + row * LENGTH, used, t);
    int32_t a = 0;
    while (tokens[1 + a] != TOKEN_SEP)
        check_true(++a < used);
    const int32_t second = used - a - 3;
    check_int("first token", tokens[0], TOKEN_CLS);
    check_int("last token", tokens[used - 1], TOKEN_SEP);
    for (int32_t i = 0; i < LENGTH; i++) {
        check_int("segment", segments[i], i > a + 1 && i < used);
        check_int("padding", tokens[i] == TOKEN_PAD, i >= used);
        if (i >= used)
            check_int("label of padding", b->labels[row * LENGTH + i], TOKEN_IGNORE);
    }
    const int64_t share = ((a + second) * 15 + 50) / 100;
    check_int("predicted", predicted, share > 1 ? share : 1);
    check_pair(&set->text[split], tokens, a, second, b->follows[row]);
    t->rows++;
    t->follow += b->follows[row];
    t->words += a + second;
}

static void check_masked_split(const dataset *set, batch_spec spec, int64_t steps, tally *t) {
    int32_t room[3][COUNT * LENGTH];
    int32_t again[COUNT * LENGTH];
    int32_t lengths[COUNT];
    int32_t follows[COUNT];
    const batch_buffers b = {.tokens = room[0],
                             .labels = room[1],
                             .segments = room[2],
                             .lengths = lengths,
                             .follows = follows};
    for (int64_t step = 0; step < steps; step++) {
        check_scene("masked batch %d of split %d", (int)step, spec.split);
        int32_t filled;
        check_ok(dataset_batch(set, &spec, 1, step, &b, &filled));
        memcpy(again, b.tokens, sizeof again);
        check_ok(dataset_batch(set, &spec, 1, step, &b, &filled));
        check_true(memcmp(again, b.tokens, (size_t)filled * LENGTH * sizeof *again) == 0);
        for (int row = 0; row < filled; row++)
            check_row(set, spec.split, &b, row, t);
    }
}

/* part of whole, in thousandths, is this within a margin. */
static void check_share(const char *what, int64_t part, int64_t whole, int64_t want,
                        int64_t margin) {
    check_between(what, part * 1000, whole * (want - margin), whole * (want + margin));
}

static void test_masked(void **state) {
    (void)state;
    files_clear();
    write_story("train.txt", SENTENCES);
    write_story("test.txt", 100);
    dataset *set = files_open(files_path(""), &(dataset_options){.masked = true});
    check_int("vocabulary", dataset_get_info(set)->vocabulary, TOKEN_MASKED_WORDS + WORDS + 1);
    check_int("sentences", set->text[DATASET_TRAIN].sentence_count, SENTENCES);
    batch_spec spec = {.form = BATCH_MASKED, .count = COUNT, .length = LENGTH, .seed = 4};
    int64_t steps;
    check_ok(dataset_steps(set, &spec, &steps));
    check_int("steps", steps, SENTENCES / 10 * 9 / COUNT);
    tally t = {0};
    check_masked_split(set, spec, steps, &t);
    check_scene("masked");
    const int64_t predicted = t.masked + t.random + t.kept; /* about 6,700 */
    check_int("rows", t.rows, SENTENCES / 10 * 9);
    check_share("follow", t.follow, t.rows, 500, 48);
    check_share("predicted", predicted, t.words, 155, 15); /* one at least, so more than 15 % */
    check_share("masked", t.masked, predicted, 800, 25);
    check_share("random", t.random, predicted, 100, 20);
    check_share("kept", t.kept, predicted, 100, 20);
    spec.split = DATASET_TEST;
    check_ok(dataset_steps(set, &spec, &steps));
    t = (tally){0};
    check_masked_split(set, spec, steps, &t);
    check_int("test rows", t.rows, 90);
    dataset_close(set);
}

/* The shortest rows that are accepted: one word of each sentence. */
static void test_short_rows(void **state) {
    (void)state;
    check_scene("rows of five tokens");
    dataset *set = files_open(files_path(""), &(dataset_options){.masked = true, .vocabulary = 7});
    int32_t tokens[5];
    int32_t labels[5];
    int32_t segments[5];
    int32_t length;
    int32_t follows;
    int32_t filled;
    const batch_buffers b = {NULL, tokens, labels, segments, &length, &follows};
    batch_spec spec = {.form = BATCH_MASKED, .count = 1, .length = 5};
    for (int64_t step = 0; step < 500; step++) {
        check_ok(dataset_batch(set, &spec, 0, step, &b, &filled));
        check_int("length", length, 5);
        check_int("second SEP", tokens[4], TOKEN_SEP);
        check_int("predicted", (labels[1] >= 0) + (labels[3] >= 0), 1);
    }
    spec.length = 4;
    int64_t steps;
    check_error(dataset_steps(set, &spec, &steps), TW_ERR_PARAM);
    dataset_close(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),      cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_bad_plans),  cmocka_unit_test(test_masked),
        cmocka_unit_test(test_short_rows),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
