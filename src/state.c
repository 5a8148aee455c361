/* state.c - save and load what a group would lose: residuals, velocities, thresholds, counters
 *
 * A file holds one rank's state, in the byte order of the machine:
 *
 *     header | tensor 0: head, residual[n], velocity[n] | tensor 1 ... | checksum of all before
 *
 * A file is read and checked as a whole before anything is changed, and all ranks hear of an error
 * of any. Residuals may be loaded by another number of ranks than saved them: what counts is their
 * sum, so a rank that takes several files adds them up, and one that takes none starts from zero.
 * Steps and the global threshold are everyone's; the rest of what a selector learned goes on only
 * where a rank takes exactly its one file, and is learned anew elsewhere. */
#include "group.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "thinwire"
#define VERSION 1
#define BYTE_ORDER_MARK 0x01020304u

typedef struct header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint32_t rank;
    uint32_t nranks;
    uint32_t ntensors;
    uint32_t zero;
    uint64_t bytes; /* of the file */
} header;

typedef struct tensor_head {
    int64_t n;
    int64_t steps;
    uint32_t has_residual;
    uint32_t has_velocity;
    uint32_t global_threshold;
    uint32_t guess;
    double rank;
    double growth;
    double margin;
    float threshold;
    uint32_t zero;
    int64_t age;
} tensor_head;

/* ---- checksum: 64 bits over words of 8 bytes, of which everything in the file is made */

static uint64_t checksum(uint64_t hash, const void *data, size_t bytes) {
    const char *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- save */

typedef struct writer {
    FILE *file;
    uint64_t hash;
    int failed;
} writer;

static void put(writer *w, const void *data, size_t bytes) {
    w->hash = checksum(w->hash, data, bytes);
    w->failed |= fwrite(data, 1, bytes, w->file) != bytes;
}

static tensor_head head_of(const tw__tensor *t) {
    tensor_head head = {.n = t->n, .steps = t->steps, .global_threshold = t->threshold};
    const tw_selector *s = t->selector;
    if (s == NULL)
        return head;
    head.has_residual = s->params.feedback == TW_FEEDBACK_ON;
    head.has_velocity = s->params.momentum != 0.0f;
    head.guess = s->learned.guess;
    head.rank = s->learned.rank;
    head.growth = s->learned.growth;
    head.margin = s->learned.margin;
    head.threshold = s->learned.threshold;
    head.age = s->learned.age;
    return head;
}

/* A vector of odd length is followed by a zero, to fill the word. */
static size_t vector_bytes(int64_t n) {
    return sizeof(float) * (size_t)(n + n % 2);
}

static size_t tensor_bytes(const tensor_head *head) {
    size_t vectors = (size_t)(head->has_residual != 0) + (size_t)(head->has_velocity != 0);
    return sizeof *head + vector_bytes(head->n) * vectors;
}

static void put_vector(writer *w, const float *vector, int64_t n) {
    put(w, vector, sizeof *vector * (size_t)(n - n % 2));
    if (n % 2 != 0) {
        const float last[2] = {vector[n - 1], 0.0f};
        put(w, last, sizeof last);
    }
}

/* A vector that lies on a GPU, by way of the host. */
static void put_vector_from(writer *w, tw__tensor *t, tw__device_vector which) {
    float *copy = malloc(sizeof *copy * (size_t)t->n);
    if (copy != NULL && tw__device_get(t->selector->device, which, copy) == TW_OK)
        put_vector(w, copy, t->n);
    else
        w->failed = 1;
    free(copy);
}

/* What a GPU has learned lies there too. */
static void put_tensor_there(writer *w, tw__tensor *t) {
    tensor_head head = head_of(t);
    w->failed |= tw__device_learned(t->selector->device, &head.threshold, &head.age) != TW_OK;
    put(w, &head, sizeof head);
    if (head.has_residual)
        put_vector_from(w, t, TW__RESIDUAL);
    if (head.has_velocity)
        put_vector_from(w, t, TW__VELOCITY);
}

static void put_tensor(writer *w, tw__tensor *t) {
    if (t->selector != NULL && t->selector->device != NULL) {
        put_tensor_there(w, t);
        return;
    }
    tensor_head head = head_of(t);
    put(w, &head, sizeof head);
    if (head.has_residual) {
        tw__feedback_settle(t->selector);
        put_vector(w, t->selector->residual, t->n);
    }
    if (head.has_velocity)
        put_vector(w, t->selector->velocity[0], t->n);
}

static header header_of(const tw_group *g) {
    header h = {.magic = MAGIC,
                .version = VERSION,
                .byte_order = BYTE_ORDER_MARK,
                .rank = (uint32_t)g->rank,
                .nranks = (uint32_t)g->nranks,
                .ntensors = (uint32_t)g->ntensors};
    h.bytes = sizeof h + sizeof(uint64_t);
    for (int t = 0; t < g->ntensors; t++) {
        tensor_head head = head_of(&g->tensors[t]);
        h.bytes += tensor_bytes(&head);
    }
    return h;
}

/* Returns 0, or what went wrong as errno. */
static int write_file(tw_group *g, const char *path) {
    writer w = {.file = fopen(path, "wb")};
    if (w.file == NULL)
        return errno;
    header h = header_of(g);
    put(&w, &h, sizeof h);
    for (int t = 0; t < g->ntensors; t++)
        put_tensor(&w, &g->tensors[t]);
    uint64_t sum = w.hash;
    put(&w, &sum, sizeof sum);
    int failed = w.failed || fflush(w.file) != 0 || fsync(fileno(w.file)) != 0 ? errno : 0;
    if (w.failed && failed == 0)
        failed = EIO;
    return fclose(w.file) != 0 && failed == 0 ? errno : failed;
}

static int check_quiet(tw_group *g) {
    if (!g->opened || g->scratch == NULL)
        return tw__fail(TW_ERR_STATE, "the group is not open; call tw_group_open first");
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    return TW_OK;
}

int tw_group_save(tw_group *g, const char *path) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(path, "path");
    TW_TRY(check_quiet(g));
    size_t length = strlen(path) + sizeof ".part";
    char *part = malloc(length);
    if (part == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the name of a file");
    snprintf(part, length, "%s.part", path);
    int failed = write_file(g, part);
    if (failed == 0 && rename(part, path) != 0)
        failed = errno;
    if (failed != 0)
        (void)unlink(part);
    free(part);
    if (failed != 0)
        return tw__fail(TW_ERR_FILE, "path: '%.200s' cannot be written: %s", path,
                        strerror(failed));
    return TW_OK;
}

/* ---- load: read and check */

/* A file in memory. */
typedef struct image {
    const char *path;
    char *bytes;
    size_t size;
    header header;
} image;

static int cannot_read(const char *path) {
    return tw__fail(TW_ERR_FILE, "path: '%.200s' cannot be read: %s", path, strerror(errno));
}

static int read_file(const char *path, image *im) {
    struct stat status;
    im->path = path;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return cannot_read(path);
    if (fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) {
        fclose(file);
        return tw__fail(TW_ERR_FILE, "path: '%.200s' is not a file", path);
    }
    im->size = (size_t)status.st_size;
    im->bytes = malloc(im->size + 1);
    size_t got = im->bytes == NULL ? 0 : fread(im->bytes, 1, im->size, file);
    int error = im->bytes == NULL ? tw__fail(TW_ERR_MEMORY, "no memory to read '%.200s'", path)
                : got < im->size  ? cannot_read(path)
                                  : TW_OK;
    fclose(file);
    return error;
}

static int damaged(const image *im, const char *what) {
    return tw__fail(TW_ERR_DAMAGED, "path: '%.200s' %s; use an earlier state", im->path, what);
}

static int check_image(image *im) {
    header *h = &im->header;
    uint64_t sum;
    if (im->size < sizeof *h + sizeof sum)
        return damaged(im, "is too short to be a state");
    memcpy(h, im->bytes, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return damaged(im, "is not a saved state");
    if (h->byte_order != BYTE_ORDER_MARK || h->version != VERSION)
        return damaged(im, "is of another version or byte order");
    if (h->bytes != im->size || im->size % 8 != 0)
        return damaged(im, "is truncated, or has something appended");
    memcpy(&sum, im->bytes + im->size - sizeof sum, sizeof sum);
    if (sum != checksum(0, im->bytes, im->size - sizeof sum))
        return damaged(im, "does not match its checksum");
    if (h->nranks < 1 || h->nranks > TW__MAX_RANKS || h->rank >= h->nranks)
        return damaged(im, "names a rank that cannot be");
    return TW_OK;
}

static int other(const image *im, int tensor, const char *field, int64_t saved, int64_t ours) {
    return tw__fail(TW_ERR_MISMATCH, "tensor %d, %s: the state '%.160s' has %lld, the group %lld",
                    tensor, field, im->path, (long long)saved, (long long)ours);
}

/* Goes over the tensors of a state whose checksum is right; visits each with its head and data. */
typedef void visit_tensor(tw__tensor *t, const tensor_head *head, const char *data, void *context);

static int each_tensor(tw_group *g, const image *im, visit_tensor *visit, void *context) {
    size_t at = sizeof(header), end = im->size - sizeof(uint64_t);
    if (im->header.ntensors != (uint32_t)g->ntensors)
        return tw__fail(TW_ERR_MISMATCH, "tensors: the state '%.160s' has %u, the group %d",
                        im->path, im->header.ntensors, g->ntensors);
    for (int t = 0; t < g->ntensors; t++) {
        tensor_head head, ours = head_of(&g->tensors[t]);
        if (end - at < sizeof head)
            return damaged(im, "ends within a tensor");
        memcpy(&head, im->bytes + at, sizeof head);
        if (head.n != ours.n)
            return other(im, t, "n", head.n, ours.n);
        if (head.has_residual != ours.has_residual)
            return other(im, t, "feedback", head.has_residual, ours.has_residual);
        if (head.has_velocity != ours.has_velocity)
            return other(im, t, "momentum", head.has_velocity, ours.has_velocity);
        if (end - at < tensor_bytes(&head))
            return damaged(im, "ends within a tensor");
        if (visit != NULL)
            visit(&g->tensors[t], &head, im->bytes + at + sizeof head, context);
        at += tensor_bytes(&head);
    }
    return at == end ? TW_OK : damaged(im, "has more than its tensors");
}

static int read_images(tw_group *g, const char *const *paths, int npaths, image *images) {
    for (int i = 0; i < npaths; i++) {
        if (paths[i] == NULL)
            return tw__fail(TW_ERR_NULL, "paths[%d]: is NULL", i);
        TW_TRY(read_file(paths[i], &images[i]));
        TW_TRY(check_image(&images[i]));
        TW_TRY(each_tensor(g, &images[i], NULL, NULL));
        if (images[i].header.nranks != images[0].header.nranks)
            return other(&images[i], 0, "nranks", images[i].header.nranks, images[0].header.nranks);
    }
    return TW_OK;
}

/* ---- load: who takes what, and what is common */

/* What every rank tells of its files: how many ranks saved, and per tensor what all share. */
typedef struct common {
    int64_t saved;   /* nranks of the job that saved; 0: takes none */
    int64_t pairs[]; /* [2 * ntensors]: steps and global threshold of each tensor */
} common;

static size_t common_bytes(const tw_group *g) {
    return sizeof(common) + 2 * sizeof(int64_t) * (size_t)g->ntensors;
}

static common *common_at(const tw_group *g, void *all, int rank) {
    return (common *)((char *)all + common_bytes(g) * (size_t)rank);
}

static void note_common(tw__tensor *t, const tensor_head *head, const char *data, void *context) {
    int64_t **next = context;
    (void)t, (void)data;
    *(*next)++ = head->steps;
    *(*next)++ = head->global_threshold;
}

static int other_job(int rank) {
    return tw__fail(TW_ERR_MISMATCH,
                    "rank %d: its states are of another job or another step than those before them",
                    rank);
}

/* What this rank's files have in common. */
static int fill_common(tw_group *g, const image *images, int nimages, common *mine,
                       common *another) {
    for (int i = 0; i < nimages; i++) {
        common *to = i == 0 ? mine : another;
        int64_t *next = to->pairs;
        to->saved = images[i].header.nranks;
        TW_TRY(each_tensor(g, &images[i], note_common, &next));
        if (memcmp(to, mine, common_bytes(g)) != 0)
            return other_job(g->rank);
    }
    return TW_OK;
}

/* Two states of a group: what is where in one is there in the other. */
typedef struct addition {
    const tw__kernels *kernels;
    const image *to, *from;
    int64_t infinite; /* sums */
} addition;

static void add_tensor(tw__tensor *t, const tensor_head *head, const char *data, void *context) {
    addition *a = context;
    void *sum = a->to->bytes + (data - a->from->bytes);
    int64_t many = (int64_t)((tensor_bytes(head) - sizeof *head) / sizeof(float));
    (void)t;
    a->kernels->add(sum, data, many);
    a->infinite += a->kernels->count(sum, many, TW__INFINITY_BITS);
}

/* What this rank takes over, into the first of its images. */
static int add_up(tw_group *g, const image *images, int nimages) {
    addition a = {.kernels = g->kernels, .to = images};
    for (int i = 1; i < nimages; i++) {
        a.from = &images[i];
        TW_TRY(each_tensor(g, &images[i], add_tensor, &a));
    }
    if (a.infinite > 0)
        return tw__fail(TW_ERR_NUMBER, "paths: sums of these states overflow; let other ranks take "
                                       "some of them");
    return TW_OK;
}

/* All ranks that bring files must bring files of the same job at the same step. */
static int compare_common(const tw_group *g, void *all, const common **chosen) {
    *chosen = NULL;
    for (int r = 0; r < g->nranks; r++) {
        const common *c = common_at(g, all, r);
        if (c->saved == 0)
            continue;
        if (*chosen == NULL)
            *chosen = c;
        if (memcmp(c, *chosen, common_bytes(g)) != 0)
            return other_job(r);
    }
    return TW_OK;
}

/* Each of the saved ranks must be taken once. */
static int check_cover(tw_group *g, const image *images, int nimages, int64_t saved) {
    uint32_t *taken = calloc((size_t)saved, sizeof *taken);
    void *scratch = tw__alloc(tw__sum_memory(g->nranks, saved));
    int error = TW_ERR_MEMORY;
    if (taken == NULL || scratch == NULL)
        tw__fail(error, "no memory to compare states");
    else {
        for (int i = 0; i < nimages; i++)
            if (images[i].header.rank < saved)
                taken[images[i].header.rank]++;
        error = tw__sum(g->transport, taken, saved, scratch);
    }
    for (int64_t r = 0; r < saved && error == TW_OK; r++)
        if (taken[r] != 1)
            error = tw__fail(TW_ERR_MISMATCH,
                             "paths: the state of saved rank %lld is taken by %u ranks; each must "
                             "be taken by exactly one",
                             (long long)r, taken[r]);
    free(taken);
    free(scratch);
    return error;
}

/* ---- load: apply */

static void reset_tensor(tw__tensor *t, int64_t steps, uint32_t threshold) {
    tw_selector *s = t->selector;
    t->steps = steps;
    t->threshold = threshold;
    t->has_result = 0;
    t->plan.count = 0; /* auto plans anew */
    t->info = (tw_step_info){.step = steps};
    if (s == NULL)
        return;
    size_t bytes = sizeof(float) * (size_t)t->n;
    s->step = steps;
    s->open = 0;
    if (s->device != NULL) {
        tw__device_reset(s->device);
        return;
    }
    s->learned = (tw__learned){0};
    tw__feedback_leave(s, 0);
    if (s->residual != NULL)
        memset(s->residual, 0, bytes);
    if (s->velocity[0] != NULL)
        memset(s->velocity[0], 0, bytes);
}

/* How a state comes in. */
typedef struct arrival {
    int alone; /* it is this rank's own, and the only one */
    int error; /* of the GPU */
} arrival;

static int set_tensor_there(const tw_selector *s, const tensor_head *head, const char *data,
                            const arrival *a) {
    const void *residual = data, *velocity = data + vector_bytes(s->n);
    if (head->has_residual)
        TW_TRY(tw__device_set(s->device, TW__RESIDUAL, residual));
    if (head->has_velocity)
        TW_TRY(tw__device_set(s->device, TW__VELOCITY, velocity));
    return a->alone ? tw__device_learn(s->device, head->threshold, head->age) : TW_OK;
}

static void set_tensor(tw__tensor *t, const tensor_head *head, const char *data, void *context) {
    arrival *a = context;
    size_t bytes = sizeof(float) * (size_t)t->n;
    tw_selector *s = t->selector;
    if (s == NULL || a->error != TW_OK)
        return;
    if (s->device != NULL) {
        a->error = set_tensor_there(s, head, data, a);
        return;
    }
    if (head->has_residual)
        memcpy(s->residual, data, bytes);
    if (head->has_velocity)
        memcpy(s->velocity[0], data + vector_bytes(t->n), bytes);
    if (a->alone)
        s->learned = (tw__learned){.guess = head->guess,
                                   .rank = head->rank,
                                   .growth = head->growth,
                                   .margin = head->margin,
                                   .threshold = head->threshold,
                                   .age = head->age};
}

/* The first image is the sum of all. Fails only with a GPU, which leaves a group that cannot go on. */
static int apply(tw_group *g, const image *images, int nimages, const common *chosen) {
    int alone = nimages == 1 && chosen->saved == g->nranks;
    for (int t = 0; t < g->ntensors; t++)
        reset_tensor(&g->tensors[t], chosen->pairs[2 * t], (uint32_t)chosen->pairs[2 * t + 1]);
    arrival a = {.alone = alone};
    if (nimages > 0)
        (void)each_tensor(g, &images[0], set_tensor, &a);
    if (a.error != TW_OK)
        tw__group_break(g, a.error);
    return a.error;
}

/* What loading takes beside the files. */
typedef struct desk {
    image *images; /* [npaths] */
    void *all;     /* a `common` of each rank, and one more */
    void *scratch;
} desk;

static int set_up(const tw_group *g, int npaths, desk *d) {
    d->images = calloc(npaths > 0 ? (size_t)npaths : 1, sizeof *d->images);
    d->all = calloc((size_t)g->nranks + 1, common_bytes(g));
    d->scratch = malloc(tw__share_memory(g->nranks));
    if (d->images == NULL || d->all == NULL || d->scratch == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to load a state");
    return TW_OK;
}

static void clear_away(desk *d, int npaths) {
    for (int i = 0; i < npaths && d->images != NULL; i++)
        free(d->images[i].bytes);
    free(d->images);
    free(d->all);
    free(d->scratch);
}

/* All that this rank can do alone. */
static int prepare(tw_group *g, const char *const *paths, int npaths, desk *d) {
    if (npaths < 0)
        return tw__fail(TW_ERR_PARAM, "npaths: %d; accepted is 0 or more", npaths);
    if (npaths > 0)
        TW_REQUIRE(paths, "paths");
    TW_TRY(set_up(g, npaths, d));
    TW_TRY(read_images(g, paths, npaths, d->images));
    TW_TRY(fill_common(g, d->images, npaths, common_at(g, d->all, g->rank),
                       common_at(g, d->all, g->nranks)));
    return add_up(g, d->images, npaths);
}

/* All checks that need the other ranks, then the change. */
static int settle(tw_group *g, int npaths, desk *d) {
    const common *chosen = NULL;
    TW_TRY(tw__share(g->transport, d->all, common_bytes(g), d->scratch));
    TW_TRY(compare_common(g, d->all, &chosen));
    if (chosen == NULL)
        return tw__fail(TW_ERR_MISMATCH, "npaths: no rank names a state");
    if (chosen->saved < 0 || chosen->saved > TW__MAX_RANKS)
        return tw__fail(TW_ERR_PROTOCOL, "a rank says that %lld ranks saved",
                        (long long)chosen->saved);
    TW_TRY(check_cover(g, d->images, npaths, chosen->saved));
    return apply(g, d->images, npaths, chosen);
}

int tw_group_load(tw_group *g, const char *const *paths, int npaths) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, 0));
    TW_TRY(check_quiet(g));
    desk d = {0};
    int error = tw__agree_error(g, prepare(g, paths, npaths, &d));
    if (error == TW_OK)
        error = settle(g, npaths, &d);
    clear_away(&d, npaths);
    return error;
}
