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

typedef struct tw__sim_clock tw__sim_clock;

/* One for each rank; *first is that of rank 0. Each is to be freed. Errors: TW_ERR_MEMORY. */
int tw__sim_clock_create(tw__sim_clock **first, int nranks, const tw_network *network);
tw__sim_clock *tw__sim_clock_of(tw__sim_clock *first, int rank);
void tw__sim_clock_free(tw__sim_clock *c);

/* Whether the receiver is near enough for another message. */
int tw__sim_clock_has_room(const tw__sim_clock *c, int peer);
/* A message is about to be sent, for which there is room, or to be received. */
void tw__sim_clock_send(tw__sim_clock *c, tw__message *message);
void tw__sim_clock_expect(tw__sim_clock *c, tw__message *message);
/* A message has come. */
void tw__sim_clock_receive(tw__sim_clock *c, tw__message *message);
/* The rank has waited for these, of which nranks at most were received. */
void tw__sim_clock_settle(tw__sim_clock *c, tw__message *messages, int count);

/* What the rank has computed since it left, in seconds of its clock; from then on it has not. */
double tw__sim_clock_spent(tw__sim_clock *c);
/* The rank comes from computing, or goes there. */
void tw__sim_clock_enter(tw__sim_clock *c);
void tw__sim_clock_leave(tw__sim_clock *c);
/* What a second of computing takes. */
double tw__sim_clock_computing(const tw__sim_clock *c);

double tw__sim_clock_now(const tw__sim_clock *c);
void tw__sim_clock_elapse(tw__sim_clock *c, double seconds);

#endif
