/* dense_gpu.c - the dense exchange of vectors that lie on a GPU
 *
 * As exchange_dense.c, but whole: a GPU has room for all values of a rank and for all that it gets,
 * and what moves them cuts long messages itself. */
#include "backend/cuda/device.h"
#include "exchange/exchange.h"

typedef struct space {
    tw__buffer *out; /* [nranks] */
    tw__buffer *in;  /* [nranks] */
    void *rotation;
    float *flat;     /* [span]: all segments, later the sums; on the GPU */
    float *received; /* [nranks][range]: of the own range; on the GPU */
} space;

static int64_t longest_range(const tw__shape *s) {
    return tw__longest_part(s->span, s->nranks);
}

static space layout(tw__arenas *room, const tw__shape *s) {
    return (space){
        .out = tw__arena_take(&room->host, s->nranks, sizeof(tw__buffer)),
        .in = tw__arena_take(&room->host, s->nranks, sizeof(tw__buffer)),
        .rotation = tw__arena_take(&room->host, 1, tw__alltoall_memory(s->nranks)),
        .flat = tw__arena_take(&room->lists, s->span, sizeof(float)),
        .received = tw__arena_take(&room->lists, s->nranks * longest_range(s), sizeof(float)),
    };
}

void tw__dense_gpu_memory(const tw__shape *shape, tw__arenas *room) {
    layout(room, shape);
}

/* The values of range r, among those of all. */
static tw__buffer range_of(const tw__job *job, const space *w, int r) {
    int64_t from = tw__part_start(job->shape.span, r, job->shape.nranks);
    int64_t to = tw__part_start(job->shape.span, r + 1, job->shape.nranks);
    size_t bytes = sizeof(float) * (size_t)(to - from);
    return (tw__buffer){w->flat + from, bytes, bytes};
}

static int exchange(tw__job *job, space *w) {
    TW_TRY(tw__alltoall_run(job->transport, job->cargo, w->out, w->in, w->rotation));
    for (int r = 0; r < job->shape.nranks; r++)
        if (r != job->rank && w->in[r].bytes != w->in[r].capacity)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes where %zu were expected", r,
                            w->in[r].bytes, w->in[r].capacity);
    return TW_OK;
}

/* Every rank's values of the own range arrive, and are summed. */
static int reduce_scatter(tw__job *job, space *w, tw__buffer own) {
    int64_t range = longest_range(&job->shape);
    for (int r = 0; r < job->shape.nranks; r++) {
        w->out[r] = range_of(job, w, r);
        w->in[r] = (tw__buffer){.data = w->received + r * range, .capacity = own.bytes};
    }
    TW_TRY(exchange(job, w));
    return tw__device_sum(job->lists.context, own.data, w->received, range, job->rank,
                          job->shape.nranks, (int64_t)(own.bytes / sizeof(float)), job->divisor);
}

static int allgather(tw__job *job, space *w, tw__buffer own) {
    for (int r = 0; r < job->shape.nranks; r++) {
        w->out[r] = own;
        w->in[r] = range_of(job, w, r);
    }
    return exchange(job, w);
}

int tw__dense_gpu_run(tw__job *job) {
    space w = layout(&job->room, &job->shape);
    tw__buffer own = range_of(job, &w, job->rank);
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        TW_TRY(tw__device_widen(job->lists.context, w.flat + s->base, s->grad, s->type, s->n));
    }
    TW_TRY(reduce_scatter(job, &w, own));
    TW_TRY(allgather(job, &w, own));
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        TW_TRY(tw__device_widen(job->lists.context, s->out, w.flat + s->base, TW_F32, s->n));
    }
    return TW_OK;
}
