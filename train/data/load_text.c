/* load_text.c - plain text as a stream of word ids
 *
 * A directory with train.txt and test.txt (valid.txt where there is no test.txt; also under the
 * names of the WikiText archives, wiki.train.tokens and so on), or one file, cut at the first end of
 * a line past nine tenths. Words are what stands between white space; each line, an empty one too,
 * ends with <eos>. The vocabulary is that of the training text: other words of the test text are
 * <unk>. WikiText-2 (Merity et al., 2016) so has 2,088,628 training tokens of 33,278 words.
 */
#include <string.h>

#include "parts.h"

static const char *const train_names[] = {"train.txt", "train.txt.gz", "wiki.train.tokens"};
static const char *const test_names[] = {"test.txt",  "test.txt.gz",  "wiki.test.tokens",
                                         "valid.txt", "valid.txt.gz", "wiki.valid.tokens"};
#define COUNT(names) (sizeof(names) / sizeof *(names))

/* The first of the names that is a file, or NULL. */
static const char *find(const char *directory, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (data_is_file(directory, names[i]))
            return names[i];
    return NULL;
}

bool is_text_directory(const char *path) {
    return find(path, train_names, COUNT(train_names)) != NULL;
}

/* ---- Reading -------------------------------------------------------------------------------------- */

/* Text has no 0 byte. Its last line gets an end if it lacks one, in the place of the 0 behind it. */
static int check_text(bytes *text, const char *path, dataset_error *error) {
    const uint8_t *zero = text->size ? memchr(text->at, 0, text->size) : NULL;
    if (zero != NULL)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: byte %td is 0, so this is no text; give a text, or a directory of "
                         "IDX or CIFAR-10 files",
                         path, zero - text->at);
    if (text->size > 0 && text->at[text->size - 1] != '\n')
        text->at[text->size++] = '\n';
    return TW_OK;
}

static int read_text(bytes *text, const char *path, dataset_error *error) {
    const int status = bytes_read(text, path, error);
    return status == TW_OK ? check_text(text, path, error) : status;
}

/* Two files. */
static int read_directory(bytes text[DATASET_SPLITS], const char *path, dataset_error *error) {
    char file[PATH_ROOM];
    const char *test_name = find(path, test_names, COUNT(test_names));
    if (test_name == NULL)
        return data_fail(error, TW_ERR_FILE,
                         "%s: has a training text but no test.txt or valid.txt; add one", path);
    data_path(file, path, find(path, train_names, COUNT(train_names)));
    const int status = read_text(&text[DATASET_TRAIN], file, error);
    if (status != TW_OK)
        return status;
    data_path(file, path, test_name);
    return read_text(&text[DATASET_TEST], file, error);
}

/* One file, cut in two. */
static int read_file(bytes text[DATASET_SPLITS], const char *path, dataset_error *error) {
    bytes *train = &text[DATASET_TRAIN];
    int status = read_text(train, path, error);
    if (status != TW_OK)
        return status;
    const size_t least = train->size / 10 * 9;
    const uint8_t *line = memchr(train->at + least, '\n', train->size - least);
    const size_t cut = line ? (size_t)(line + 1 - train->at) : train->size;
    const size_t rest = train->size - cut;
    void *room;
    status = data_alloc(&room, path, (int64_t)rest, 1, error);
    if (status != TW_OK)
        return status;
    text[DATASET_TEST] = (bytes){room, rest};
    memcpy(room, train->at + cut, rest);
    train->size = cut;
    return TW_OK;
}

/* ---- Ids ------------------------------------------------------------------------------------------ */

static int64_t count_tokens(const bytes *text) {
    const char *at = (const char *)text->at;
    const char *end = at + text->size;
    int64_t count = 0;
    int64_t length;
    while (text_next(&at, end, &length) != NULL)
        count++;
    return count;
}

static int encode(dataset *set, dataset_split split, const char *path, const bytes *text,
                  int64_t limit, dataset_error *error) {
    int64_t count = count_tokens(text);
    if (limit > 0 && limit < count)
        count = limit;
    if (count < 2) /* a word and one that follows */
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: the %s text has less than two words; give a longer one", path,
                         split == DATASET_TRAIN ? "training" : "test");
    void *room;
    const int status = data_alloc(&room, path, count, sizeof(int32_t), error);
    if (status != TW_OK)
        return status;
    token_split *stream = &set->text[split];
    stream->tokens = room;
    const char *at = (const char *)text->at;
    const char *end = at + text->size;
    for (; stream->count < count; stream->count++) {
        int64_t length;
        const char *next = text_next(&at, end, &length);
        stream->tokens[stream->count] =
            *next == '\n' ? TOKEN_EOS : vocabulary_id(&set->words, next, length);
    }
    set->info.count[split] = count;
    return set->info.masked ? sentences_find(stream, &set->words, path, error) : TW_OK;
}

static int make_vocabulary(vocabulary *words, const char *path, const bytes *text,
                           const dataset_options *options, dataset_error *error) {
    int status = vocabulary_count(words, path, (const char *)text->at, text->size, error);
    if (status == TW_OK)
        status = vocabulary_close(words, path, options->vocabulary, options->masked, error);
    if (status == TW_OK && words->size == words->first_word)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: the training text has no words; give a text that has some", path);
    return status;
}

static int encode_both(dataset *set, const char *path, const bytes text[DATASET_SPLITS],
                       const dataset_options *options, dataset_error *error) {
    int status = make_vocabulary(&set->words, path, &text[DATASET_TRAIN], options, error);
    if (status == TW_OK)
        status =
            encode(set, DATASET_TRAIN, path, &text[DATASET_TRAIN], options->train_limit, error);
    if (status == TW_OK)
        status = encode(set, DATASET_TEST, path, &text[DATASET_TEST], options->test_limit, error);
    vocabulary_forget(&set->words);
    return status;
}

int load_text(dataset *set, const char *path, const dataset_options *options,
              dataset_error *error) {
    set->info.kind = DATASET_TOKENS;
    set->info.masked = options->masked;
    set->info.classes = 0;
    bytes text[DATASET_SPLITS] = {0};
    int status =
        is_text_directory(path) ? read_directory(text, path, error) : read_file(text, path, error);
    if (status == TW_OK)
        status = encode_both(set, path, text, options, error);
    set->info.vocabulary = set->words.size;
    bytes_free(&text[DATASET_TRAIN]);
    bytes_free(&text[DATASET_TEST]);
    return status;
}
