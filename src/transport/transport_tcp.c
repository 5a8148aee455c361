/* transport_tcp.c - ranks that find each other at host:port, then over their sockets
 *
 * meeting.c connects the ranks; the rest is transport_sockets.c. */
#include "transport/meeting.h"
#include "transport/transport_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT 300.0
#define MOST_SECONDS 1e9

int tw__tcp_check(tw_tcp_params *p) {
    TW_REQUIRE(p->meet, "meet");
    TW_TRY(tw__transport_check_ranks(p->rank, p->nranks));
    if ((p->secret == NULL) != (p->secret_bytes == 0))
        return tw__fail(TW_ERR_NULL, "secret: give both secret and secret_bytes, or neither");
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        if (p->reserved[i] != 0)
            return tw__fail(TW_ERR_PARAM, "reserved: set it to zero");
    if (!(p->timeout >= 0 && p->timeout <= MOST_SECONDS))
        return tw__fail(TW_ERR_PARAM, "timeout: %g; accepted are 0 (default) .. %g seconds",
                        p->timeout, MOST_SECONDS);
    if (p->timeout == 0)
        p->timeout = DEFAULT_TIMEOUT;
    return TW_OK;
}

int tw_transport_tcp(tw_transport **transport, const tw_tcp_params *params) {
    TW_REQUIRE(transport, "transport");
    *transport = NULL;
    TW_REQUIRE(params, "params");
    tw_tcp_params checked = *params;
    TW_TRY(tw__tcp_check(&checked));
    int *sockets = malloc((size_t)checked.nranks * sizeof *sockets);
    if (sockets == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", checked.nranks);
    int status = tw__meet(&checked, sockets, NULL);
    if (status == TW_OK) {
        status = tw_transport_sockets(transport, sockets, checked.rank, checked.nranks);
        for (int r = 0; r < checked.nranks && status != TW_OK; r++)
            if (sockets[r] >= 0)
                (void)close(sockets[r]);
    }
    free(sockets);
    if (status != TW_OK)
        return status;
    memcpy((*transport)->name, "tcp", sizeof "tcp");
    status = tw__transport_keep_meet(*transport, &checked);
    if (status != TW_OK) {
        tw_transport_free(*transport);
        *transport = NULL;
    }
    return status;
}
