/* test_attack.c - faults of the network between real processes: each is an error in time that names
 * a rank, or does no harm; none gives a wrong result
 *
 *   rank a ==socket pair== [relay: this process] ==socket pair== rank b
 *
 *   test_attack           one of each fault, 64 flipped bits
 *   test_attack all BITS  every fault at several messages, BITS flipped bits; prints a line for each
 *                         kind: scripts/attack makes a table of them
 *
 * Three ranks open a group and make STEPS steps. A run without faults tells what each step must leave
 * behind. In every other run the relay does one thing to the messages of one direction. A rank that
 * gets an error must return within its deadline; its residual must be as after the steps that it has
 * completed, bit for bit. The timeout is that of one wait: messages that are late by less are no fault. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "check.h"
#include "transport/frame.h"

enum { RANKS = 3, LINKS = RANKS * RANKS, STEPS = 4, N = 4000, K = 200, SECONDS_OF_ALL = 20 };

static const double timeout = 1.0;

/* ---- one rank */

/* What a rank leaves behind, in memory that processes share. */
typedef struct outcome {
    _Atomic int done;
    int opened;
    int steps; /* completed */
    int status;
    double seconds;          /* of the last call */
    uint32_t results[STEPS]; /* CRCs */
    uint32_t
        residuals[STEPS + 1]; /* after as many steps; after an error the last one is overwritten */
    char text[512];
} outcome;

static outcome *outcomes; /* [RANKS] */
static int checksum;      /* tw_checksum of this run */

static void note_residual(outcome *o, tw_group *group) {
    static float residual[N];
    if (tw_group_get_residual(group, 0, residual) == TW_OK)
        o->residuals[o->steps] = tw__crc32c(0, residual, sizeof residual);
}

static int step(outcome *o, tw_group *group, int rank) {
    static float grad[N];
    for (uint64_t i = 0; i < N; i++)
        grad[i] = (float)(tw__random((uint64_t)(rank + RANKS * o->steps), i) % 4096) / 1024.0f - 2;
    int status = tw_allreduce(group, 0, grad, grad);
    if (status != TW_OK)
        return status;
    o->results[o->steps++] = tw__crc32c(0, grad, sizeof grad);
    note_residual(o, group);
    return TW_OK;
}

static int open_group(tw_group **group, tw_transport *transport) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.timeout = timeout;
    params.checksum = checksum;
    params.wire = "bf16";
    params.select.k = K;
    params.select.threads = 1;
    int status = tw_group_create(group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(*group, N, NULL, NULL);
    return status == TW_OK ? tw_group_open(*group) : status;
}

static void run_rank(outcome *o, tw_transport *transport, int rank) {
    tw_group *group = NULL;
    int64_t begin = tw__clock();
    o->status = open_group(&group, transport);
    o->opened = o->status == TW_OK;
    if (o->opened)
        note_residual(o, group);
    while (o->status == TW_OK && o->steps < STEPS) {
        begin = tw__clock();
        o->status = step(o, group, rank);
    }
    o->seconds = (double)(tw__clock() - begin) * 1e-9;
    snprintf(o->text, sizeof o->text, "%s", o->status != TW_OK ? tw_last_error() : "");
    if (o->opened)
        note_residual(o, group);
    o->done = 1;
    tw_group_free(group);
}

/* ---- the relay */

typedef enum {
    NOTHING,
    FLIP,     /* one bit */
    CUT,      /* close the connection in the middle of a message */
    REPEAT,   /* a message comes twice */
    LOSE,     /* it does not come */
    EXCHANGE, /* it comes after the next one, or 50 ms late */
    FLOOD,    /* bytes that are no message, without end */
    DRIP,     /* from here on a byte every 0.1 s: no frame arrives in time */
    STALL,    /* from here on nothing */
    DELAY,    /* 0.3 s late */
    CRUMBS,   /* from here on in parts of 1 to 7 bytes */
} what;

typedef struct fault {
    what what;
    const char *name;
    int from, to;
    uint64_t at;  /* the message, or the byte of FLIP */
    int bit;      /* of FLIP */
    int harmless; /* all ranks must complete */
} fault;

/* One direction between two ranks. */
typedef struct direction {
    int from, to; /* ranks */
    int in, out;  /* sockets */
    char *data;   /* bytes: [sent, whole) to be sent, [whole, end) a part of a message */
    size_t sent, whole, end, room;
    char *held; /* a message that waits for the next one */
    size_t held_bytes;
    int64_t held_until, next_at; /* tw__clock(): release it; send no byte before */
    uint64_t messages, bytes;    /* that came */
    int ended, faulty;           /* the fault has begun */
} direction;

static direction links[LINKS]; /* [from * RANKS + to] */
static fault now;

static void make_room(direction *l, size_t more) {
    if (l->end + more <= l->room)
        return;
    l->room = 2 * (l->end + more);
    l->data = realloc(l->data, l->room);
    check_true(l->data != NULL);
}

/* Puts bytes behind the whole messages. What follows them is an incomplete message. */
static void insert(direction *l, const char *data, size_t bytes) {
    make_room(l, bytes);
    memmove(l->data + l->whole + bytes, l->data + l->whole, l->end - l->whole);
    memcpy(l->data + l->whole, data, bytes);
    l->whole += bytes;
    l->end += bytes;
}

static void cut_out(direction *l, size_t bytes) {
    memmove(l->data + l->whole, l->data + l->whole + bytes, l->end - l->whole - bytes);
    l->end -= bytes;
}

static char *copy_of(const char *data, size_t bytes) {
    char *copy = check_alloc((int64_t)bytes, 1);
    memcpy(copy, data, bytes);
    return copy;
}

static void release_held(direction *l) {
    if (l->held == NULL || tw__clock() < l->held_until)
        return;
    insert(l, l->held, l->held_bytes);
    free(l->held);
    l->held = NULL;
}

static void close_direction(direction *l) {
    (void)shutdown(l->in, SHUT_RDWR);
    (void)shutdown(l->out, SHUT_RDWR);
    l->ended = 1;
}

/* Whether the fault is about this message, of `bytes`. */
static int is_meant(const direction *l, size_t bytes) {
    if (l->from != now.from || l->to != now.to)
        return 0;
    return now.what == FLIP ? l->bytes <= now.at && now.at < l->bytes + bytes
                            : l->messages == now.at;
}

/* The fault happens to the message at l->whole. Returns how many bytes of it pass. */
static size_t spoil(direction *l, size_t bytes) {
    char *message = l->data + l->whole;
    l->faulty = 1;
    switch (now.what) {
    case FLIP:
        message[now.at - l->bytes] ^= (char)(1 << now.bit);
        return bytes;
    case CUT:
        return bytes / 2;
    case REPEAT:
        l->held = copy_of(message, bytes);
        l->held_bytes = bytes;
        return bytes;
    case EXCHANGE:
        l->held = copy_of(message, bytes);
        l->held_bytes = bytes;
        l->held_until = tw__clock() + TW__SECOND / 20;
        return 0;
    case LOSE:
        return 0;
    case DELAY:
        l->next_at = tw__clock() + 3 * TW__SECOND / 10;
        return bytes;
    default:
        return bytes;
    }
}

/* A message of `bytes` is complete and begins at l->whole. */
static void pass_message(direction *l, size_t bytes) {
    int meant = is_meant(l, bytes);
    if (!meant)
        l->held_until = 0; /* of the message before it */
    size_t pass = meant ? spoil(l, bytes) : bytes;
    l->whole += pass;
    cut_out(l, bytes - pass);
    l->messages++;
    l->bytes += bytes;
    release_held(l);
}

static void receive_bytes(direction *l) {
    make_room(l, 1 << 16);
    ssize_t got = recv(l->in, l->data + l->end, 1 << 16, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    l->ended = got <= 0;
    l->end += got > 0 ? (size_t)got : 0;
    tw__frame frame;
    while (l->end - l->whole >= sizeof frame) {
        memcpy(&frame, l->data + l->whole, sizeof frame);
        if (l->end - l->whole < sizeof frame + frame.bytes)
            break;
        pass_message(l, sizeof frame + frame.bytes);
    }
}

/* As many bytes as the fault lets pass now. */
static size_t allowed(const direction *l) {
    size_t ready = l->whole - l->sent;
    what fault_now = l->faulty ? now.what : NOTHING;
    if (fault_now == STALL || tw__clock() < l->next_at)
        return 0;
    if (fault_now == DRIP)
        return ready > 0;
    return fault_now == CRUMBS && ready > 7 ? 1 + tw__random(7, l->sent) % 7 : ready;
}

static void send_bytes(direction *l) {
    static const char zeros[1 << 16];
    size_t bytes = allowed(l);
    ssize_t sent =
        bytes > 0 ? send(l->out, l->data + l->sent, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    l->sent += sent > 0 ? (size_t)sent : 0;
    if (sent > 0 && l->faulty && now.what == DRIP)
        l->next_at = tw__clock() + TW__SECOND / 10;
    if (l->faulty && now.what == FLOOD && l->sent == l->whole)
        (void)send(l->out, zeros, sizeof zeros, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (l->faulty && now.what == CUT && l->sent == l->whole)
        close_direction(l);
    if (l->ended && l->sent == l->whole)
        (void)shutdown(l->out, SHUT_WR); /* the other rank learns that this one has gone */
}

static int all_done(void) {
    int done = 1;
    for (int r = 0; r < RANKS; r++)
        done &= outcomes[r].done;
    return done;
}

/* Until all ranks have returned. */
static void forward(void) {
    int64_t deadline = tw__clock() + SECONDS_OF_ALL * TW__SECOND;
    while (!all_done() && tw__clock() < deadline) {
        struct pollfd fds[LINKS];
        for (int i = 0; i < LINKS; i++)
            fds[i] = (struct pollfd){.fd = links[i].ended ? -1 : links[i].in, .events = POLLIN};
        (void)poll(fds, LINKS, 1);
        for (int i = 0; i < LINKS; i++) {
            if (fds[i].fd >= 0 && fds[i].revents != 0)
                receive_bytes(&links[i]);
            release_held(&links[i]);
            for (int part = 0; part < 100 && links[i].out >= 0; part++)
                send_bytes(&links[i]);
        }
    }
}

/* ---- a run */

/* ends[a][b]: the socket of rank a to rank b. The relay has the other ends. */
static void connect_links(int ends[RANKS][RANKS]) {
    int mine[RANKS][RANKS];
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++) {
            int pair[2] = {-1, -1};
            check_true(a == b || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
            ends[a][b] = pair[0];
            mine[a][b] = pair[1];
        }
    for (int i = 0; i < LINKS; i++) {
        int from = i / RANKS, to = i % RANKS;
        links[i] = (direction){.from = from,
                               .to = to,
                               .in = mine[from][to],
                               .out = mine[to][from],
                               .data = links[i].data,
                               .room = links[i].room};
    }
}

static pid_t start_rank(int rank, int ends[RANKS][RANKS]) {
    pid_t pid = fork();
    check_true(pid >= 0);
    if (pid > 0)
        return pid;
    tw_transport *transport = NULL;
    for (int i = 0; i < LINKS; i++) {
        if (links[i].in >= 0)
            (void)close(links[i].in);
        if (i / RANKS != rank && ends[i / RANKS][i % RANKS] >= 0)
            (void)close(ends[i / RANKS][i % RANKS]);
    }
    if (tw_transport_sockets(&transport, ends[rank], rank, RANKS) == TW_OK)
        run_rank(&outcomes[rank], transport, rank);
    tw_transport_free(transport);
    _exit(0);
}

static void run(const fault *f) {
    int ends[RANKS][RANKS];
    pid_t pids[RANKS];
    now = *f;
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    connect_links(ends);
    for (int rank = 0; rank < RANKS; rank++)
        pids[rank] = start_rank(rank, ends);
    for (int i = 0; i < LINKS; i++)
        if (ends[i / RANKS][i % RANKS] >= 0)
            (void)close(ends[i / RANKS][i % RANKS]);
    forward();
    for (int i = 0; i < LINKS; i++) {
        free(links[i].held);
        if (links[i].in >= 0)
            (void)close(links[i].in);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        if (!outcomes[rank].done)
            kill(pids[rank], SIGKILL);
        (void)waitpid(pids[rank], NULL, 0);
    }
}

/* ---- what a run must leave behind */

static outcome expected[RANKS]; /* without a fault */
static uint64_t messages[LINKS], bytes_of[LINKS];

/* What runs of one kind have shown. */
typedef struct tally {
    int runs, hits, completed, failed;
    int wrong; /* runs: another result, or residual, than that of the steps completed */
    int apart; /* runs: ranks differ by more than one step */
    int late;  /* ranks: beyond the deadline, or never */
    int unnamed;
    double slowest;
    char text[512]; /* of an error */
} tally;

static int is_wrong(const outcome *o, const outcome *e) {
    int wrong = memcmp(o->results, e->results, (size_t)o->steps * sizeof *o->results) != 0;
    return wrong || (o->opened && o->residuals[o->steps] != e->residuals[o->steps]);
}

/* Either end of the connection may be at fault, as far as a rank can tell. */
static int is_named(const outcome *o) {
    char from[16], to[16];
    snprintf(from, sizeof from, "rank %d", now.from);
    snprintf(to, sizeof to, "rank %d", now.to);
    return strstr(o->text, from) != NULL || strstr(o->text, to) != NULL;
}

static void note_rank(tally *t, int rank) {
    const outcome *o = &outcomes[rank];
    t->late += !o->done || (o->status != TW_OK && o->seconds > 1.1 * timeout + 0.1);
    t->unnamed += o->status != TW_OK && !is_named(o);
    t->slowest = o->seconds > t->slowest ? o->seconds : t->slowest;
    if (o->status != TW_OK && t->text[0] == '\0')
        snprintf(t->text, sizeof t->text, "%s", o->text);
}

static void attack(tally *t, const fault *f) {
    int failed = 0, wrong = 0, most = 0, least = STEPS;
    run(f);
    t->runs++;
    t->hits += links[f->from * RANKS + f->to].faulty;
    for (int rank = 0; rank < RANKS; rank++) {
        note_rank(t, rank);
        failed += outcomes[rank].status != TW_OK;
        wrong += is_wrong(&outcomes[rank], &expected[rank]);
        most = outcomes[rank].steps > most ? outcomes[rank].steps : most;
        least = outcomes[rank].steps < least ? outcomes[rank].steps : least;
    }
    t->wrong += wrong > 0;
    t->apart += most - least > 1;
    t->completed += failed == 0;
    t->failed += failed > 0;
}

static void check_tally(const tally *t, const fault *f) {
    check_scene("%s: %d runs, %d hits, %d completed; last error: %.100s", f->name, t->runs, t->hits,
                t->completed, t->text);
    check_int("wrong results", t->wrong, 0);
    check_int("ranks apart", t->apart, 0);
    check_int("late ranks", t->late, 0);
    check_int("errors that name no rank", t->unnamed, 0);
    check_between("runs with the fault", t->hits, (t->runs * 9 + 9) / 10, t->runs);
    if (f->harmless)
        check_int("completed", t->completed, t->runs);
    else if (f->what != EXCHANGE) /* a message that is late alone does no harm */
        check_int("failed", t->failed, t->hits);
}

static void print_tally(const tally *t, const fault *f) {
    printf("attack|%s|%g|%d|%d|%.3f|%s|%d|%d\n", f->name, timeout, t->runs, t->completed,
           t->slowest, t->text, t->wrong, t->apart + t->late + t->unnamed);
    fflush(stdout);
}

/* ---- the faults */

static int thorough, bits = 64;

static void expect_no_fault(void **state) {
    (void)state;
    const fault none = {.what = NOTHING, .at = UINT64_MAX};
    run(&none);
    memcpy(expected, outcomes, sizeof expected);
    for (int rank = 0; rank < RANKS; rank++) {
        check_scene("no fault, rank %d: %s", rank, expected[rank].text);
        check_int("steps", expected[rank].steps, STEPS);
        check_true(memcmp(expected[rank].results, expected[0].results, sizeof expected->results) ==
                   0);
    }
    for (int i = 0; i < LINKS; i++) {
        messages[i] = links[i].messages;
        bytes_of[i] = links[i].bytes;
        check_true(i / RANKS == i % RANKS || messages[i] > 10);
    }
}

static void test_faults(void **state) {
    (void)state;
    static const fault all[] = {
        {.what = CUT, .name = "cut a connection"},
        {.what = REPEAT, .name = "repeat a message"},
        {.what = LOSE, .name = "lose a message"},
        {.what = EXCHANGE, .name = "exchange two messages"},
        {.what = FLOOD, .name = "flood with bytes"},
        {.what = DRIP, .name = "drip, a byte in 0.1 s"},
        {.what = STALL, .name = "stall"},
        {.what = DELAY, .name = "delay by 0.3 s", .harmless = 1},
        {.what = CRUMBS, .name = "parts of 1 to 7 bytes", .harmless = 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tally t = {0};
        fault f = all[i];
        for (int part = thorough ? 1 : 3; part <= (thorough ? 6 : 3); part++) {
            f.from = 2 - (part + (int)i) % 2;
            f.to = part % 2 == 0 ? 0 : (f.from + 1) % RANKS;
            f.at = messages[f.from * RANKS + f.to] * (uint64_t)part / 7;
            attack(&t, &f);
        }
        if (thorough)
            print_tally(&t, &f);
        check_tally(&t, &f);
    }
}

/* A bit of all that one rank sends to another, from the first message on. */
static fault random_flip(uint64_t draw) {
    fault f = {.what = FLIP, .name = "flip a bit"};
    f.from = (int)(tw__random(1, draw) % RANKS);
    f.to = (f.from + 1 + (int)(tw__random(2, draw) % (RANKS - 1))) % RANKS;
    f.at = tw__random(3, draw) % bytes_of[f.from * RANKS + f.to];
    f.bit = (int)(tw__random(4, draw) % 8);
    return f;
}

static void test_flips(void **state) {
    (void)state;
    tally t = {0};
    for (int i = 0; i < bits; i++) {
        fault f = random_flip((uint64_t)i);
        attack(&t, &f);
    }
    const fault f = {.what = FLIP, .name = "flip a bit"};
    if (thorough)
        print_tally(&t, &f);
    check_tally(&t, &f);
}

/* Without checksums the same bits must give wrong results: else these tests could not see any. */
static void test_flips_unchecked(void **state) {
    (void)state;
    tally t = {0};
    checksum = TW_CHECKSUM_OFF;
    for (int i = 0; i < bits && (thorough || t.wrong == 0); i++) {
        fault f = random_flip((uint64_t)i);
        attack(&t, &f);
    }
    checksum = TW_CHECKSUM_ON;
    const fault f = {.what = FLIP, .name = "flip a bit, checksum off"};
    if (thorough)
        print_tally(&t, &f);
    check_between("wrong results", t.wrong, 1, bits);
}

int main(int argc, char **argv) {
    thorough = argc > 2 && strcmp(argv[1], "all") == 0;
    bits = thorough ? atoi(argv[2]) : bits;
    outcomes = mmap(NULL, RANKS * sizeof *outcomes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(expect_no_fault),
                                       cmocka_unit_test(test_faults), cmocka_unit_test(test_flips),
                                       cmocka_unit_test(test_flips_unchecked)};
    return outcomes == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
