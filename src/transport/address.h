/* address.h - host:port, and sockets that listen there or connect to it; nothing blocks but the
 * resolver */
#ifndef TW_TRANSPORT_ADDRESS_H
#define TW_TRANSPORT_ADDRESS_H

#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#define TW__ADDRESS_TEXT 300 /* of the longest host:port */

typedef union tw__address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} tw__address;

/* One of the places that `meet` names. */
typedef struct tw__endpoint {
    char text[TW__ADDRESS_TEXT]; /* host:port, as the caller wrote it */
    char host[TW__ADDRESS_TEXT], port[8];
} tw__endpoint;

/* "host:port,host:port"; IPv6 addresses in brackets. *endpoints is allocated.
 * Errors: TW_ERR_PARAM, naming `field`; TW_ERR_MEMORY. */
int tw__endpoints_parse(const char *field, const char *text, tw__endpoint **endpoints, int *count);

/* Up to `capacity` addresses of an endpoint. Returns how many; 0: the name is not known. */
int tw__endpoint_resolve(const tw__endpoint *endpoint, tw__address *addresses, int capacity);

/* Whether the host itself is written as a loopback address: then nobody comes from elsewhere. A host
 * name may be a loopback address on its own host, and another address on all others. */
int tw__endpoint_is_local(const tw__endpoint *endpoint);

int tw__address_is_loopback(const tw__address *address);
socklen_t tw__address_size(const tw__address *address);
int tw__address_port(const tw__address *address);
void tw__address_set_port(tw__address *address, int port);
/* The same family's address of all interfaces. */
void tw__address_set_wildcard(tw__address *address);
void tw__address_text(const tw__address *address, char *text, size_t size);

/* A socket that listens. Returns -1 and errno. */
int tw__listen(const tw__address *address, int backlog);
/* A socket that connects: writable when it has. Returns -1 and errno. */
int tw__connect(const tw__address *address);

#endif
