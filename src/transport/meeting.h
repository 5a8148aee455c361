/* meeting.h - ranks that know host:port and nothing else get a socket to every other rank
 *
 *   1. A process that can listen on the address is the meeting point. All others register there:
 *      rank, and the port where they listen.
 *   2. When all have registered, each gets the table of addresses.
 *   3. Every rank connects to the ranks below it and accepts those above it.
 *
 * Every connection begins with a handshake (handshake.h), in which both prove that they know the secret.
 * Where several addresses are named, the first that answers is the meeting point: a process that listens
 * on a later one moves there, and sends those who registered with it away.
 *
 * One loop over poll() does all of this. A stranger, or a rank that stalls, delays nobody else. */
#ifndef TW_TRANSPORT_MEETING_H
#define TW_TRANSPORT_MEETING_H

#include "thinwire.h"

/* Collective.
 *   sockets [nranks] gets a connected socket to each other rank; -1 for this one.
 *   ranks   of a job that holds this meeting: it fails when one of them is lost. NULL: none
 * Errors: as tw_transport_tcp; TW_ERR_TRANSPORT if one of `ranks` is lost. */
int tw__meet(const tw_tcp_params *params, int *sockets, const tw_transport *ranks);

#endif
