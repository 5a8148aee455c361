/* fuzz_checkpoint.c - bytes become the files of a checkpoint that a run resumes from
 *
 * The first byte says how many ranks saved, and what is made right: checksums of states, digests of
 * files in the manifest, the manifest's own. Then come the manifest, model.bin, and of each rank its
 * .bin and .state, each with its length.
 *
 * A checkpoint must be refused and change nothing, or leave finite numbers and counters that a run
 * can have.
 */
#include <math.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "oracle.h"
#include "saved.h"
#include "worker.h"

enum { MOST_RANKS = 3, FILES = 2 + 2 * MOST_RANKS, STEP = 40, PATH = FUZZ_PATH + 64 };
enum { MANIFEST, MODEL, RANK_BIN, RANK_STATE };

static char directory[FUZZ_PATH];

/* ---- a worker */

typedef struct job {
    trainer_spec spec;
    trainer_watch watch;
    trainer_error error;
    tw_transport *transport, *metrics;
    worker worker;
} job;

static const dataset *text(void) {
    static dataset *data;
    static const char words[] = "a b c a\nb a c\nc a b\na b b\na b c\nc b a\n";
    char path[FUZZ_PATH];
    if (data == NULL) {
        fuzz_write(fuzz_path(path, "text"), words, sizeof words - 1);
        REQUIRE(dataset_open(&data, path, NULL) == TW_OK);
    }
    return data;
}

static void job_open(job *j) {
    const dataset *data = text();
    *j = (job){.spec = {.model = {.name = "lstm",
                                  .max_batch = 1,
                                  .seed = 1,
                                  .vocabulary = dataset_get_info(data)->vocabulary,
                                  .length = 2,
                                  .width = 1,
                                  .layers = 1},
                        .optimizer = {.name = "adamw", .beta1 = 0.9, .beta2 = 0.999},
                        .group = TW_GROUP_PARAMS_INIT,
                        .form = BATCH_WORDS,
                        .batch = 1,
                        .length = 2,
                        .seed = 1,
                        .checkpoints = directory,
                        .resume = true}};
    j->spec.group.scheme = "topka";
    j->spec.group.select.density = 0.1;
    j->spec.group.select.threads = 1;
    j->worker = (worker){.spec = &j->spec, .data = data, .error = &j->error, .watch = &j->watch};
    REQUIRE(tw_transport_self(&j->transport) == TW_OK);
    REQUIRE(tw_transport_self(&j->metrics) == TW_OK);
    REQUIRE(worker_create(&j->worker, j->transport, j->metrics) == TW_OK);
}

static void job_close(job *j) {
    worker_free(&j->worker);
    tw_transport_free(j->transport);
    tw_transport_free(j->metrics);
}

static uint64_t hash_floats(uint64_t hash, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(x[i]));
    return oracle_hash(hash, x, n * (int64_t)sizeof *x);
}

/* Of all that a checkpoint restores. */
static uint64_t hash_worker(worker *w) {
    const int64_t counters[] = {w->step, w->optimizer.steps, w->skipped, w->skipped_in_row,
                                w->carries};
    uint64_t hash = oracle_hash(0, counters, sizeof counters);
    hash = hash_floats(hash, w->model->values, w->model->n);
    for (int i = 0; i < w->optimizer.nslots; i++)
        hash = hash_floats(hash, w->optimizer.slots[i], w->model->n);
    hash = hash_floats(hash, w->model->state, w->model->nstate);
    hash = hash_floats(hash, w->carry, w->model->n);
    for (int i = 0; i < w->model->ntensors; i++) {
        float residual[256];
        const int64_t n = w->model->tensors[w->model->ntensors - 1 - i].n;
        REQUIRE(n <= 256 && tw_group_get_residual(w->group, i, residual) == TW_OK);
        hash = hash_floats(hash, residual, n);
    }
    return hash;
}

/* ---- files */

static const char *file_path(char *path, int file) {
    char name[32];
    const int rank = (file - RANK_BIN) / 2;
    if (file == MANIFEST || file == MODEL)
        snprintf(name, sizeof name, "%s", file == MANIFEST ? "manifest" : "model.bin");
    else
        snprintf(name, sizeof name, "rank-%d.%s", rank, file % 2 == 0 ? "bin" : "state");
    snprintf(path, PATH, "%s/step-%09d/%s", directory, STEP, name);
    return path;
}

static void make_directories(void) {
    char path[PATH];
    if (directory[0] != '\0')
        return;
    fuzz_path(directory, "saved");
    REQUIRE(mkdir(directory, 0777) == 0);
    snprintf(path, sizeof path, "%s/step-%09d", directory, STEP);
    REQUIRE(mkdir(path, 0777) == 0);
}

static uint64_t digest_of(const uint8_t *data, size_t size) {
    uint8_t padded[FUZZ_ROOM] = {0};
    memcpy(padded, data, size);
    return hash_words(size, padded, (size + 3) / 4 * 4);
}

/* Writes the digests of the other files, then its own, into a manifest. Returns its size. */
static size_t mend_manifest(uint8_t *data, size_t size, int nranks, const uint64_t *digests) {
    const size_t fixed = sizeof(manifest), whole = fixed + 16 * (size_t)nranks + 8;
    const int64_t ranks = nranks;
    if (size < fixed)
        return size;
    memcpy(data + offsetof(manifest, model), &digests[MODEL], 8);
    memcpy(data + offsetof(manifest, nranks), &ranks, 8);
    memcpy(data + fixed, &digests[RANK_BIN], 16 * (size_t)nranks);
    const uint64_t digest = hash_words(0, data, whole - 8);
    memcpy(data + whole - 8, &digest, 8);
    return whole;
}

static void write_files(input *in) {
    static uint8_t bytes[FILES][FUZZ_ROOM];
    const uint32_t how = take(in, 1);
    const int nranks = 1 + (int)(how % 32 % MOST_RANKS);
    uint64_t digests[FILES] = {0};
    char path[PATH];
    size_t sizes[FILES] = {0};
    for (int i = 0; i < RANK_BIN + 2 * nranks; i++) {
        const input part = take_part(in);
        sizes[i] = part.left;
        memset(bytes[i], 0, part.left + 256);
        memcpy(bytes[i], part.data, part.left);
        if (i > MODEL && i % 2 == 1 && how & 32)
            saved_set_rank(bytes[i], sizes[i], (i - RANK_BIN) / 2, nranks);
        if (i > MODEL && i % 2 == 1 && how & 64)
            sizes[i] = saved_mend(bytes[i], sizes[i]);
        digests[i] = digest_of(bytes[i], sizes[i]);
    }
    if (how & 128)
        sizes[MANIFEST] = mend_manifest(bytes[MANIFEST], sizes[MANIFEST], nranks, digests);
    for (int i = 0; i < FILES; i++)
        fuzz_write(file_path(path, i), i < RANK_BIN + 2 * nranks ? bytes[i] : NULL, sizes[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    job j;
    make_directories();
    write_files(&in);
    job_open(&j);
    const uint64_t before = hash_worker(&j.worker);
    const int status = checkpoint_begin(&j.worker);
    const uint64_t after = hash_worker(&j.worker);
    REQUIRE(status == TW_OK || status == TW_ERR_DAMAGED);
    if (status == TW_OK)
        REQUIRE(j.worker.step == STEP && j.worker.optimizer.steps <= STEP &&
                j.worker.skipped_in_row <= j.worker.skipped && j.worker.skipped <= STEP &&
                j.worker.elapsed >= 0.0);
    else
        REQUIRE(before == after && j.error.text[0] != '\0');
    job_close(&j);
    return 0;
}

/* ---- seeds */

static void fill(worker *w, int number) {
    const int64_t n = w->model->n;
    oracle_fill(w->model->values, n, DATA_GAUSS, (uint64_t)number);
    oracle_fill(w->optimizer.slots[0], n, DATA_GAUSS, (uint64_t)number + 1);
    oracle_fill(w->optimizer.slots[1], n, DATA_CONSTANT, (uint64_t)number + 2);
    for (int64_t i = 0; i < n; i++)
        w->optimizer.slots[1][i] = fabsf(w->optimizer.slots[1][i]);
    w->step = STEP;
    w->optimizer.steps = STEP - number;
    w->skipped = number;
    w->carries = number % 2;
}

/* A saved checkpoint, of one rank, or made one of several by taking its files more than once. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    static uint8_t bytes[FUZZ_ROOM];
    output out = {data, 0, room};
    char path[PATH];
    job j;
    if (number >= 2 * MOST_RANKS)
        return 0;
    make_directories();
    job_open(&j);
    fill(&j.worker, number / MOST_RANKS);
    REQUIRE(checkpoint_save(&j.worker) == TW_OK);
    job_close(&j);
    const int nranks = 1 + number % MOST_RANKS;
    put(&out, (uint32_t)(128 + 64 + 32 + number % MOST_RANKS), 1);
    for (int i = 0; i < RANK_BIN + 2 * nranks; i++) {
        const int from = i < RANK_BIN ? i : RANK_BIN + i % 2;
        put_part(&out, bytes, fuzz_read(file_path(path, from), bytes, sizeof bytes));
    }
    return out.size;
}
