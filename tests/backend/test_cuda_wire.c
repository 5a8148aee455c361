/* test_cuda_wire.c - messages that a GPU writes and reads are the CPU's, byte for byte
 *
 * Every format, on lists of all lengths and densities, at any address: the same bytes, the same
 * rounded values, the same entries back. Cut and altered messages get the status that they get on
 * the CPU. Bytes around what may be written must stay as they were.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/lists.h"
#include "backend/cuda/backend_cuda.h"
#include "wire_lists.h"

enum { RANK = 3, MARGIN = 64, MARK = 0xee };

static int quick; /* for tools that are many times slower */
static tw__stream *stream;
static void *lists; /* the context of the calls */

static void gpu_ok(cudaError_t error) {
    if (error != cudaSuccess)
        check_fail("CUDA: %s", cudaGetErrorString(error));
}

/* ---- memory of the GPU, with a margin on both sides */

typedef struct piece {
    size_t bytes;
    char *memory; /* [MARGIN + bytes + MARGIN] */
    char *at;
} piece;

/* `shift` bytes beside what is aligned. cudaMemset returns before it is done, as does a copy from
 * memory that is not pinned, and the stream that is tried waits for neither. */
static piece piece_open(size_t bytes, size_t shift) {
    piece p = {.bytes = bytes};
    gpu_ok(cudaMalloc((void **)&p.memory, bytes + 2 * MARGIN));
    gpu_ok(cudaMemset(p.memory, MARK, bytes + 2 * MARGIN));
    gpu_ok(cudaDeviceSynchronize());
    p.at = p.memory + MARGIN + shift;
    return p;
}

static piece piece_of(const void *from, size_t bytes, size_t shift) {
    piece p = piece_open(bytes, shift);
    gpu_ok(cudaMemcpy(p.at, from, bytes, cudaMemcpyHostToDevice));
    gpu_ok(cudaDeviceSynchronize());
    return p;
}

/* Takes what it holds, to[bytes], and sees that nothing beside it was touched. */
static void piece_close(piece *p, void *to) {
    size_t all = p->bytes + 2 * MARGIN, first = (size_t)(p->at - p->memory);
    unsigned char *copy = check_alloc((int64_t)all, 1);
    gpu_ok(cudaMemcpy(copy, p->memory, all, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all; i++) {
        if ((i < first || i >= first + p->bytes) && copy[i] != MARK) {
            check_fail("byte %lld beside a piece of %zu was written",
                       (long long)i - (long long)first, p->bytes);
        }
    }
    if (to != NULL)
        memcpy(to, copy + first, p->bytes);
    free(copy);
    gpu_ok(cudaFree(p->memory));
}

static void check_bytes(const char *what, const void *got, const void *want, size_t bytes) {
    const unsigned char *a = got, *b = want;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            check_fail("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, a[i], b[i]);
}

/* ---- there and back */

/* As an exchange sends it, or without a word before the header. */
static tw__wire_message plan(int format, const tw__list *list, int64_t lo, int64_t hi, int worded) {
    tw__wire_message m = tw__wire_plan(tw__wire_at(format), list->count, lo, hi);
    if (worded) {
        m.head[1] = m.head[0];
        m.head[0] = 0x0123456789abcdef;
        m.head_bytes = 16;
    }
    return m;
}

static size_t bytes_of(const tw__wire_message *m) {
    return m->bytes - TW__WIRE_HEADER + m->head_bytes;
}

/* To message[bytes_of(m)]; afterwards these are the bytes written. */
static void check_encode(tw__wire_message *m, const tw__list *list, size_t shift,
                         uint8_t *message) {
    const size_t bytes = bytes_of(m), values = sizeof(float) * (size_t)list->count;
    tw__wire_message m_there = *m;
    float *rounded = check_alloc(list->count + 1, 4), *theirs = check_alloc(list->count + 1, 4);
    uint8_t *copy = check_alloc((int64_t)bytes, 1);
    int huge = -1, huge_there = -1;
    tw__cpu_lists *cpu = tw__cpu_lists_create(wire_kernels(), 1);
    check_ok(tw__wire_cpu.encode(cpu, m, list, message, rounded, &huge));
    free(cpu);
    piece entries = piece_of(list->at, sizeof *list->at * (size_t)list->count, 0);
    piece out = piece_open(bytes, shift), rounds = piece_open(values, 0);
    tw__list there = {(tw__entry *)(void *)entries.at, list->count};
    check_ok(tw__wire_cuda.encode(lists, &m_there, &there, out.at, (float *)(void *)rounds.at,
                                  &huge_there));
    piece_close(&entries, NULL);
    piece_close(&out, copy);
    piece_close(&rounds, theirs);
    check_int("huge", huge_there, huge);
    if (!huge) {
        check_int("bytes", (int64_t)m_there.bytes, (int64_t)m->bytes);
        check_bytes("message", copy, message, bytes_of(m));
        check_bytes("rounded", theirs, rounded, values);
    }
    free(rounded);
    free(theirs);
    free(copy);
}

/* What both make of a message with 8 bytes of header: the same status, and the same entries. */
static int check_decode(const uint8_t *message, size_t size, int64_t lo, int64_t hi, int64_t most,
                        size_t shift) {
    tw__entry *entries = check_alloc(most + 1, sizeof *entries);
    tw__entry *theirs = check_alloc(most + 1, sizeof *theirs);
    int64_t count = 0;
    tw__wire_message m;
    int status =
        tw__wire_decode(wire_kernels(), message, size, lo, hi, most, entries, &count, RANK);
    int there = tw__wire_open(message, size, lo, hi, most, RANK, &m);
    if (there == TW_OK) {
        piece in = piece_of(message, size, shift);
        piece out = piece_open(sizeof *entries * (size_t)m.count, 0);
        there = tw__wire_cuda.decode(lists, &m, in.at + m.head_bytes, (tw__entry *)(void *)out.at,
                                     RANK);
        piece_close(&in, NULL);
        piece_close(&out, theirs);
        if (there != TW_OK)
            check_contains(tw_last_error(), "rank 3: sent");
    }
    check_int("status", there, status);
    if (status == TW_OK)
        check_bytes("entries", theirs, entries, sizeof *entries * (size_t)count);
    free(entries);
    free(theirs);
    return status;
}

static void check_list(const tw__list *list, int64_t lo, int64_t hi, int format, size_t shift) {
    tw__wire_message m = plan(format, list, lo, hi, shift % 2 == 0);
    uint8_t *message = check_alloc((int64_t)bytes_of(&m), 1);
    check_encode(&m, list, shift, message);
    check_ok(check_decode(message + m.head_bytes - TW__WIRE_HEADER, m.bytes, lo, hi, list->count,
                          shift));
    free(message);
}

static void check_formats(const tw__list *list, int64_t lo, int64_t hi, const char *what) {
    for (int format = 0; tw__wire_at(format) != NULL; format++) {
        check_scene("%s, %s count=%lld lo=%lld hi=%lld", what, tw__wire_at(format)->name,
                    (long long)list->count, (long long)lo, (long long)hi);
        check_list(list, lo, hi, format, (size_t)(list->count + format) % 8);
    }
}

/* ---- lists of all kinds */

static void check_random(int64_t count, double density, oracle_data kind, uint64_t seed) {
    int64_t span = (int64_t)((double)count / density), lo = (int64_t)(seed % 3) * 1001;
    span = span < count ? count : span > INT32_MAX - lo ? INT32_MAX - lo : span;
    span = span > 0 ? span : 1;
    tw__list list = wire_list(count, lo, lo + span, 0, kind, seed);
    check_formats(&list, lo, lo + span, oracle_data_name(kind));
    wire_list_free(&list);
}

static void test_lists(void **state) {
    (void)state;
    static const int64_t counts[] = {0,   1,   2,   31,  32,  33,   63,   64,   65,   127,
                                     128, 129, 255, 256, 257, 1000, 4095, 4096, 4097, 100003};
    static const double densities[] = {1e-4, 9e-4, 1e-2, 0.1, 0.24, 0.26, 0.5, 0.9, 1.0};
    uint64_t seed = 1;
    for (int c = 0; c < 20; c++) {
        for (int d = 0; d < 9; d++, seed++)
            if (!quick || (c % 4 == 1 && c < 17 && d % 4 == 0))
                check_random(counts[c], densities[d], (oracle_data)(seed % DATA_KINDS), seed);
    }
}

/* Every width, with a block and a bit. */
static void test_widths(void **state) {
    (void)state;
    for (int width = 0; width <= 24; width += quick ? 5 : 1) {
        int64_t span = ((int64_t)3 << width) / 2 * 129 + 129;
        span = span > INT32_MAX ? INT32_MAX : span;
        tw__list list = wire_list(129, 0, span, 0, DATA_LAPLACE, (uint64_t)width);
        check_formats(&list, 0, span, "widths");
        wire_list_free(&list);
    }
    tw__list dense = wire_list(300, 7, 100000, 1, DATA_GAUSS, 5); /* neighbours */
    check_formats(&dense, 7, 100000, "clustered");
    wire_list_free(&dense);
}

static float any_bits(oracle_rng *rng, int least, int most) {
    uint32_t exponent = (uint32_t)(least + oracle_below(rng, most - least + 1));
    uint32_t bits = (uint32_t)oracle_next(rng) & 0x807fffffu;
    return tw__from_bits(bits | exponent << 23);
}

/* Values of any size: subnormal, alike, beyond f16; and huge ones, which are not written. */
static void test_values(void **state) {
    (void)state;
    oracle_rng rng = {.key = 77};
    for (int trial = 0; trial < (quick ? 6 : 60); trial++) {
        const int64_t count = 1 + oracle_below(&rng, 400);
        const int least = (int)oracle_below(&rng, 200), most = least + (int)oracle_below(&rng, 27);
        tw__list list = wire_list(count, 0, 9000, 0, DATA_GAUSS, (uint64_t)trial);
        for (int64_t i = 0; i < count; i++)
            list.at[i].val = any_bits(&rng, least, most);
        check_formats(&list, 0, 9000, "bits");
        for (int64_t i = 0; i < count; i++)
            list.at[i].val = trial % 2 ? 0.3f : i % 3 ? 0.0f : 0x1p-130f;
        check_formats(&list, 0, 9000, "alike");
        wire_list_free(&list);
    }
}

static void test_huge(void **state) {
    (void)state;
    static const float huge[] = {0x1p100f, -0x1p101f, 3e38f, INFINITY, NAN};
    tw__list list = wire_list(300, 0, 9000, 0, DATA_GAUSS, 3);
    for (int h = 0; h < 5; h++) {
        for (int format = 0; tw__wire_at(format) != NULL; format++) {
            tw__wire_message m = plan(format, &list, 0, 9000, 1);
            uint8_t *message = check_alloc((int64_t)bytes_of(&m), 1);
            check_scene("huge %g, %s", (double)huge[h], tw__wire_at(format)->name);
            list.at[299 * (h % 2)].val = huge[h];
            check_encode(&m, &list, 0, message);
            list.at[299 * (h % 2)].val = 1.0f;
            free(message);
        }
    }
    wire_list_free(&list);
}

/* ---- hostile messages */

typedef struct message {
    uint8_t *bytes; /* [size] and 9 more */
    size_t size;
    int64_t lo, hi, count;
} message;

static const struct shape {
    int64_t count, lo, hi;
} shapes[] = {{150, 50, 20000}, {150, 0, 400}, {2, 0, 2000000000}, {1, 7, 8}, {257, 3, 3000}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static message write_message(int format, const struct shape *s) {
    tw__list list = wire_list(s->count, s->lo, s->hi, 0, DATA_LAPLACE, (uint64_t)s->count);
    float *rounded = check_alloc(s->count, sizeof *rounded);
    message l = {.lo = s->lo, .hi = s->hi, .count = s->count};
    const size_t bound = tw__wire_bound(tw__wire_at(format), s->count, s->lo, s->hi);
    l.bytes = check_alloc((int64_t)bound + 9, 1);
    l.size =
        tw__wire_encode(wire_kernels(), tw__wire_at(format), &list, s->lo, s->hi, l.bytes, rounded);
    memset(l.bytes + l.size, 0, bound + 9 - l.size);
    free(rounded);
    wire_list_free(&list);
    return l;
}

static void cut_and_lengthen(const message *l) {
    for (size_t size = 0; size < l->size + 9; size++)
        if (size != l->size)
            check_error(check_decode(l->bytes, size, l->lo, l->hi, l->count, 0), TW_ERR_PROTOCOL);
}

/* Returns how many were refused. */
static int alter(message *l, size_t step) {
    int refused = 0;
    for (size_t bit = 0; bit < 8 * l->size; bit += step) {
        l->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        refused += check_decode(l->bytes, l->size, l->lo, l->hi, l->count, bit % 5) != TW_OK;
        l->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    return refused;
}

static int alter_at_random(const message *l, int trials) {
    oracle_rng rng = {.key = l->size};
    uint8_t *bytes = check_alloc((int64_t)l->size, 1);
    int refused = 0;
    for (int trial = 0; trial < trials; trial++) {
        memcpy(bytes, l->bytes, l->size);
        size_t from = trial % 2 ? 0 : 8; /* with the header, or what is behind it */
        for (int64_t changes = 1 + oracle_below(&rng, 6); changes > 0; changes--) {
            bytes[from + (size_t)oracle_below(&rng, (int64_t)(l->size - from))] =
                (uint8_t)oracle_next(&rng);
        }
        refused += check_decode(bytes, l->size, l->lo, l->hi, l->count, 0) != TW_OK;
    }
    free(bytes);
    return refused;
}

static void test_hostile(void **state) {
    (void)state;
    for (int format = 0; tw__wire_at(format) != NULL; format++) {
        for (int s = quick ? format % SHAPES : 0; s < SHAPES; s += quick ? SHAPES : 1) {
            message l = write_message(format, &shapes[s]);
            check_scene("hostile %s, shape %d", tw__wire_at(format)->name, s);
            cut_and_lengthen(&l);
            check_true(alter(&l, quick ? 97 : 3) > 0);
            check_true(alter_at_random(&l, quick ? 20 : 300) > 0);
            free(l.bytes);
        }
    }
}

/* A bitmap of nothing, or of more than there is; indices beyond the span. */
static void test_bitmaps(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES; s++) {
        message l = write_message(TW__WIRE_F32, &shapes[s]);
        check_scene("bitmaps, shape %d", s);
        for (int fill = 0; fill < 256; fill += 255) {
            tw__wire_message m;
            check_ok(tw__wire_open(l.bytes, l.size, l.lo, l.hi, l.count, RANK, &m));
            memset(l.bytes + 8, fill, m.indices.low_bytes);
            memset(l.bytes + l.size - m.indices.bit_bytes, fill, m.indices.bit_bytes);
            (void)check_decode(l.bytes, l.size, l.lo, l.hi, l.count, 1);
        }
        free(l.bytes);
    }
}

/* ---- the work on lists that messages need */

static void test_list_calls(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 255, 256, 257, 5000};
    const tw__list_calls *calls = &tw__lists_cuda;
    for (int c = 0; c < 6; c++) {
        const int64_t n = counts[c];
        const size_t bytes = 8 * (size_t)n;
        tw__list list = wire_list(n, 0, 60000, 0, DATA_GAUSS, 9), want = {NULL, 0};
        float *val = check_alloc(n + 1, 4), *back = check_alloc(n + 1, 4);
        tw__entry *got = check_alloc(n + 1, 8);
        want.at = check_alloc(n + 2, 8);
        check_scene("list calls, count=%lld", (long long)n);
        for (int64_t i = 0; i < n; i++)
            val[i] = i % 3 ? list.at[i].val / 2 : list.at[i].val;
        piece entries = piece_of(list.at, bytes, 0), values = piece_of(val, bytes / 2, 0);
        piece rests = piece_open(bytes + 8, 0), copied = piece_open(bytes / 2, 0);
        tw__list there = {(tw__entry *)(void *)entries.at, n};
        tw__list out = {(tw__entry *)(void *)rests.at, 1}; /* behind one */
        check_ok(calls->subtract(lists, &there, (float *)(void *)values.at, &out));
        check_ok(calls->get_values(lists, &there, (float *)(void *)copied.at));
        check_ok(calls->set_values(lists, &there, (float *)(void *)values.at));
        check_ok(tw__lists_cpu.subtract(NULL, &list, val, &want));
        check_int("rests", out.count - 1, want.count);
        char *rest = check_alloc((int64_t)bytes + 8, 1);
        piece_close(&rests, rest);
        check_bytes("rests", rest + 8, want.at, 8 * (size_t)want.count);
        piece_close(&copied, back);
        for (int64_t i = 0; i < n; i++)
            check_float("got", back[i], list.at[i].val);
        piece_close(&values, NULL);
        piece_close(&entries, got);
        for (int64_t i = 0; i < n; i++) {
            check_int("index", got[i].idx, list.at[i].idx);
            check_float("set", got[i].val, val[i]);
        }
        free(rest);
        free(want.at);
        free(val);
        free(back);
        free(got);
        wire_list_free(&list);
    }
}

static void test_peek_and_poke(void **state) {
    (void)state;
    char text[16] = "0123456789abcde", copy[16] = "";
    piece p = piece_open(16, 3);
    check_ok(tw__lists_cuda.poke(lists, p.at, text, 16));
    check_ok(tw__lists_cuda.peek(lists, p.at, 9, copy));
    check_bytes("peek", copy, "012345678\0\0\0\0\0\0", 16);
    piece_close(&p, copy);
    check_bytes("poke", copy, text, 16);
}

int main(int argc, char **argv) {
    if (tw_cuda_device(0, NULL) != TW_OK) {
        printf("SKIP: %s\n", tw_last_error());
        return 0;
    }
    quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    if (tw__cuda_stream_create(&stream, 0, NULL, NULL) != TW_OK ||
        tw__cuda_lists_create(&lists, stream, 1 << 20, 8) != TW_OK) {
        printf("no workspace: %s\n", tw_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),      cmocka_unit_test(test_widths),
        cmocka_unit_test(test_values),     cmocka_unit_test(test_huge),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_bitmaps),
        cmocka_unit_test(test_list_calls), cmocka_unit_test(test_peek_and_poke),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tw__cuda_lists_free(lists);
    tw__cuda_stream_free(stream);
    return failed;
}
