/* sentences.c - where sentences lie in a stream of tokens, and which follow one another
 *
 * A sentence ends with a word whose last character is . ! or ?, or with its line. The next one
 * follows it unless an empty line stands between: so titles, and the sections of WikiText, are kept
 * apart, while paragraphs of one section go on.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { LEAST_SENTENCES = 3 }; /* two that make a pair, and one to put in the place of the second */

static int find_ends(bool **out, const vocabulary *v, const char *name, dataset_error *error) {
    void *room;
    const int status = data_alloc(&room, name, v->size, sizeof(bool), error);
    if (status != TW_OK)
        return status;
    bool *ends = *out = room;
    for (int32_t id = v->first_word; id < v->size; id++) {
        const size_t length = strlen(v->names[id]);
        ends[id] = length > 0 && strchr(".!?", v->names[id][length - 1]) != NULL;
    }
    return TW_OK;
}

/* Walk the stream; store sentences unless there is no place for them. Returns how many there are. */
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

static int list_pairs(token_split *split, const char *name, dataset_error *error) {
    void *room;
    const int status = data_alloc(&room, name, split->sentence_count, sizeof(int64_t), error);
    if (status != TW_OK)
        return status;
    split->pairs = room;
    for (int64_t i = 0; i < split->sentence_count; i++)
        if (split->sentences[i].followed)
            split->pairs[split->pair_count++] = i;
    return TW_OK;
}

static int list_sentences(token_split *split, const bool *ends, const char *name,
                          dataset_error *error) {
    split->sentence_count = walk(split, ends, NULL);
    void *room;
    int status = data_alloc(&room, name, split->sentence_count, sizeof(sentence), error);
    if (status != TW_OK)
        return status;
    split->sentences = room;
    walk(split, ends, split->sentences);
    status = list_pairs(split, name, error);
    if (status == TW_OK && (split->sentence_count < LEAST_SENTENCES || split->pair_count == 0))
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: masked batches need texts of at least %d sentences, two of them in "
                         "a row; give longer ones",
                         name, LEAST_SENTENCES);
    return status;
}

int sentences_find(token_split *split, const vocabulary *v, const char *name,
                   dataset_error *error) {
    bool *ends;
    int status = find_ends(&ends, v, name, error);
    if (status != TW_OK)
        return status;
    status = list_sentences(split, ends, name, error);
    free(ends);
    return status;
}
