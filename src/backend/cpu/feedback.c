/* feedback.c - error feedback and the pass that it needs anyway
 *
 * acc = g + e is computed in place of e, block by block, while candidates are collected and a log
 * is kept from which e can be restored bit for bit. The log is small because e == (e + g) - g holds
 * for most elements: between 65 and 95 % of them, the more the longer the residual has grown. A
 * second buffer instead of the log would cost 1.2x to 1.3x the time, checking the gradient
 * beforehand 1.5x: two cores are limited by what they read.
 *
 * The entries that were sent leave the residual in the next pass. If the vectors lie in memory, the
 * kernel puts 0 in place of them in its registers: a scatter of zeros costs half a pass at density
 * 0.01. If a cache holds the vectors, zeros are written to a chunk before it is folded: at density 0.01
 * the kernel's branches on what is kept would take longer, 161 us a pass instead of 112 for
 * n = 1,000,000.
 *
 * Clipping, momentum correction (Lin et al., Deep Gradient Compression, 2018) and AdamW happen in the
 * source of the pass: what is folded is the scaled gradient, its velocity, or its update. */
#include "base/pool.h"
#include "select/methods.h"
#include "backend/cpu/cpu_selector.h"

#include <assert.h>
#include <math.h>

static int64_t chunk_end(const tw__cpu_selector *s, int64_t chunk) {
    return tw__at_most((chunk + 1) * TW__CHUNK, s->n);
}

/* Elements of a gradient as floats, scaled: where they lie if possible, in scratch otherwise. */
static const void *scaled(const tw__cpu_selector *s, float *scratch, const void *grad,
                          int64_t len) {
    if (s->params->type == TW_F32 && s->scale == 1.0f)
        return grad;
    if (s->params->type == TW_F32) {
        s->kernels->scale(scratch, grad, s->scale, len);
        return scratch;
    }
    if (s->params->type == TW_F16)
        s->kernels->widen_f16(scratch, grad, len);
    else
        s->kernels->widen_bf16(scratch, grad, len);
    if (s->scale != 1.0f)
        s->kernels->scale(scratch, scratch, s->scale, len);
    return scratch;
}

/* The gradient's elements lo .. lo+len-1, likewise: in scratch where they lie in several pieces. */
static const void *scaled_gradient(const tw__cpu_selector *s, float *scratch, int64_t lo,
                                   int64_t len) {
    const int64_t *starts = s->pieces->starts, size = s->params->type == TW_F32 ? 4 : 2;
    int piece = tw__piece_of(s->pieces, lo);
    if (lo + len <= starts[piece + 1])
        return scaled(s, scratch, (const char *)s->grads[piece] + size * (lo - starts[piece]), len);
    for (int64_t done = 0; done < len; piece++) {
        int64_t at = lo + done - starts[piece];
        int64_t some = tw__at_most(len - done, starts[piece + 1] - starts[piece] - at);
        const void *from =
            scaled(s, scratch + done, (const char *)s->grads[piece] + size * at, some);
        if (from != scratch + done)
            memcpy(scratch + done, from, sizeof *scratch * (size_t)some);
        done += some;
    }
    return scratch;
}

static tw__moment moment_at(const tw__cpu_selector *s, int64_t lo) {
    return (tw__moment){s->first[0] + lo, s->second[0] + lo, s->first[1] + lo, s->second[1] + lo};
}

/* What this step adds to the residual. The next moments are computed into their own memory: doing so
 * twice does no harm. */
static const void *source(const tw__cpu_selector *s, float *scratch, int64_t lo, int64_t len) {
    const void *grad = scaled_gradient(s, scratch, lo, len);
    if (s->second[0] != NULL) {
        const tw__moment moment = moment_at(s, lo);
        s->kernels->adamw(scratch, &moment, grad, &s->now.adamw, len);
        return scratch;
    }
    if (s->first[0] == NULL)
        return grad;
    float *next = s->first[1] + lo;
    s->kernels->decay(next, s->first[0] + lo, grad, s->params->momentum, len);
    return next;
}

/* The entries that leave the velocity, from *leaving on and below `end`. AdamW's moments stay. */
static void clear_velocity(tw__cpu_selector *s, const int32_t *leaving, int64_t end) {
    for (; s->params->momentum != 0.0f && *leaving < end; leaving++)
        s->first[0][*leaving] = 0.0f;
}

static tw__undo undo_of_chunk(const tw__cpu_selector *s, int64_t chunk) {
    return (tw__undo){.lossy = s->lossy + chunk * (TW__CHUNK / 8),
                      .near = s->near + chunk * (TW__CHUNK + TW__LANES),
                      .far = s->far + chunk * (TW__CHUNK + TW__LANES)};
}

/* Clears the keep bits of the entries that leave the block lo .. end-1. Returns the first entry
 * behind it. */
static const int32_t *drop_leaving(tw__worker *w, const int32_t *leaving, int64_t lo, int64_t end) {
    for (; *leaving < end; leaving++) {
        int64_t i = *leaving - lo;
        assert(i >= 0 && leaving[0] < leaving[1]); /* ascending, up to the end mark */
        w->keep[i / 8] &= (uint8_t) ~(1u << (i % 8));
    }
    return leaving;
}

/* The collector is full: keep the best 2k+1. */
static void squeeze(tw__cpu_selector *s, tw__worker *worker) {
    tw__entries *found = &worker->collector.found;
    int64_t keep = tw__at_most(2 * s->now.k + 1, found->count);
    assert(keep > 0);
    tw__kth kth = tw__kth_of_values(s->kernels, found->val, found->count, keep);
    if (kth.bits >= TW__INFINITY_BITS) { /* the step will be refused: order no longer matters */
        found->count = 0;
        worker->collector.threshold = worker->dropped = TW__INFINITY_BITS;
        return;
    }
    tw__edge edge = {kth.bits, keep - kth.greater};
    int64_t kept = 0;
    for (int64_t i = 0; i < found->count; i++) {
        float val = found->val[i];
        found->idx[kept] = found->idx[i];
        found->val[kept] = val;
        kept += tw__edge_takes(&edge, val);
    }
    found->count = kept;
    worker->collector.threshold = kth.bits + 1;
    worker->dropped = kth.bits;
}

static void make_room(tw__cpu_selector *s, tw__worker *w, int64_t len) {
    assert(len <= TW__BLOCK);
    const tw__entries *found = &w->collector.found;
    if (found->cap - found->count < len)
        squeeze(s, w);
    assert(found->cap - found->count >= len);
}

/* A worker gets its chunks in ascending order: the first bad index it meets is its smallest. */
static void note_bad_number(tw__worker *w, const void *acc, int64_t lo, int64_t len) {
    for (int64_t i = 0; i < len && w->bad_index < 0; i++) {
        float x;
        memcpy(&x, (const char *)acc + 4 * i, sizeof x);
        if (tw__magnitude(x) >= TW__INFINITY_BITS)
            w->bad_index = lo + i;
    }
}

static double add_lanes(const double *lanes) {
    double sum = 0.0;
    for (int lane = 0; lane < TW__LANES; lane++)
        sum += lanes[lane];
    return sum;
}

static void add_block(const tw__cpu_selector *s, const void *src, int64_t len, tw__sums *sums) {
    tw__moments block = {0};
    s->kernels->moments(src, len, &block);
    sums->sum += add_lanes(block.sum);
    sums->square += add_lanes(block.square);
    sums->magnitude += add_lanes(block.magnitude);
}

/* What a pass leaves behind of a block of acc besides the candidates. */
static void inspect_block(tw__cpu_selector *s, tw__worker *w, const void *acc, int64_t lo,
                          int64_t len, tw__sums *sums) {
    if (w->collector.max_bits >= TW__INFINITY_BITS)
        note_bad_number(w, acc, lo, len);
    if (s->method->wants_sums)
        add_block(s, acc, len, sums);
}

static void end_chunk(tw__cpu_selector *s, int worker, int64_t chunk, const tw__sums *sums) {
    assert(worker < s->threads && chunk < s->chunks);
    s->work->owner[chunk] = (uint8_t)worker;
    s->work->end[chunk] = s->workers[worker].collector.found.count;
    s->work->sums[chunk] = *sums;
}

static void fold_block(tw__cpu_selector *s, tw__worker *w, int64_t lo, int64_t len,
                       tw__undo *undo) {
    float *acc = s->residual + lo;
    if (s->second[0] == NULL) {
        const void *src = source(s, w->scratch, lo, len);
        (s->uncached ? s->kernels->fold_uncached : s->kernels->fold)(src, acc, len, (int32_t)lo,
                                                                     w->keep, undo, &w->collector);
        return;
    }
    const tw__moment moment = moment_at(s, lo);
    s->kernels->fold_update(scaled_gradient(s, w->scratch, lo, len), &moment, &s->now.adamw, acc,
                            len, (int32_t)lo, w->keep, undo, &w->collector);
}

static void fold_chunk(void *context, int worker, int64_t chunk) {
    tw__cpu_selector *s = context;
    tw__worker *w = &s->workers[worker];
    int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk);
    const int32_t *leaving = s->chosen.idx + tw__lower_bound(s->chosen.idx, s->leaving, lo);
    tw__undo undo = undo_of_chunk(s, chunk);
    tw__sums sums = {0};
    assert(s->chosen.idx[s->leaving] == INT32_MAX);
    clear_velocity(s, leaving, end);
    for (; !s->uncached && *leaving < end; leaving++)
        s->residual[*leaving] = 0.0f;
    for (; lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        const int32_t *behind = drop_leaving(w, leaving, lo, lo + len);
        make_room(s, w, len);
        fold_block(s, w, lo, len, &undo);
        inspect_block(s, w, s->residual + lo, lo, len, &sums);
        undo.lossy += TW__BLOCK / 8;
        if (behind != leaving)
            memset(w->keep, 0xff, (size_t)TW__BLOCK / 8);
        leaving = behind;
    }
    assert(undo.far_count <= undo.near_count && undo.near_count <= TW__CHUNK);
    end_chunk(s, worker, chunk, &sums);
}

/* acc after the pass: it lies in the residual's place, or is the gradient itself. */
static const void *folded(const tw__cpu_selector *s, tw__worker *w, int64_t lo, int64_t len) {
    return s->residual != NULL ? s->residual + lo : source(s, w->scratch, lo, len);
}

/* The pass without feedback, and every further one. */
static void scan_chunk(void *context, int worker, int64_t chunk) {
    tw__cpu_selector *s = context;
    tw__worker *w = &s->workers[worker];
    tw__sums sums = {0};
    for (int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk); lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        const void *acc = folded(s, w, lo, len);
        make_room(s, w, len);
        s->kernels->scan(acc, len, (int32_t)lo, &w->collector);
        inspect_block(s, w, acc, lo, len, &sums);
    }
    end_chunk(s, worker, chunk, &sums);
}

/* What tw__feedback_count asks of each chunk. */
typedef struct counting {
    tw__cpu_selector *s;
    uint32_t threshold;
} counting;

static void count_chunk(void *context, int worker, int64_t chunk) {
    const counting *c = context;
    tw__cpu_selector *s = c->s;
    tw__worker *w = &s->workers[worker];
    for (int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk); lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        w->counted += s->kernels->count(folded(s, w, lo, len), len, c->threshold);
    }
}

static void unfold_chunk(void *context, int worker, int64_t chunk) {
    tw__cpu_selector *s = context;
    tw__undo undo = undo_of_chunk(s, chunk);
    for (int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk); lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        const void *src = source(s, s->workers[worker].scratch, lo, len);
        s->kernels->unfold(src, s->residual + lo, len, &undo);
        undo.lossy += TW__BLOCK / 8;
    }
}

static void square_chunk(void *context, int worker, int64_t chunk) {
    tw__cpu_selector *s = context;
    tw__sums sums = {0};
    for (int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk); lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        add_block(s, scaled_gradient(s, s->workers[worker].scratch, lo, len), len, &sums);
    }
    s->work->sums[chunk] = sums;
}

void tw__feedback_begin(tw__cpu_selector *s, uint32_t guess) {
    assert(guess > 0 && guess <= TW__INFINITY_BITS);
    s->guess = guess;
    for (int i = 0; i < s->threads; i++) {
        tw__worker *w = &s->workers[i];
        w->collector.found.count = 0;
        w->collector.threshold = guess;
        w->collector.max_bits = 0;
        w->dropped = 0;
        w->bad_index = -1;
    }
}

static int64_t first_bad_index(const tw__cpu_selector *s) {
    int64_t first = -1;
    for (int i = 0; i < s->threads; i++) {
        int64_t index = s->workers[i].bad_index;
        if (index >= 0 && (first < 0 || index < first))
            first = index;
    }
    return first;
}

typedef struct batch {
    const tw__select_task *tasks;
    int count;
} batch;

static tw__cpu_selector *selector_at(const batch *b, int task) {
    return b->tasks[task].state;
}

/* The last selector whose chunks begin at or before the item. */
static tw__cpu_selector *selector_of_item(const batch *b, int64_t item) {
    int low = 0, high = b->count;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (selector_at(b, middle)->work->first_item <= item)
            low = middle;
        else
            high = middle;
    }
    return selector_at(b, low);
}

/* The batch may have more threads than a selector of few chunks has workers: there each chunk has a
 * worker. */
static void fold_item(void *context, int worker, int64_t item) {
    tw__cpu_selector *s = selector_of_item(context, item);
    int64_t chunk = item - s->work->first_item;
    int own = s->chunks <= s->threads ? (int)chunk : worker;
    if (s->residual != NULL)
        fold_chunk(s, own, chunk);
    else
        scan_chunk(s, own, chunk);
}

void tw__feedback_fold(tw__select_task *tasks, int count, int threads) {
    batch all = {tasks, count};
    int64_t items = 0;
    for (int i = 0; i < count; i++) {
        tw__cpu_selector *s = selector_at(&all, i);
        s->work->first_item = items;
        items += s->chunks;
    }
    tw__pool_run(threads, items, fold_item, &all);
    for (int i = 0; i < count; i++) {
        tw__cpu_selector *s = selector_at(&all, i);
        tw__feedback_leave(s, 0);
        tasks[i].info->bad_index = first_bad_index(s);
        if (tasks[i].info->bad_index >= 0 && s->residual != NULL)
            tw__feedback_unfold(s);
    }
}

void tw__feedback_unfold(tw__cpu_selector *s) {
    tw__pool_run(s->threads, s->chunks, unfold_chunk, s);
}

void tw__feedback_rescan(tw__cpu_selector *s, uint32_t guess) {
    assert(s->leaving == 0);
    tw__feedback_begin(s, guess);
    tw__pool_run(s->threads, s->chunks, scan_chunk, s);
    s->rescans++;
}

int64_t tw__feedback_count(tw__cpu_selector *s, uint32_t threshold) {
    counting c = {s, threshold};
    int64_t total = 0;
    for (int i = 0; i < s->threads; i++)
        s->workers[i].counted = 0;
    tw__pool_run(s->threads, s->chunks, count_chunk, &c);
    for (int i = 0; i < s->threads; i++)
        total += s->workers[i].counted;
    s->rescans++;
    return total;
}

void tw__feedback_gather(tw__cpu_selector *s, tw__entries *entries) {
    for (int64_t i = 0; i < entries->count; i++) {
        int64_t at = entries->idx[i];
        if (s->residual != NULL)
            entries->val[i] = s->residual[at];
        else
            tw__feedback_peek(s, at, 1, 1, &entries->val[i]);
    }
}

void tw__feedback_settle(tw__cpu_selector *s) {
    for (int64_t i = 0; i < s->leaving; i++)
        s->residual[s->chosen.idx[i]] = 0.0f;
    clear_velocity(s, s->chosen.idx, s->n);
    tw__feedback_leave(s, 0);
}

static void decay_chunk(void *context, int worker, int64_t chunk) {
    tw__cpu_selector *s = context;
    tw__sums before = {0}, after = {0};
    (void)worker;
    for (int64_t lo = chunk * TW__CHUNK, end = chunk_end(s, chunk); lo < end; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, end - lo);
        float *e = s->residual + lo;
        add_block(s, e, len, &before);
        s->kernels->scale(e, e, s->params->decay, len);
        add_block(s, e, len, &after);
    }
    s->work->sums[chunk] = (tw__sums){.sum = before.sum, .decayed = after.sum};
}

double tw__feedback_decay(tw__cpu_selector *s) {
    double before = 0.0, after = 0.0;
    tw__feedback_settle(s);
    tw__pool_run(s->threads, s->chunks, decay_chunk, s);
    for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
        before += s->work->sums[chunk].sum;
        after += s->work->sums[chunk].decayed;
    }
    return before - after;
}

void tw__feedback_leave(tw__cpu_selector *s, int64_t count) {
    assert(count >= 0 && count <= s->chosen.cap);
    s->leaving = (int32_t)count;
    s->chosen.idx[count] = INT32_MAX; /* the end mark: no index is that large */
}

void tw__feedback_peek(tw__cpu_selector *s, int64_t lo, int64_t len, int after, float *out) {
    assert(lo >= 0 && len <= TW__BLOCK && lo + len <= s->n);
    assert(after || s->leaving == 0); /* or the residual is not settled */
    if (after && s->residual != NULL) {
        memcpy(out, s->residual + lo, sizeof *out * (size_t)len);
        return;
    }
    memcpy(out, source(s, s->workers[0].scratch, lo, len), sizeof *out * (size_t)len);
    if (s->residual != NULL)
        s->kernels->add(out, s->residual + lo, len);
}

tw__sums tw__feedback_sums(const tw__cpu_selector *s) {
    assert(s->method->wants_sums || s->params->clip_norm != 0.0f);
    tw__sums total = {0};
    for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
        total.sum += s->work->sums[chunk].sum;
        total.square += s->work->sums[chunk].square;
        total.magnitude += s->work->sums[chunk].magnitude;
    }
    return total;
}

void tw__feedback_clip(tw__cpu_selector *s) {
    s->scale = 1.0f;
    if (s->params->clip_norm == 0.0f)
        return;
    tw__pool_run(s->threads, s->chunks, square_chunk, s);
    double norm = sqrt(tw__feedback_sums(s).square);
    /* A norm that is not finite leaves the scale alone: the pass will find and name the element. */
    if (isfinite(norm) && norm > s->params->clip_norm)
        s->scale = (float)(s->params->clip_norm / norm);
}

/* ---- the bare pass sum += add, the floor of every selection: the same kernels, chunks and threads */

typedef struct pass {
    const tw__kernels *kernels;
    float *sums[3]; /* NULL behind the last one */
    const float *add;
    int64_t n;
} pass;

static void add_chunk(void *context, int worker, int64_t chunk) {
    const pass *p = context;
    (void)worker;
    int64_t end = tw__at_most((chunk + 1) * TW__CHUNK, p->n);
    for (int64_t lo = chunk * TW__CHUNK; lo < end; lo += TW__BLOCK)
        for (int i = 0; i < 3 && p->sums[i] != NULL; i++)
            p->kernels->add((char *)p->sums[i] + 4 * lo, (const char *)p->add + 4 * lo,
                            tw__at_most(TW__BLOCK, end - lo));
}

static int run_pass(pass *p, int threads) {
    if (p->n < 1 || p->n > INT32_MAX)
        return tw__fail(TW_ERR_SIZE, "n: %lld; accepted is 1 .. %d", (long long)p->n, INT32_MAX);
    TW_TRY(tw__threads(threads, &threads));
    TW_TRY(tw__kernels_choose(&p->kernels));
    tw__pool_retain(threads);
    tw__pool_run(threads, tw__chunks(p->n), add_chunk, p);
    tw__pool_release();
    return TW_OK;
}

int tw_accumulate(float *sum, const float *add, int64_t n, int threads) {
    TW_REQUIRE(sum, "sum");
    TW_REQUIRE(add, "add");
    pass p = {.sums = {sum}, .add = add, .n = n};
    return run_pass(&p, threads);
}

int tw_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n, int threads) {
    TW_REQUIRE(e, "e");
    TW_REQUIRE(m, "m");
    TW_REQUIRE(v, "v");
    TW_REQUIRE(g, "g");
    pass p = {.sums = {e, m, v}, .add = g, .n = n};
    return run_pass(&p, threads);
}
