/* faults.c - a process dies before its n-th system call that sends, connects or makes a file durable
 *
 * The linker puts these in place of the system's (--wrap): the library knows nothing of it. */
#include "churn.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LAST_STEP = 6 }; /* of its own, up to which a process may die */

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
        (l->die_in_shrink && l->calls == 0 && l->phase != IN_shrink))
        return;
    if (++l->calls != l->die_at)
        return;
    l->died_in = l->phase;
    fault_die((way)l->die_way);
}

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
