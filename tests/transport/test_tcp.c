/* test_tcp.c - ranks that meet at host:port: all together, late, refused; strangers and other jobs
 *
 * Ranks are threads here, each with its own sockets. After a meeting they sum over every connection. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sha256.h"
#include "check.h"

enum { MOST = 16, N = 100 };

typedef struct player {
    tw_tcp_params params;
    double late; /* seconds before it comes */
    int status;
    char text[512];
    double seconds;
    float sum; /* of element 7, over ranks */
    pthread_t thread;
} player;

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- ports */

/* A port that was free a moment ago, on all addresses of the loopback interface. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0);
    check_true(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 500; i++) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        nap(0.01);
    }
    check_fail("nobody listens on port %d: %s", port, strerror(errno));
    return -1;
}

/* ---- ranks */

static int sum_once(tw_transport *transport, player *p) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "topka";
    params.select.k = N;
    params.timeout = 10;
    params.result = TW_SUM;
    tw_group *group = NULL;
    float grad[N];
    for (int i = 0; i < N; i++)
        grad[i] = (float)(i * (p->params.rank + 1));
    int status = tw_group_create(&group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(group, N, NULL, NULL);
    if (status == TW_OK)
        status = tw_group_open(group);
    if (status == TW_OK)
        status = tw_allreduce(group, 0, grad, grad);
    p->sum = grad[7];
    tw_group_free(group);
    return status;
}

static void *play(void *argument) {
    player *p = argument;
    tw_transport *transport = NULL;
    nap(p->late);
    int64_t begin = tw__clock();
    p->status = tw_transport_tcp(&transport, &p->params);
    p->seconds = (double)(tw__clock() - begin) * 1e-9;
    snprintf(p->text, sizeof p->text, "%s", p->status != TW_OK ? tw_last_error() : "");
    if (p->status == TW_OK) {
        p->status = sum_once(transport, p);
        snprintf(p->text, sizeof p->text, "%s", p->status != TW_OK ? tw_last_error() : "");
    }
    tw_transport_free(transport);
    return NULL;
}

static void set_up(player *players, int count, const char *meet, int nranks) {
    for (int i = 0; i < count; i++) {
        players[i] = (player){.params = {.meet = meet,
                                         .rank = i,
                                         .nranks = nranks,
                                         .secret = "tell nobody",
                                         .secret_bytes = 11,
                                         .timeout = 20}};
    }
}

static void start(player *p) {
    check_true(pthread_create(&p->thread, NULL, play, p) == 0);
}

static void end(player *p) {
    check_true(pthread_join(p->thread, NULL) == 0);
}

static void start_all(player *players, int count) {
    for (int i = 0; i < count; i++)
        start(&players[i]);
}

/* All came, and all connections carry messages of the right ranks. */
static void expect_met(player *players, int nranks) {
    for (int r = 0; r < nranks; r++)
        end(&players[r]);
    for (int r = 0; r < nranks; r++)
        if (players[r].status != TW_OK)
            print_error("rank %d: %s\n", r, players[r].text);
    for (int r = 0; r < nranks; r++) {
        check_int("status", players[r].status, TW_OK);
        check_float("sum", players[r].sum, 3.5F * (float)(nranks * (nranks + 1)));
    }
}

static void expect_refused(player *p, int error, const char *text) {
    end(p);
    check_int("status", p->status, error);
    check_contains(p->text, text);
}

/* ---- tests */

static void hex(const unsigned char digest[TW__DIGEST], char text[65]) {
    for (size_t i = 0; i < TW__DIGEST; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

/* Digests of FIPS 180-4 and RFC 4231, whole and byte by byte. */
static void test_digests(void **state) {
    (void)state;
    static const struct {
        const char *data, *digest;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    unsigned char digest[TW__DIGEST];
    char text[65];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        for (int parts = 0; parts <= 1; parts++) {
            tw__sha256 hash;
            size_t length = strlen(known[i].data);
            tw__sha256_begin(&hash);
            for (size_t at = 0; at < length && parts; at++)
                tw__sha256_add(&hash, known[i].data + at, 1);
            if (!parts)
                tw__sha256_add(&hash, known[i].data, length);
            tw__sha256_end(&hash, digest);
            hex(digest, text);
            check_true(strcmp(text, known[i].digest) == 0);
        }
    }
    tw__hmac mac;
    tw__hmac_begin(&mac, "Jefe", 4);
    tw__hmac_add(&mac, "what do ya want ", 16);
    tw__hmac_add(&mac, "for nothing?", 12);
    tw__hmac_end(&mac, digest);
    hex(digest, text);
    check_true(strcmp(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843") ==
               0);
    unsigned char key[131];
    memset(key, 0xaa, sizeof key);
    tw__hmac_begin(&mac, key, sizeof key);
    tw__hmac_add(&mac, "Test Using Larger Than Block-Size Key - Hash Key First", 54);
    tw__hmac_end(&mac, digest);
    hex(digest, text);
    check_true(strcmp(text, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54") ==
               0);
    key[0] = digest[0];
    check_true(tw__digest_equal(digest, digest) && !tw__digest_equal(digest, key));
}

/* A machine without /etc/hosts, such as a bare chroot, may know no localhost. */
static int is_host_known(const char *host) {
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, NULL, NULL, &found) != 0) {
        print_message("SKIP: this machine does not know '%s': see /etc/hosts\n", host);
        return 0;
    }
    freeaddrinfo(found);
    return 1;
}

static void test_all_meet(void **state) {
    (void)state;
    static const char *const forms[] = {"127.0.0.1:%d", "localhost:%d", "[::1]:%d",
                                        "127.0.0.7:%d,127.0.0.8:%d"};
    player players[MOST];
    char meet[64];
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (strncmp(forms[f], "localhost", 9) == 0 && !is_host_known("localhost"))
            continue;
        for (int nranks = 1; nranks <= 9; nranks += nranks < 3 ? 1 : 3) {
            int port = free_port();
            snprintf(meet, sizeof meet, forms[f], port, port);
            check_scene("%s, %d ranks", meet, nranks);
            set_up(players, nranks, meet, nranks);
            start_all(players, nranks);
            expect_met(players, nranks);
        }
    }
}

/* Ranks that come late, the meeting point last; without a secret. */
static void test_late(void **state) {
    (void)state;
    player players[4];
    char meet[64];
    int port = free_port();
    snprintf(meet, sizeof meet, "127.0.0.1:%d", port);
    set_up(players, 4, meet, 4);
    for (int r = 0; r < 4; r++) {
        players[r].late = 0.2 * (3 - r);
        players[r].params.secret = NULL;
        players[r].params.secret_bytes = 0;
    }
    start_all(players, 4);
    expect_met(players, 4);
}

/* One meeting after the other at the same place: a fast rank is already in the next one. */
static void test_again(void **state) {
    (void)state;
    static const char *const jobs[] = {"first", "second"};
    player players[2][4];
    char meet[64];
    int port = free_port();
    snprintf(meet, sizeof meet, "127.0.0.1:%d", port);
    for (int j = 0; j < 2; j++) {
        set_up(players[j], 4, meet, 4);
        for (int r = 0; r < 4; r++)
            players[j][r].params.job = jobs[j];
    }
    players[0][3].late = 0.3;
    start_all(players[0], 4);
    start_all(players[1], 4);
    expect_met(players[0], 4);
    expect_met(players[1], 4);
}

/* Refused with the reason, and the job goes on: the right ones come later. */
static void test_refused(void **state) {
    (void)state;
    player players[3], wrong;
    char meet[64];
    snprintf(meet, sizeof meet, "127.0.0.1:%d", free_port());
    set_up(players, 3, meet, 3);
    start(&players[0]);
    nap(0.1); /* the meeting point */
    start(&players[1]);
    nap(0.2);
    wrong = (player){.params = players[2].params};
    wrong.params.secret = "tell anybody";
    wrong.params.secret_bytes = 12;
    start(&wrong);
    expect_refused(&wrong, TW_ERR_MISMATCH, "another secret");
    wrong.params.secret = NULL;
    wrong.params.secret_bytes = 0;
    start(&wrong);
    expect_refused(&wrong, TW_ERR_MISMATCH, "another secret");
    wrong.params = players[2].params;
    wrong.params.nranks = 4;
    start(&wrong);
    expect_refused(&wrong, TW_ERR_MISMATCH, "nranks: has another number");
    for (int r = 0; r < 2; r++) {
        wrong.params = players[r].params;
        start(&wrong);
        expect_refused(&wrong, TW_ERR_MISMATCH, "rank: another process has this one");
    }
    wrong.params = players[2].params;
    wrong.params.job = "another";
    wrong.params.timeout = 0.5;
    start(&wrong);
    expect_refused(&wrong, TW_ERR_TIMEOUT, "it serves another job");
    start(&players[2]);
    expect_met(players, 3);
}

static void test_missing(void **state) {
    (void)state;
    player players[5];
    char meet[64];
    int port = free_port();
    snprintf(meet, sizeof meet, "127.0.0.1:%d", port);
    set_up(players, 5, meet, 5);
    for (int r = 0; r < 3; r++)
        players[r].params.timeout = 0.5;
    start(&players[0]);
    nap(0.1);
    start(&players[1]);
    start(&players[2]);
    expect_refused(&players[0], TW_ERR_TIMEOUT, "within 0.5 s from rank 3, 4");
    check_true(players[0].seconds >= 0.45 && players[0].seconds < 0.7);
    expect_refused(&players[1], TW_ERR_TIMEOUT, "");
    expect_refused(&players[2], TW_ERR_TIMEOUT, "");
    set_up(players, 1, "192.0.2.1:9", 2); /* an address for documentation: nobody is there */
    players[0].params.timeout = 0.3;
    start(&players[0]);
    expect_refused(&players[0], TW_ERR_TIMEOUT, "nobody accepts this rank at 192.0.2.1:9");
}

static void *serve_nonsense(void *argument) {
    int listener = *(int *)argument;
    char text[200];
    memset(text, 'x', sizeof text);
    int fd = accept(listener, NULL, NULL);
    (void)!write(fd, text, sizeof text);
    nap(0.5);
    (void)close(fd);
    return NULL;
}

static void test_another_program(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check_true(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 5) == 0);
    check_true(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    pthread_t thread;
    check_true(pthread_create(&thread, NULL, serve_nonsense, &listener) == 0);
    player p;
    char meet[64];
    snprintf(meet, sizeof meet, "127.0.0.1:%d", ntohs(address.sin_port));
    set_up(&p, 1, meet, 2);
    start(&p);
    expect_refused(&p, TW_ERR_TRANSPORT, "another program listens there");
    pthread_join(thread, NULL);
    (void)close(listener);
}

/* Silent connections, half a hello, random bytes: nobody waits for them. */
static void test_strangers(void **state) {
    (void)state;
    player players[3];
    int strangers[200];
    char meet[64], noise[500];
    int port = free_port();
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 151 + 7);
    snprintf(meet, sizeof meet, "127.0.0.1:%d", port);
    set_up(players, 3, meet, 3);
    start(&players[0]);
    for (int i = 0; i < 200; i++) {
        strangers[i] = connect_to(port);
        if (i % 3 > 0)
            (void)!send(strangers[i], noise, i % 3 == 1 ? 20 : sizeof noise, MSG_NOSIGNAL);
    }
    start(&players[1]);
    start(&players[2]);
    expect_met(players, 3);
    for (int r = 0; r < 3; r++)
        check_true(players[r].seconds < 10.0);
    for (int i = 0; i < 200; i++)
        (void)close(strangers[i]);
}

/* The meeting point is killed before all have come; the next address takes its place. */
static void test_meeting_point_dies(void **state) {
    (void)state;
    player players[4];
    char meet[64];
    int port = free_port();
    snprintf(meet, sizeof meet, "127.0.0.1:%d,127.0.0.2:%d", port, port);
    set_up(players, 4, meet, 4);
    pid_t child = fork();
    if (child == 0) {
        play(&players[0]);
        _exit(0);
    }
    int fd = connect_to(port); /* it listens */
    (void)close(fd);
    start(&players[1]);
    start(&players[2]);
    nap(0.3); /* these have registered */
    check_true(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    start(&players[0]);
    start(&players[3]);
    expect_met(players, 4);
}

static void test_bad_params(void **state) {
    (void)state;
    static const char *const bad[] = {"",       ":1",    "a:0",  "a:65536",  "a",
                                      "[::1:5", "::1:5", "a:1,", "a:1,,b:2", "a:x",
                                      "[]:1",   "a:",    "a:1 ", "a:-1",     ","};
    tw_transport *transport = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const tw_tcp_params p = {.meet = bad[i], .nranks = 2, .timeout = 1};
        check_scene("meet '%s'", bad[i]);
        check_error(tw_transport_tcp(&transport, &p), TW_ERR_PARAM);
        check_contains(tw_last_error(), "meet: ");
    }
    tw_tcp_params p = {.meet = "localhost:1", .nranks = 2, .timeout = 1};
    check_error(tw_transport_tcp(NULL, &p), TW_ERR_NULL);
    check_error(tw_transport_tcp(&transport, NULL), TW_ERR_NULL);
    p.rank = 2;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_PARAM);
    p.rank = 0;
    p.secret_bytes = 3;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_NULL);
    p.secret = "";
    p.secret_bytes = 0;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_NULL);
    p.secret = NULL;
    p.reserved[7] = 1;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_PARAM);
    p.reserved[7] = 0;
    p.timeout = -1;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_PARAM);
    check_contains(tw_last_error(), "timeout: ");
    p.timeout = 1;
    p.meet = NULL;
    check_error(tw_transport_tcp(&transport, &p), TW_ERR_NULL);
    check_true(transport == NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_all_meet),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_another_program),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_meeting_point_dies),
        cmocka_unit_test(test_bad_params),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
