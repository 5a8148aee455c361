/* faults.c - a process dies at its n-th fault point: before a system call that sends, connects or makes a
 * file durable, and before and after each stage of a step
 *
 * The linker puts these functions in place of the system's and the library's (--wrap): the library knows
 * nothing of it. */
#include "churn.h"

#include "transport/transport.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LAST_STEP = 6 }; /* of its own, up to which a process may die */

struct tw__step;

life *fault_life;

void fault_die(way how) {
    fault_life->died = seconds_now();
    switch (how) {
    case EXIT_0:
        _exit(0);
    case EXIT_1:
        _exit(1);
    case ABORT:
        abort();
    case KILL:
        (void)raise(SIGKILL);
        break;
    case TERM:
        (void)raise(SIGTERM);
        break;
    default:
        (void)raise(SIGSTOP);
    }
}

static void fault_point(void) {
    life *l = fault_life;
    if (l == NULL || l->die_at == 0 || l->done > LAST_STEP ||
        (l->die_in_shrink && l->points == 0 && l->phase != IN_shrink))
        return;
    if (++l->points != l->die_at)
        return;
    l->died_in = l->phase;
    l->died_at = l->phase == IN_exchange ? l->messages : 0;
    fault_die((way)l->die_way);
}

/* ---- system calls */

ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags) {
    fault_point();
    return __real_send(fd, data, bytes, flags);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    fault_point();
    return __real_sendmsg(fd, message, flags);
}

int __real_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes) {
    fault_point();
    return __real_connect(fd, address, bytes);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    fault_point();
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    fault_point();
    return __real_rename(from, to);
}

/* ---- stages of a step */

/* Whether the process is in a step, and now in this stage of it. */
static int enter_stage(phase stage) {
    life *l = fault_life;
    if (l == NULL || l->phase != IN_step)
        return 0;
    l->phase = stage;
    l->messages = 0;
    fault_point();
    return 1;
}

static int leave_stage(int is_stage, int status) {
    if (is_stage) {
        fault_point();
        fault_life->phase = IN_step;
    }
    return status;
}

int __real_tw__step_select(struct tw__step *s);
int __wrap_tw__step_select(struct tw__step *s);
int __wrap_tw__step_select(struct tw__step *s) {
    int is_stage = enter_stage(IN_select);
    return leave_stage(is_stage, __real_tw__step_select(s));
}

int __real_tw__agree_step(struct tw__step *s, int error);
int __wrap_tw__agree_step(struct tw__step *s, int error);
int __wrap_tw__agree_step(struct tw__step *s, int error) {
    int is_stage = enter_stage(IN_agree);
    return leave_stage(is_stage, __real_tw__agree_step(s, error));
}

int __real_tw__step_exchange(struct tw__step *s);
int __wrap_tw__step_exchange(struct tw__step *s);
int __wrap_tw__step_exchange(struct tw__step *s) {
    int is_stage = enter_stage(IN_exchange);
    return leave_stage(is_stage, __real_tw__step_exchange(s));
}

int __real_tw__agree_complete(tw_group *g);
int __wrap_tw__agree_complete(tw_group *g);
int __wrap_tw__agree_complete(tw_group *g) {
    int is_stage = enter_stage(IN_complete);
    return leave_stage(is_stage, __real_tw__agree_complete(g));
}

int __real_tw__step_apply(struct tw__step *s);
int __wrap_tw__step_apply(struct tw__step *s);
int __wrap_tw__step_apply(struct tw__step *s) {
    int is_stage = enter_stage(IN_apply);
    return leave_stage(is_stage, __real_tw__step_apply(s));
}

int __real_tw__transport_send(tw_transport *t, int peer, tw__message_kind kind, const void *data,
                              size_t bytes, tw__message *message);
int __wrap_tw__transport_send(tw_transport *t, int peer, tw__message_kind kind, const void *data,
                              size_t bytes, tw__message *message);
int __wrap_tw__transport_send(tw_transport *t, int peer, tw__message_kind kind, const void *data,
                              size_t bytes, tw__message *message) {
    if (fault_life != NULL)
        fault_life->messages++;
    return __real_tw__transport_send(t, peer, kind, data, bytes, message);
}
