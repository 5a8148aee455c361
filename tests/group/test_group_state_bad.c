/* test_group_state_bad.c - saved files that are damaged, of another group, or not readable or
 * writable
 *
 * A file that is cut or altered anywhere, belongs to another group, or is loaded twice, is refused
 * on all ranks and nothing changes. A save that fails leaves the old file.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "group_state.h"

/* ---- Damage ---------------------------------------------------------------------------------- */

/* Two ranks with saved files "good", and a twin that never loads: both must stay the same. */
typedef struct damage {
    ranks r, twin;
    char *good; /* rank 0's file */
    int64_t size;
} damage;

static void damage_open(damage *v) {
    tw_group_params params = state_params("oktopk");
    params.select.momentum = 0.5f;
    ranks_open(&v->r, 2, &params, state_sizes, STATE_TENSORS);
    ranks_open(&v->twin, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&v->r, 0, 3);
    state_save_all(&v->r, "good");
    v->good = state_read(state_path("good", 0), &v->size);
    state_steps(&v->r, 3, 5); /* a load that is not refused would show */
    state_steps(&v->twin, 0, 5);
}

static void damage_close(damage *v) {
    state_same_residuals(&v->r, &v->twin);
    state_same_steps(&v->r, &v->twin, 5, 7);
    state_load_all(&v->r, "good"); /* the good file loads */
    ranks_ok(&v->r);
    ranks_close(&v->r);
    ranks_close(&v->twin);
    free(v->good);
}

/* These bytes as rank 0's file, the good one as rank 1's: both ranks refuse with one status. */
static void refuse_bytes(damage *v, const char *bytes, int64_t size) {
    state_files c = {.paths = {{state_path("bad", 0)}, {state_path("good", 1)}}, .count = {1, 1}};
    state_write(c.paths[0][0], bytes, size);
    ranks_run(&v->r, state_load, &c);
    if (v->r.status[0] != TW_ERR_DAMAGED && v->r.status[0] != TW_ERR_MISMATCH)
        check_fail("rank 0 gave %d (%s)", v->r.status[0], v->r.text[0]);
    ranks_error(&v->r, v->r.status[0]);
}

static void test_truncated(void **state) {
    (void)state;
    damage v;
    damage_open(&v);
    for (int64_t size = 0; size < v.size; size += size < 700 || size > v.size - 20 ? 1 : 97) {
        check_scene("%lld of %lld bytes", (long long)size, (long long)v.size);
        refuse_bytes(&v, v.good, size);
    }
    damage_close(&v);
}

static void test_longer(void **state) {
    (void)state;
    damage v;
    damage_open(&v);
    char *bytes = check_alloc(v.size + 9, 1);
    memcpy(bytes, v.good, (size_t)v.size);
    for (int more = 1; more <= 9; more += 4) {
        check_scene("%d bytes more", more);
        refuse_bytes(&v, bytes, v.size + more);
    }
    free(bytes);
    damage_close(&v);
}

static void test_altered(void **state) {
    (void)state;
    damage v;
    damage_open(&v);
    char *bytes = check_alloc(v.size, 1);
    memcpy(bytes, v.good, (size_t)v.size);
    for (int64_t at = 0; at < v.size; at += at < 2000 || at > v.size - 64 ? 1 : 13) {
        const char flips[] = {1, (char)0x80, (char)0xff};
        const char flip = flips[at % 3];
        check_scene("byte %lld of %lld altered", (long long)at, (long long)v.size);
        bytes[at] = (char)(bytes[at] ^ flip);
        refuse_bytes(&v, bytes, v.size);
        bytes[at] = (char)(bytes[at] ^ flip);
    }
    free(bytes);
    damage_close(&v);
}

/* Random bytes, with and without the right beginning. */
static void test_nonsense(void **state) {
    (void)state;
    damage v;
    damage_open(&v);
    oracle_rng rng = {.key = 4};
    char *bytes = check_alloc(v.size, 1);
    for (int round = 0; round < 20; round++) {
        check_scene("nonsense %d", round);
        for (int64_t i = round < 10 ? 0 : 16; i < v.size; i++)
            bytes[i] = (char)oracle_next(&rng);
        if (round >= 10)
            memcpy(bytes, v.good, 16);
        refuse_bytes(&v, bytes, round % 2 ? v.size : oracle_below(&rng, v.size));
    }
    free(bytes);
    damage_close(&v);
}

/* ---- Forged files: impossible numbers under a valid checksum --------------------------------- */

static void forge(char *bytes, int64_t size) {
    uint64_t hash = 0, word;
    for (int64_t at = 0; at + 8 < size; at += 8) {
        memcpy(&word, bytes + at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    memcpy(bytes + size - 8, &hash, 8);
}

static void test_forged(void **state) {
    (void)state;
    enum { HEADER = 40, HEAD = 88 };
    const double nan_64 = NAN, minus = -1.0, infinite_64 = INFINITY, huge = 1e78;
    const float nan_32 = NAN, infinite = INFINITY;
    const int64_t negative = -1, most = INT64_MAX;
    const uint32_t bits = 0x7f800001u;
    const struct {
        const char *what;
        int64_t at;
        const void *value;
        size_t bytes;
    } cases[] = {
        {"steps: negative", HEADER + 8, &negative, 8},
        {"steps: too many", HEADER + 8, &most, 8},
        {"global threshold", HEADER + 24, &bits, 4},
        {"guess", HEADER + 28, &bits, 4},
        {"rank of the guess", HEADER + 32, &nan_64, 8},
        {"rank of the guess: too large", HEADER + 32, &huge, 8},
        {"growth", HEADER + 40, &minus, 8},
        {"growth: infinite", HEADER + 40, &infinite_64, 8},
        {"growth: too large", HEADER + 40, &huge, 8},
        {"margin", HEADER + 48, &nan_64, 8},
        {"margin: too large", HEADER + 48, &huge, 8},
        {"threshold", HEADER + 56, &nan_32, 4},
        {"age: negative", HEADER + 64, &negative, 8},
        {"age: too much", HEADER + 64, &most, 8},
        {"last k: negative", HEADER + 72, &negative, 8},
        {"last k: too large", HEADER + 72, &most, 8},
        {"steps of moments: negative", HEADER + 80, &negative, 8},
        {"steps of moments: too many", HEADER + 80, &most, 8},
        {"residual: NaN", HEADER + HEAD + 12, &nan_32, 4},
        {"velocity: infinite", HEADER + HEAD + 4 * 904 + 12, &infinite, 4},
    };
    damage v;
    damage_open(&v);
    char *bytes = check_alloc(v.size, 1);
    memcpy(bytes, v.good, (size_t)v.size);
    forge(bytes, v.size);
    check_true(memcmp(bytes, v.good, (size_t)v.size) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_scene("forged %s", cases[i].what);
        memcpy(bytes, v.good, (size_t)v.size);
        memcpy(bytes + cases[i].at, cases[i].value, cases[i].bytes);
        forge(bytes, v.size);
        refuse_bytes(&v, bytes, v.size);
        ranks_error(&v.r, TW_ERR_DAMAGED);
        ranks_say(&v.r, "numbers that cannot be");
    }
    check_scene("forged rank: as high as there are ranks");
    const uint32_t nranks = 2;
    memcpy(bytes, v.good, (size_t)v.size);
    memcpy(bytes + 16, &nranks, 4);
    forge(bytes, v.size);
    refuse_bytes(&v, bytes, v.size);
    ranks_error(&v.r, TW_ERR_DAMAGED);
    ranks_say(&v.r, "ranks or tensors that cannot be");
    free(bytes);
    damage_close(&v);
}

/* A second moment of AdamW is a mean of squares. */
static void test_forged_second_moment(void **state) {
    (void)state;
    enum { HEADER = 40, HEAD = 88 };
    const int64_t n = 64;
    const float minus = -1.0f;
    tw_group_params params = state_params("oktopk");
    params.select.before = TW_BEFORE_ADAMW;
    params.select.rate = 0.1;
    ranks r;
    int64_t size;
    check_scene("a negative second moment");
    ranks_open(&r, 1, &params, &n, 1);
    state_save_all(&r, "adamw");
    char *bytes = state_read(state_path("adamw", 0), &size);
    memcpy(bytes + HEADER + HEAD + 2 * 4 * n + 12, &minus, sizeof minus);
    forge(bytes, size);
    state_write(state_path("adamw", 0), bytes, size);
    state_load_all(&r, "adamw");
    ranks_error(&r, TW_ERR_DAMAGED);
    ranks_say(&r, "numbers that cannot be");
    free(bytes);
    ranks_close(&r);
}

/* ---- Files of other groups and other ranks --------------------------------------------------- */

/* Loads of `r` of these files must give this error on all ranks and change nothing. */
static void refuse_files(ranks *r, state_files *c, int error) {
    float **before[STATE_TENSORS];
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        before[tensor] = rows_alloc(r->nranks, state_sizes[tensor]);
        ranks_get_residuals(r, tensor, before[tensor], state_sizes[tensor]);
    }
    ranks_run(r, state_load, c);
    ranks_error(r, error);
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        ranks_check_residuals(r, tensor, before[tensor], state_sizes[tensor]);
        rows_free(before[tensor]);
    }
}

static void save_other(const tw_group_params *params, const int64_t *other_sizes, int tensors) {
    ranks r;
    ranks_open(&r, 2, params, other_sizes, tensors);
    state_save_all(&r, "other");
    ranks_close(&r);
}

static void refuse_other(ranks *r, const char *field) {
    state_files c = state_spread("other", 2, 2, 1);
    refuse_files(r, &c, TW_ERR_MISMATCH);
    ranks_say(r, "%s", field);
}

static void test_other_groups(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = state_params("oktopk");
    const int64_t other_n[STATE_TENSORS] = {903, 58}, more[3] = {903, 57, 57};
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 3);
    check_scene("another n");
    save_other(&params, other_n, STATE_TENSORS);
    refuse_other(&r, "n");
    ranks_say(&r, "58");
    check_scene("fewer tensors");
    save_other(&params, state_sizes, 1);
    refuse_other(&r, "tensors");
    check_scene("more tensors");
    save_other(&params, more, 3);
    refuse_other(&r, "tensors");
    check_scene("with momentum");
    tw_group_params other = params;
    other.select.momentum = 0.5f;
    save_other(&other, state_sizes, STATE_TENSORS);
    refuse_other(&r, "momentum");
    check_scene("with AdamW");
    other.select.momentum = 0.0f;
    other.select.before = TW_BEFORE_ADAMW;
    save_other(&other, state_sizes, STATE_TENSORS);
    refuse_other(&r, "AdamW");
    check_scene("without feedback");
    other = params;
    other.select.feedback = TW_FEEDBACK_OFF;
    save_other(&other, state_sizes, STATE_TENSORS);
    refuse_other(&r, "feedback");
    state_steps(&r, 3, 5);
    ranks_close(&r);
}

static void test_files_of_other_ranks(void **state) {
    (void)state;
    ranks old, r;
    const tw_group_params params = state_params("oktopk");
    ranks_open(&old, 3, &params, state_sizes, STATE_TENSORS);
    state_steps(&old, 0, 3);
    state_save_all(&old, "three");
    state_steps(&old, 3, 4);
    state_save_all(&old, "later");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    const char *const file[3] = {state_path("three", 0), state_path("three", 1),
                                 state_path("three", 2)};

    state_files twice = {.paths = {{file[0], file[1]}, {file[1], file[2]}}, .count = {2, 2}};
    check_scene("file 1 is loaded by two ranks");
    refuse_files(&r, &twice, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 1");
    state_files same = {.paths = {{file[0], file[0], file[1]}, {file[2]}}, .count = {3, 1}};
    check_scene("file 0 is loaded twice by one rank");
    refuse_files(&r, &same, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 0");
    state_files missing = {.paths = {{file[0]}, {file[1]}}, .count = {1, 1}};
    check_scene("file 2 is loaded by nobody");
    refuse_files(&r, &missing, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 2");
    state_files none = {.count = {0, 0}};
    check_scene("no file at all");
    refuse_files(&r, &none, TW_ERR_MISMATCH);
    state_files mixed = {.paths = {{file[0], file[1]}, {state_path("later", 2)}}, .count = {2, 1}};
    check_scene("file 2 is of a later step");
    refuse_files(&r, &mixed, TW_ERR_MISMATCH);
    state_files one = {.paths = {{file[0], state_path("later", 1)}, {file[2]}}, .count = {2, 1}};
    check_scene("file 1 is of a later step than file 0 of the same rank");
    refuse_files(&r, &one, TW_ERR_MISMATCH);
    state_files right = {.paths = {{file[0], file[2]}, {file[1]}}, .count = {2, 1}};
    check_scene("each loaded once");
    ranks_run(&r, state_load, &right);
    ranks_ok(&r);
    ranks_close(&old);
    ranks_close(&r);
}

/* Two residuals of 3e38, whose sum overflows on the rank that loads both. */
/* Two runs with the same parameters and as many steps. */
static void test_files_of_other_runs(void **state) {
    (void)state;
    ranks a, b;
    const tw_group_params params = state_params("topka");
    ranks_open(&a, 2, &params, state_sizes, STATE_TENSORS);
    ranks_open(&b, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&a, 0, 3);
    state_steps(&b, 0, 3);
    state_save_all(&a, "a");
    state_save_all(&b, "b");
    state_files mixed = {.paths = {{state_path("a", 0)}, {state_path("b", 1)}}, .count = {1, 1}};
    check_scene("files of two runs");
    refuse_files(&a, &mixed, TW_ERR_MISMATCH);
    ranks_say(&a, "rank 1: its states are of another run");
    state_files one = {.paths = {{state_path("a", 0), state_path("b", 1)}}, .count = {2, 0}};
    check_scene("one rank takes files of two runs");
    refuse_files(&a, &one, TW_ERR_MISMATCH);
    ranks_say(&a, "another run");
    check_scene("a run that went back to a checkpoint, and has done a step again");
    state_steps(&a, 3, 4);
    state_save_all(&a, "before");
    state_load_all(&a, "a");
    ranks_ok(&a);
    state_steps(&a, 3, 4);
    state_save_all(&a, "after");
    state_files back = {.paths = {{state_path("before", 0)}, {state_path("after", 1)}},
                        .count = {1, 1}};
    refuse_files(&a, &back, TW_ERR_MISMATCH);
    state_load_all(&a, "after");
    ranks_ok(&a);
    check_scene("ranks that have exchanged their files");
    state_files crossed = {.paths = {{state_path("a", 1)}, {state_path("a", 0)}}, .count = {1, 1}};
    ranks_run(&a, state_load, &crossed);
    ranks_ok(&a);
    state_save_all(&a, "crossed");
    state_files twice = {.paths = {{state_path("crossed", 0)}, {state_path("a", 1)}},
                         .count = {1, 1}};
    refuse_files(&a, &twice, TW_ERR_MISMATCH);
    ranks_close(&a);
    ranks_close(&b);
}

static void test_sums_that_overflow(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = ranks_params("allgather", 1);
    float **grads = rows_alloc(2, state_sizes[0]);
    for (int rank = 0; rank < 2; rank++) {
        grads[rank][0] = rank ? -3.3e38f : 3.3e38f; /* these are sent */
        grads[rank][1] = 3e38f;
    }
    check_scene("sums of states that overflow");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    state_save_all(&r, "huge");
    state_files both = {.paths = {{NULL}, {state_path("huge", 0), state_path("huge", 1)}},
                        .count = {0, 2}};
    refuse_files(&r, &both, TW_ERR_NUMBER);
    ranks_say(&r, "rank 1: paths");
    state_load_all(&r, "huge");
    ranks_ok(&r);
    ranks_close(&r);
    rows_free(grads);
}

/* ---- The file system ------------------------------------------------------------------------- */

static void test_missing_file(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = state_params("gtopk");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    state_save_all(&r, "here");
    state_files c = {.paths = {{state_path("here", 0)}, {state_path("not-here", 1)}},
                     .count = {1, 1}};
    check_scene("a file that is not there");
    refuse_files(&r, &c, TW_ERR_FILE);
    ranks_say(&r, "not-here");
    ranks_say(&r, "rank 1");
    c.paths[1][0] = state_directory;
    check_scene("a directory");
    refuse_files(&r, &c, TW_ERR_FILE);
    c.paths[1][0] = NULL;
    check_scene("a path that is NULL");
    refuse_files(&r, &c, TW_ERR_NULL);
    state_load_all(&r, "here");
    ranks_ok(&r);
    ranks_close(&r);
}

/* A save that fails leaves the old file, and no other file beside it. */
static int files_in_directory(void) {
    int count = 0;
    DIR *entries = opendir(state_directory);
    check_true(entries != NULL);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static void test_unwritable(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = state_params("gtopk");
    char path[STATE_PATH];
    check_scene("unwritable");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    state_save_all(&r, "keep");
    int64_t size, after_size;
    char *before = state_read(state_path("keep", 0), &size);
    const int files = files_in_directory();
    state_steps(&r, 2, 3);
    snprintf(path, sizeof path, "%s/nowhere/file", state_directory);
    check_error(tw_group_save(r.groups[0], path), TW_ERR_FILE);
    check_contains(tw_last_error(), "nowhere");
    check_error(tw_group_save(r.groups[0], state_directory), TW_ERR_FILE);
    check_error(tw_group_save(r.groups[0], ""), TW_ERR_FILE);
    check_int("files in the directory", files_in_directory(), files);
    char *after = state_read(state_path("keep", 0), &after_size);
    check_int("size", after_size, size);
    check_true(memcmp(after, before, (size_t)size) == 0);
    free(before);
    free(after);
    state_steps(&r, 3, 5);
    ranks_close(&r);
}

/* ---- What is not an ordinary file ------------------------------------------------------------ */

/* Makes these in the directory: [0] to [3] are named "not-file" with the number. */
enum { PIPE, SOCKET, DIRECTORY, LINK, KINDS };

static void make_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int made = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    check_int("bind", bind(made, (struct sockaddr *)&address, sizeof address), 0);
    close(made);
}

static void make_kinds(void) {
    check_int("mkfifo", mkfifo(state_path("not-file", PIPE), 0600), 0);
    make_socket(state_path("not-file", SOCKET));
    check_int("mkdir", mkdir(state_path("not-file", DIRECTORY), 0700), 0);
    check_int("symlink", symlink("/dev/zero", state_path("not-file", LINK)), 0);
}

static void remove_kinds(void) {
    for (int kind = 0; kind < KINDS; kind++)
        check_int("remove", remove(state_path("not-file", kind)), 0);
}

/* A load of it ends at once, a save to it is refused; it stays what it is, and nothing is left beside
 * it. */
static void test_not_ordinary(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = state_params("gtopk");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    state_save_all(&r, "here");
    make_kinds();
    const int files = files_in_directory();
    alarm(30); /* for a load that blocks */
    for (int kind = 0; kind < KINDS; kind++) {
        struct stat before, after;
        const char *path = state_path("not-file", kind);
        check_int("lstat", lstat(path, &before), 0);
        check_scene("not an ordinary file, kind %d", kind);
        state_files c = {.paths = {{state_path("here", 0)}, {path}}, .count = {1, 1}};
        refuse_files(&r, &c, TW_ERR_FILE);
        ranks_say(&r, "rank 1");
        check_error(tw_group_save(r.groups[0], path), TW_ERR_FILE);
        check_contains(tw_last_error(), "not an ordinary file");
        check_int("lstat", lstat(path, &after), 0);
        check_true(after.st_ino == before.st_ino && after.st_mode == before.st_mode);
        check_int("files in the directory", files_in_directory(), files);
    }
    alarm(0);
    remove_kinds();
    ranks_close(&r);
}

/* Whatever lies at PATH.part: it is neither followed nor in the way. */
static void test_part_in_the_way(void **state) {
    (void)state;
    ranks r;
    char victim[STATE_PATH], part[STATE_PATH + 8], found[8] = "";
    const tw_group_params params = state_params("gtopk");
    ranks_open(&r, 1, &params, state_sizes, STATE_TENSORS);
    snprintf(victim, sizeof victim, "%s", state_path("victim", 0));
    snprintf(part, sizeof part, "%s.part", state_path("saved", 0));
    for (int kind = 0; kind < 3; kind++) {
        check_scene("what lies at PATH.part, kind %d", kind);
        state_write(victim, "victim", 6);
        if (kind == 0)
            check_int("symlink", symlink(victim, part), 0);
        else if (kind == 1)
            check_int("mkdir", mkdir(part, 0700), 0);
        else
            state_write(part, "half", 4); /* as a killed process leaves it */
        state_save_all(&r, "saved");
        FILE *file = fopen(victim, "rb");
        check_int("bytes of the victim", (int64_t)fread(found, 1, sizeof found, file), 6);
        check_true(memcmp(found, "victim", 6) == 0);
        fclose(file);
        struct stat saved;
        check_int("lstat", lstat(state_path("saved", 0), &saved), 0);
        check_true(S_ISREG(saved.st_mode));
        state_load_all(&r, "saved");
        ranks_ok(&r);
        check_int("remove", remove(part), 0);
    }
    ranks_close(&r);
}

/* Many ranks that save to one path at once, which is wrong: what lies there in the end is whole. */
static int save_to_one(ranks *r, int rank, void *context) {
    return tw_group_save(r->groups[rank], context);
}

static void test_one_path(void **state) {
    (void)state;
    ranks r;
    char path[STATE_PATH];
    const tw_group_params params = state_params("gtopk");
    check_scene("eight ranks save to one path");
    ranks_open(&r, STATE_RANKS, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    state_save_all(&r, "one");
    snprintf(path, sizeof path, "%s", state_path("all", 0));
    for (int round = 0; round < 20; round++) {
        int64_t size, own_size;
        ranks_run(&r, save_to_one, path);
        ranks_ok(&r);
        char *bytes = state_read(path, &size);
        int same = 0;
        for (int rank = 0; rank < STATE_RANKS; rank++) {
            char *own = state_read(state_path("one", rank), &own_size);
            same += own_size == size && memcmp(own, bytes, (size_t)size) == 0;
            free(own);
        }
        free(bytes);
        check_int("files that it equals", same, 1);
    }
    ranks_close(&r);
}

/* ---- What is on disk ------------------------------------------------------------------------- */

/* Takes the place of the system's: which kinds of files were synchronised, in order. */
static char synced[8];

int fsync(int file) {
    struct stat status;
    const size_t length = strlen(synced);
    if (length + 1 < sizeof synced && fstat(file, &status) == 0)
        synced[length] = S_ISDIR(status.st_mode) ? 'd' : 'f';
    return (int)syscall(SYS_fsync, file);
}

/* The data, then the name: else a crash may leave the old file, or none. */
static void test_on_disk(void **state) {
    (void)state;
    ranks r;
    const tw_group_params params = state_params("gtopk");
    check_scene("a save is on disk");
    ranks_open(&r, 1, &params, state_sizes, STATE_TENSORS);
    memset(synced, 0, sizeof synced);
    state_save_all(&r, "durable");
    check_contains(synced, "fd");
    ranks_close(&r);
}

/* A full disk, by a limit on the size of files: the old file stays, and no other is left. */
static void test_disk_full(void **state) {
    (void)state;
    ranks r;
    struct rlimit limit, tight;
    int64_t size, after_size;
    const tw_group_params params = state_params("gtopk");
    check_scene("a write that fails");
    ranks_open(&r, 1, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 2);
    state_save_all(&r, "full");
    char *before = state_read(state_path("full", 0), &size);
    const int files = files_in_directory();
    state_steps(&r, 2, 3);
    getrlimit(RLIMIT_FSIZE, &limit);
    tight = limit;
    tight.rlim_cur = (rlim_t)size / 2;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    const int error = tw_group_save(r.groups[0], state_path("full", 0));
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_DFL);
    check_error(error, TW_ERR_FILE);
    check_int("files in the directory", files_in_directory(), files);
    char *after = state_read(state_path("full", 0), &after_size);
    check_int("size", after_size, size);
    check_true(memcmp(after, before, (size_t)size) == 0);
    free(before);
    free(after);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_longer),
        cmocka_unit_test(test_altered),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_forged_second_moment),
        cmocka_unit_test(test_other_groups),
        cmocka_unit_test(test_files_of_other_ranks),
        cmocka_unit_test(test_files_of_other_runs),
        cmocka_unit_test(test_sums_that_overflow),
        cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_unwritable),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_part_in_the_way),
        cmocka_unit_test(test_one_path),
        cmocka_unit_test(test_on_disk),
        cmocka_unit_test(test_not_ordinary),
    };
    return cmocka_run_group_tests(tests, state_begin, state_end);
}
