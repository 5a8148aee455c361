/* transport_self.c - the only rank of a job of one
 *
 * It has no peers, so the calls always fail. This file is also the template of a transport: a table
 * of calls, and a function that creates a transport from it. */
#include "transport/transport.h"

static int no_send(void *context, int peer, int tag, const void *data, size_t bytes,
                   void **request) {
    (void)context, (void)peer, (void)tag, (void)data, (void)bytes, (void)request;
    return tw_transport_explain("this is the only rank");
}

static int no_recv(void *context, int peer, int tag, void *data, size_t capacity, void **request) {
    (void)context, (void)peer, (void)tag, (void)data, (void)capacity, (void)request;
    return tw_transport_explain("this is the only rank");
}

static int no_test(void *context, void *request, size_t *bytes) {
    (void)context, (void)request, (void)bytes;
    return tw_transport_explain("this is the only rank");
}

static void no_cancel(void *context, void *request) {
    (void)context, (void)request;
}

static const tw_transport_calls self_calls = {
    .name = "self",
    .send = no_send,
    .recv = no_recv,
    .test = no_test,
    .cancel = no_cancel,
};

int tw_transport_self(tw_transport **transport) {
    return tw_transport_custom(transport, &self_calls, NULL, 0, 1);
}
