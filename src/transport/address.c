/* address.c - see address.h */
#include "transport/address.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- host:port */

static int is_port(const char *text, size_t length) {
    if (length < 1 || length > 5 || strspn(text, "0123456789") < length)
        return 0;
    long port = strtol(text, NULL, 10);
    return port >= 1 && port <= 65535;
}

/* One endpoint of `length` characters. Returns 0 if it is none. */
static int parse_one(tw__endpoint *endpoint, const char *text, size_t length) {
    const char *end = text + length, *colon = end;
    if (length == 0 || length >= sizeof endpoint->text)
        return 0;
    while (colon > text && *colon != ':')
        colon--;
    int bracketed = *text == '[';
    const char *host = text + bracketed, *host_end = colon - bracketed;
    if (*colon != ':' || host_end <= host || (bracketed && *host_end != ']') ||
        (!bracketed && memchr(host, ':', (size_t)(host_end - host)) != NULL) ||
        !is_port(colon + 1, (size_t)(end - colon - 1)))
        return 0;
    snprintf(endpoint->text, sizeof endpoint->text, "%.*s", (int)length, text);
    snprintf(endpoint->host, sizeof endpoint->host, "%.*s", (int)(host_end - host), host);
    snprintf(endpoint->port, sizeof endpoint->port, "%.*s", (int)(end - colon - 1), colon + 1);
    return 1;
}

int tw__endpoints_parse(const char *field, const char *text, tw__endpoint **endpoints, int *count) {
    size_t commas = 0;
    for (const char *at = text; *at != '\0'; at++)
        commas += *at == ',';
    tw__endpoint *list = calloc(commas + 1, sizeof *list);
    if (list == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu addresses", commas + 1);
    *count = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        if (!parse_one(&list[*count], at, length)) {
            free(list);
            return tw__fail(
                TW_ERR_PARAM,
                "%s: '%.*s'; accepted is host:port, port 1 .. 65535, an IPv6 address in "
                "brackets, several with commas between them",
                field, (int)(length < 200 ? length : 200), at);
        }
        ++*count;
        at += length;
        if (*at == '\0')
            break;
    }
    *endpoints = list;
    return TW_OK;
}

int tw__endpoint_resolve(const tw__endpoint *endpoint, tw__address *addresses, int capacity) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int count = 0;
    if (getaddrinfo(endpoint->host, endpoint->port, &hints, &found) != 0)
        return 0;
    for (const struct addrinfo *one = found; one != NULL && count < capacity; one = one->ai_next)
        if (one->ai_family == AF_INET || one->ai_family == AF_INET6)
            memcpy(&addresses[count++], one->ai_addr, one->ai_addrlen);
    freeaddrinfo(found);
    return count;
}

int tw__endpoint_is_local(const tw__endpoint *endpoint) {
    return strcmp(endpoint->host, "localhost") == 0 || strcmp(endpoint->host, "::1") == 0 ||
           strncmp(endpoint->host, "127.", 4) == 0;
}

/* ---- addresses */

int tw__address_is_loopback(const tw__address *address) {
    if (address->any.sa_family == AF_INET)
        return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
}

socklen_t tw__address_size(const tw__address *address) {
    assert(address->any.sa_family == AF_INET || address->any.sa_family == AF_INET6);
    return address->any.sa_family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

int tw__address_port(const tw__address *address) {
    return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

void tw__address_set_port(tw__address *address, int port) {
    assert(port >= 0 && port <= 65535);
    if (address->any.sa_family == AF_INET)
        address->v4.sin_port = htons((uint16_t)port);
    else
        address->v6.sin6_port = htons((uint16_t)port);
}

void tw__address_set_wildcard(tw__address *address) {
    if (address->any.sa_family == AF_INET)
        address->v4.sin_addr.s_addr = htonl(INADDR_ANY);
    else
        address->v6.sin6_addr = in6addr_any;
}

void tw__address_text(const tw__address *address, char *text, size_t size) {
    char host[INET6_ADDRSTRLEN] = "?";
    int v4 = address->any.sa_family == AF_INET;
    (void)inet_ntop(address->any.sa_family,
                    v4 ? (const void *)&address->v4.sin_addr : &address->v6.sin6_addr, host,
                    sizeof host);
    snprintf(text, size, v4 ? "%s:%d" : "[%s]:%d", host, tw__address_port(address));
}

/* ---- sockets */

static int open_socket(const tw__address *address) {
    const int yes = 1;
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static int close_with_error(int fd) {
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

int tw__listen(const tw__address *address, int backlog) {
    const int yes = 1;
    int fd = open_socket(address);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address->any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (bind(fd, &address->any, tw__address_size(address)) != 0 || listen(fd, backlog) != 0)
        return close_with_error(fd);
    return fd;
}

int tw__connect(const tw__address *address) {
    int fd = open_socket(address);
    if (fd < 0)
        return -1;
    if (connect(fd, &address->any, tw__address_size(address)) != 0 && errno != EINPROGRESS)
        return close_with_error(fd);
    return fd;
}
