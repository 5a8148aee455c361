/* fuzz_state.c - bytes become the files that a group loads
 *
 * The first bytes give the group and the number of files. The files follow, each with its length.
 * Their lengths and checksums are made right, unless the input says not to: so mutations reach what
 * a checksum would hide. With several files each gets a rank of its own if the input says so.
 *
 * A load must be refused and change nothing, or leave finite numbers. What is then saved must load
 * again, and a step can follow.
 */
#include <math.h>

#include "fuzz.h"
#include "oracle.h"
#include "saved.h"

enum { MOST_FILES = 3, MOST_TENSORS = 2, MOST_N = 40 };

typedef struct setup {
    tw_group_params params;
    int ntensors, nfiles;
    int as_is, renumber; /* the files */
    int64_t n[MOST_TENSORS];
} setup;

static void read_setup(setup *s, input *in) {
    static const char *const schemes[] = {"topka", "oktopk", "dense", "dgc"};
    tw_select_params *select = &s->params.select;
    const uint32_t kind = take(in, 1), files = take(in, 1);
    s->params.scheme = schemes[kind % 4];
    select->k = 4;
    select->threads = 1;
    select->momentum = kind / 4 % 4 == 1 ? 0.5f : 0.0f;
    if (kind % 4 != 2)
        select->before = kind / 4 % 4 == 2 ? TW_BEFORE_ADAMW : 0;
    select->feedback = kind / 4 % 4 == 3 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
    s->ntensors = 1 + (int)(kind / 16 % 2);
    for (int i = 0; i < s->ntensors; i++)
        s->n[i] = 4 + take(in, 1) % (MOST_N - 3);
    s->nfiles = 1 + (int)(files % 64 % MOST_FILES);
    s->renumber = files & 64 ? 1 : 0;
    s->as_is = files & 128 ? 1 : 0;
}

static void create(const setup *s, tw_transport **transport, tw_group **group) {
    REQUIRE(tw_transport_self(transport) == TW_OK);
    REQUIRE(tw_group_create(group, *transport, &s->params) == TW_OK);
    for (int i = 0; i < s->ntensors; i++)
        REQUIRE(tw_group_add(*group, s->n[i], NULL, NULL) == TW_OK);
    REQUIRE(tw_group_open(*group) == TW_OK);
}

static void step(const setup *s, tw_group *group, uint64_t seed) {
    float grad[MOST_N], out[MOST_N];
    for (int i = 0; i < s->ntensors; i++) {
        oracle_fill(grad, s->n[i], DATA_GAUSS, seed + (uint64_t)i);
        const int status = tw_allreduce(group, i, grad, out);
        REQUIRE(status == TW_OK || status == TW_ERR_NUMBER); /* the sum may overflow */
        for (int64_t j = 0; j < s->n[i] && status == TW_OK; j++)
            REQUIRE(isfinite(out[j]));
    }
}

static void get_residuals(const setup *s, tw_group *group, float residuals[][MOST_N]) {
    for (int i = 0; i < s->ntensors; i++) {
        REQUIRE(tw_group_get_residual(group, i, residuals[i]) == TW_OK);
        for (int64_t j = 0; j < s->n[i]; j++)
            REQUIRE(isfinite(residuals[i][j]));
    }
}

static const char *read_file(const setup *s, input *in, int number) {
    static uint8_t bytes[FUZZ_ROOM];
    const input part = take_part(in);
    size_t size = part.left;
    memcpy(bytes, part.data, size);
    if (s->renumber)
        saved_set_rank(bytes, size, number, s->nfiles);
    if (!s->as_is)
        size = saved_mend(bytes, size);
    return fuzz_file(number, bytes, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    setup s = {.params = TW_GROUP_PARAMS_INIT};
    tw_transport *transport;
    tw_group *group;
    char path[FUZZ_PATH];
    const char *paths[MOST_FILES], *again = fuzz_path(path, "state");
    float before[MOST_TENSORS][MOST_N] = {{0}}, after[MOST_TENSORS][MOST_N] = {{0}};
    const int64_t room = (int64_t)MOST_TENSORS * MOST_N;
    read_setup(&s, &in);
    for (int i = 0; i < s.nfiles; i++)
        paths[i] = read_file(&s, &in, i);
    create(&s, &transport, &group);
    step(&s, group, 1);
    get_residuals(&s, group, before);
    const int status = tw_group_load(group, paths, s.nfiles);
    get_residuals(&s, group, after);
    REQUIRE(status == TW_OK || status == TW_ERR_DAMAGED || status == TW_ERR_MISMATCH ||
            status == TW_ERR_NUMBER);
    if (status != TW_OK)
        REQUIRE(oracle_difference(before[0], after[0], room) < 0);
    if (status == TW_OK) {
        REQUIRE(tw_group_save(group, again) == TW_OK);
        REQUIRE(tw_group_load(group, &again, 1) == TW_OK);
    }
    step(&s, group, 2);
    tw_group_free(group);
    tw_transport_free(transport);
    return 0;
}

/* Every kind of group, with one, two and three files of its own, saved after some steps. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    static uint8_t bytes[FUZZ_ROOM];
    output out = {data, 0, room};
    const uint32_t kind = (uint32_t)number % 32, files = (uint32_t)number / 32;
    setup s = {.params = TW_GROUP_PARAMS_INIT};
    tw_transport *transport;
    tw_group *group;
    char path[FUZZ_PATH];
    if (files >= MOST_FILES)
        return 0;
    put(&out, kind, 1);
    put(&out, files + 64, 1);
    put(&out, kind % 16, 1);
    if (kind >= 16)
        put(&out, kind + 3, 1);
    input in = {data, out.size};
    read_setup(&s, &in);
    create(&s, &transport, &group);
    for (uint32_t i = 0; i <= files; i++)
        step(&s, group, i);
    REQUIRE(tw_group_save(group, fuzz_path(path, "state")) == TW_OK);
    const size_t size = fuzz_read(path, bytes, sizeof bytes);
    for (uint32_t i = 0; i <= files; i++)
        put_part(&out, bytes, size);
    tw_group_free(group);
    tw_transport_free(transport);
    return out.size;
}
