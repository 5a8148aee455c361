/* load_text.c - plain text as a stream of word ids
 *
 * A directory with train.txt and test.txt (valid.txt where there is no test.txt; also under the
 * names of the WikiText archives, wiki.train.tokens and so on), or one file, cut at the first end of
 * a line past nine tenths. Words are what stands between white space; each line, an empty one too,
 * ends with <eos>. The vocabulary is that of the training text: other words of the test text are
 * <unk>. WikiText-2 (Merity et al., 2016) so has 2,088,628 training tokens of 33,278 words.
 *
 * Sentences, for masked batches: one ends with a word whose last character is . ! or ?, or with its
 * line. The next one follows it unless an empty line stands between: so titles, and the sections of
 * WikiText, are kept apart, while paragraphs of one section go on.
 */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/data.h"

static const char *const train_names[] = {"train.txt", "train.txt.gz", "wiki.train.tokens", NULL};
static const char *const test_names[] = {"test.txt",  "test.txt.gz",  "wiki.test.tokens",
                                         "valid.txt", "valid.txt.gz", "wiki.valid.tokens",
                                         NULL};

/* The first of the names that is a file, or NULL. */
static const char *find(const char *directory, const char *const *names) {
    while (*names != NULL && !data_is_file(directory, *names))
        names++;
    return *names;
}

static bool is_directory(const char *path) {
    return find(path, train_names) != NULL;
}

bool is_text(const char *path) {
    struct stat about;
    return is_directory(path) || (stat(path, &about) == 0 && !S_ISDIR(about.st_mode));
}

/* Text has no 0 byte. Its last line gets an end if it lacks one, which replaces the 0 behind it. */
static int read_text(bytes *text, const char *path) {
    TW_TRY(bytes_read(text, path));
    const uint8_t *zero = text->size ? memchr(text->at, 0, text->size) : NULL;
    if (zero != NULL)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: byte %td is 0, so this is no text; give a text, or a directory of "
                        "IDX or CIFAR-10 files",
                        path, zero - text->at);
    if (text->size > 0 && text->at[text->size - 1] != '\n')
        text->at[text->size++] = '\n';
    return TW_OK;
}

/* Two files. */
static int read_directory(bytes text[DATASET_SPLITS], const char *path) {
    char file[PATH_ROOM];
    const char *test_name = find(path, test_names);
    if (test_name == NULL)
        return tw__fail(TW_ERR_FILE,
                        "%s: has a training text but no test.txt or valid.txt; add one", path);
    data_path(file, path, find(path, train_names));
    TW_TRY(read_text(&text[DATASET_TRAIN], file));
    data_path(file, path, test_name);
    return read_text(&text[DATASET_TEST], file);
}

/* One file, cut in two. */
static int read_file(bytes text[DATASET_SPLITS], const char *path) {
    bytes *train = &text[DATASET_TRAIN];
    TW_TRY(read_text(train, path));
    const size_t least = train->size / 10 * 9;
    const uint8_t *line = memchr(train->at + least, '\n', train->size - least);
    const size_t cut = line ? (size_t)(line + 1 - train->at) : train->size;
    const size_t rest = train->size - cut;
    bytes *test = &text[DATASET_TEST];
    *test = (bytes){data_alloc(path, (int64_t)rest, 1), rest};
    if (test->at == NULL)
        return TW_ERR_MEMORY;
    memcpy(test->at, train->at + cut, rest);
    train->size = cut;
    return TW_OK;
}

enum { LEAST_SENTENCES = 3 }; /* two that make a pair, and one to replace the second */

/* Walks the stream; stores sentences unless NULL. Returns how many there are. */
static int64_t walk(const token_split *split, const bool *ends, sentence *sentences) {
    int64_t number = 0;
    int line_ends = 2; /* since the sentence before */
    for (int64_t i = 0; i < split->count;) {
        if (split->tokens[i] == TOKEN_EOS) {
            line_ends++;
            i++;
            continue;
        }
        const int64_t first = i;
        while (i < split->count && split->tokens[i] != TOKEN_EOS && i - first < INT32_MAX)
            if (ends[split->tokens[i++]])
                break;
        if (sentences != NULL) {
            sentences[number] = (sentence){.first = first, .words = (int32_t)(i - first)};
            if (number > 0)
                sentences[number - 1].followed = line_ends < 2;
        }
        number++;
        line_ends = 0;
    }
    return number;
}

static int list_sentences(token_split *split, const bool *ends, const char *name) {
    split->sentence_count = walk(split, ends, NULL);
    split->sentences = data_alloc(name, split->sentence_count, sizeof *split->sentences);
    split->pairs = data_alloc(name, split->sentence_count, sizeof *split->pairs);
    if (split->sentences == NULL || split->pairs == NULL)
        return TW_ERR_MEMORY;
    walk(split, ends, split->sentences);
    for (int64_t i = 0; i < split->sentence_count; i++)
        if (split->sentences[i].followed)
            split->pairs[split->pair_count++] = i;
    if (split->sentence_count < LEAST_SENTENCES || split->pair_count == 0)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: masked batches need texts of at least %d sentences, two of them in "
                        "a row; give longer ones",
                        name, LEAST_SENTENCES);
    return TW_OK;
}

/* The sentences and pairs of a split. */
static int find_sentences(token_split *split, const vocabulary *v, const char *name) {
    bool *ends = data_alloc(name, v->size, sizeof *ends); /* which words end a sentence */
    if (ends == NULL)
        return TW_ERR_MEMORY;
    for (int32_t id = v->first_word; id < v->size; id++) {
        const size_t length = strlen(v->names[id]);
        ends[id] = length > 0 && strchr(".!?", v->names[id][length - 1]) != NULL;
    }
    const int status = list_sentences(split, ends, name);
    free(ends);
    return status;
}

static int encode(dataset *set, dataset_split split, const char *path, const bytes *text,
                  int64_t limit) {
    const char *at = (const char *)text->at;
    const char *end = at + text->size;
    int64_t count = 0, length;
    while ((limit == 0 || count < limit) && text_next(&at, end, &length) != NULL)
        count++;
    if (count < 2) /* a word and one that follows */
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: the %s text has less than two words; give a longer one", path,
                        split == DATASET_TRAIN ? "training" : "test");
    token_split *stream = &set->text[split];
    stream->tokens = data_alloc(path, count, sizeof *stream->tokens);
    if (stream->tokens == NULL)
        return TW_ERR_MEMORY;
    at = (const char *)text->at;
    for (; stream->count < count; stream->count++) {
        const char *next = text_next(&at, end, &length);
        assert(next != NULL);
        stream->tokens[stream->count] =
            *next == '\n' ? TOKEN_EOS : vocabulary_id(&set->words, next, length);
    }
    set->info.count[split] = count;
    return set->info.masked ? find_sentences(stream, &set->words, path) : TW_OK;
}

/* The vocabulary of the training text, then the tokens of both texts. */
static int encode_both(dataset *set, const char *path, const bytes text[DATASET_SPLITS],
                       const dataset_options *options) {
    const bytes *train = &text[DATASET_TRAIN];
    vocabulary *words = &set->words;
    TW_TRY(vocabulary_count(words, path, (const char *)train->at, train->size));
    TW_TRY(vocabulary_close(words, path, options->vocabulary, options->masked));
    if (words->size == words->first_word)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: the training text has no words; give a text that has some", path);
    TW_TRY(encode(set, DATASET_TRAIN, path, train, options->train_limit));
    return encode(set, DATASET_TEST, path, &text[DATASET_TEST], options->test_limit);
}

int load_text(dataset *set, const char *path, const dataset_options *options) {
    set->info.kind = DATASET_TOKENS;
    set->info.masked = options->masked;
    set->info.classes = 0;
    bytes text[DATASET_SPLITS] = {0};
    int status = is_directory(path) ? read_directory(text, path) : read_file(text, path);
    if (status == TW_OK)
        status = encode_both(set, path, text, options);
    vocabulary_forget(&set->words);
    set->info.vocabulary = set->words.size;
    bytes_free(&text[DATASET_TRAIN]);
    bytes_free(&text[DATASET_TEST]);
    return status;
}
