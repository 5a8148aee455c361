/* clockwork.h - a clock for each rank of a network that is not there
 *
 * Messages move at once, between threads; when they would have arrived is computed. A rank's link
 * sends one message after the other, and receives one after the other, both at its bandwidth; the
 * first byte is under way for the latency:
 *
 *     sender    now, overhead .. [== bytes / bandwidth ==]            sends in the order of starting
 *     receiver                   latency .. [== bytes / bandwidth ==] receives in the order of arrival
 *
 * A rank's clock moves when it starts a message, by the overhead, and when it has waited: to the
 * end of the last message that it waited for, and by the overhead of each that it received. It does
 * not matter in which order threads really ran, so the same job takes the same time always.
 *
 * What ranks compute takes no time, or the CPU time that their threads use between one call of the
 * transport and the next, so many times: what they compute while they wait is then hidden as it would
 * be. */
#ifndef TW_TRANSPORT_CLOCKWORK_H
#define TW_TRANSPORT_CLOCKWORK_H

#include "transport/transport.h"

typedef struct tw__clockwork tw__clockwork;

/* One for each rank; *first is that of rank 0. Each is to be freed. Errors: TW_ERR_MEMORY. */
int tw__clockwork_create(tw__clockwork **first, int nranks, const tw_network *network);
tw__clockwork *tw__clockwork_of(tw__clockwork *first, int rank);
void tw__clockwork_free(tw__clockwork *c);

/* Whether the receiver is near enough for another message. */
int tw__clockwork_has_room(const tw__clockwork *c, int peer);
/* A message is about to be sent, for which there is room, or to be received. */
void tw__clockwork_send(tw__clockwork *c, tw__message *message);
void tw__clockwork_expect(tw__clockwork *c, tw__message *message);
/* A message has come. */
void tw__clockwork_receive(tw__clockwork *c, tw__message *message);
/* The rank has waited for these, of which nranks at most were received. */
void tw__clockwork_settle(tw__clockwork *c, tw__message *messages, int count);

/* What the rank has computed since it left, in seconds of its clock; from then on it has not. */
double tw__clockwork_spent(tw__clockwork *c);
/* The rank comes from computing, or goes there. */
void tw__clockwork_enter(tw__clockwork *c);
void tw__clockwork_leave(tw__clockwork *c);
/* What a second of computing takes. */
double tw__clockwork_computing(const tw__clockwork *c);

double tw__clockwork_now(const tw__clockwork *c);
void tw__clockwork_elapse(tw__clockwork *c, double seconds);

#endif
