"""The ranks of a torch.distributed process group as a transport.

Messages travel over gloo connections between the hosts of the group, set up through the store
that the script's init_process_group made: with gloo, nccl or mpi as the script's own backend, the
library's messages never mix with the script's. Torch's gloo receives can not be polled, so every
peer has a thread that receives, and the library's thread is woken when something came:

    library's thread   send -> pg.send (does not block)      recv, test, idle -> inbox
    thread of peer p   pg.recv, deliver to inbox, pg.recv, ...

A message is a head, {tag, bytes}, and its body, in one piece up to PIECE bytes and in a second one
beyond: gloo takes a message that is shorter than the buffer that waits for it.
"""
import ctypes
import socket
import struct
import threading
import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist

from . import library
from .errors import TransportError
from .group import Transport, alone
from .inbox import TAGS, Inbox, Request, move
from .library import check, lib

BYE, BYE_TOO = 100, 101     # tags of the last message of a connection, and of its answer
PIECE = 256 << 10
# What was given to gloo and may be under way still: beyond these the oldest is waited for.
MOST_SENDS, MOST_BYTES = 256, 32 << 20
FOREVER = timedelta(days=3650)
_HEAD = struct.Struct("=iq4x")
_opened = {}                # how many transports a set of ranks has made so far


class _Wires:
    """The calls of a custom transport, over a process group of gloo's."""

    def __init__(self, pg, rank, nranks, timeout):
        self.pg, self.rank, self.nranks = pg, rank, nranks
        self.timeout = timedelta(seconds=timeout)
        self.inbox = Inbox(nranks)
        self.requests, self.number = {}, 0
        self.under_way, self.bytes_under_way = deque(), 0
        self.sending = threading.Lock()
        self.said_bye = [False] * nranks
        self.threads = [threading.Thread(target=self._receive_all, args=(peer,), daemon=True,
                                         name=f"thinwire from rank {peer}")
                        for peer in range(nranks) if peer != rank]
        for thread in self.threads:
            thread.start()

    # ---- to others

    def _post(self, peer, tag, data, size):
        """Copies a message and gives it to gloo."""
        first = min(size, PIECE - _HEAD.size)
        head = torch.empty(_HEAD.size + first, dtype=torch.uint8)
        move(head.data_ptr(), _HEAD.pack(tag, size), _HEAD.size)
        move(head.data_ptr() + _HEAD.size, data, first)
        pieces = [head]
        if size > first:
            pieces.append(torch.empty(size - first, dtype=torch.uint8))
            move(pieces[1].data_ptr(), data + first, size - first)
        with self.sending:
            for piece in pieces:
                self.under_way.append((peer, piece, self.pg.send([piece], peer, 0)))
                self.bytes_under_way += piece.numel()
            self._collect()

    def _collect(self):
        """Lets go of old messages. Peers receive always, so the oldest is long through."""
        while len(self.under_way) > MOST_SENDS or self.bytes_under_way > MOST_BYTES:
            peer, piece, work = self.under_way.popleft()
            self.bytes_under_way -= piece.numel()
            try:
                work.wait(self.timeout)
            except RuntimeError as error:
                self.inbox.leave(peer, _why(error))

    # ---- from others

    def _receive_all(self, peer):
        piece = torch.empty(PIECE, dtype=torch.uint8)
        try:
            tag = 0
            while tag < TAGS:
                tag = self._receive(peer, piece)
            self.inbox.leave(peer, "it has ended its part of the job")
            if tag == BYE:
                self.say_bye(peer, BYE_TOO)
        except RuntimeError as error:
            self.inbox.leave(peer, _why(error))

    def _receive(self, peer, piece):
        self.pg.recv([piece], peer, 0).wait(FOREVER)
        tag, size = _HEAD.unpack(ctypes.string_at(piece.data_ptr(), _HEAD.size))
        first = min(size, PIECE - _HEAD.size)
        body = ctypes.string_at(piece.data_ptr() + _HEAD.size, first)
        if size > first:
            rest = torch.empty(size - first, dtype=torch.uint8)
            self.pg.recv([rest], peer, 0).wait(self.timeout)
            body += ctypes.string_at(rest.data_ptr(), size - first)
        if tag < TAGS:
            self.inbox.deliver(peer, tag, body)
        return tag

    def say_bye(self, peer, tag):
        if not self.said_bye[peer]:
            self.said_bye[peer] = True
            try:
                self._post(peer, tag, 0, 0)
            except RuntimeError as error:
                self.inbox.leave(peer, _why(error))

    # ---- the library's calls

    def _keep(self, request, handle):
        self.number += 1
        self.requests[self.number] = request
        handle[0] = self.number
        return 0

    def send(self, _, peer, tag, data, size, handle):
        if peer in self.inbox.gone:
            return _explain(self.inbox.gone[peer])
        try:
            self._post(peer, tag, data, size)
        except RuntimeError as error:
            self.inbox.leave(peer, _why(error))
            return _explain(_why(error))
        return self._keep(Request(capacity=size, done=True), handle)

    def recv(self, _, peer, tag, data, capacity, handle):
        request = Request(data, capacity)
        self.inbox.expect(peer, tag, request)
        return self._keep(request, handle)

    def test(self, _, number, size):
        request = self.requests[number]
        if not request.done:
            return 0
        del self.requests[number]
        size[0] = request.bytes
        return 1 if request.error is None else _explain(request.error)

    def cancel(self, _, number):
        self.inbox.forget(self.requests.pop(number))

    def idle(self, _, microseconds):
        _settle_thread()
        self.inbox.idle(microseconds * 1e-6)

    def close(self, _):
        """Says bye, and waits a little for the others' answers: their threads live on."""
        for peer in range(self.nranks):
            if peer != self.rank and peer not in self.inbox.gone:
                self.say_bye(peer, BYE)
        deadline = time.monotonic() + 1.0
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))


_settled = threading.local()


def _settle_thread():
    """Lets the library's thread keep its Python state between calls. To make one for each call
    costs ten times what the call does, most of it in the kernel."""
    if not hasattr(_settled, "yes"):
        _settled.yes = True
        ctypes.pythonapi.PyGILState_Ensure()


def _why(error):
    return str(error).strip().splitlines()[0]


def _explain(why):
    return lib.tw_transport_explain(b"%s", why.encode(errors="replace"))


def _store_for(group):
    """The store of the script's process group; where it has none (mpi), one on the first rank."""
    store = dist.distributed_c10d._get_default_store()
    if store is not None:
        return store
    first, where = dist.get_rank(group) == 0, [None]
    if first:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        where = [(socket.gethostname(), store.port)]
    dist.broadcast_object_list(where, src=ranks_of(group)[0], group=group)
    return store if first else dist.TCPStore(*where[0], is_master=False, wait_for_workers=False)


def ranks_of(group):
    """The ranks of a process group, as the default group counts them."""
    if group is None or group is dist.group.WORLD:
        return list(range(dist.get_world_size()))
    return [dist.get_global_rank(group, rank) for rank in range(dist.get_world_size(group))]


class ProcessGroupTransport(Transport):
    """Collective over the group's ranks."""

    def __init__(self, group, timeout):
        rank, nranks = dist.get_rank(group), dist.get_world_size(group)
        key = "-".join(map(str, ranks_of(group)))
        _opened[key] = _opened.get(key, 0) + 1
        store = dist.PrefixStore(f"thinwire/{key}/{_opened[key]}", _store_for(group))
        self.pg = dist.ProcessGroupGloo(store, rank, nranks, timedelta(seconds=timeout))
        self.wires = _Wires(self.pg, rank, nranks, timeout)
        self.calls = library.TransportCalls(
            b"process group", library.SEND(self.wires.send), library.RECV(self.wires.recv),
            library.TEST(self.wires.test), library.CANCEL(self.wires.cancel),
            library.IDLE(self.wires.idle), library.CLOSE(self.wires.close))
        handle = ctypes.c_void_p()
        check(lib.tw_transport_custom(handle, self.calls, None, rank, nranks))
        super().__init__(handle)

    def sum(self, counts):
        """A small tensor on the host becomes its sum over all ranks. Collective."""
        try:
            self.pg.allreduce([counts]).wait()
        except RuntimeError as error:
            time.sleep(0.1)         # the threads of the peers hear of it too
            gone = ", ".join(map(str, sorted(self.wires.inbox.gone))) or "unknown"
            raise TransportError(f"cannot sum over ranks; gone are: {gone}. {_why(error)}")

    def leave(self):
        """Tells the other ranks that this one does not go on: what waits for it fails at once,
        there and here."""
        for peer in range(self.nranks):
            if peer != self.rank:
                self.wires.say_bye(peer, BYE)
                self.wires.inbox.leave(peer, "this rank has closed its group")


def transport_of(group, timeout):
    """A transport between the ranks of a process group. Collective."""
    if dist.get_world_size(group) == 1:
        return alone()
    return ProcessGroupTransport(group, timeout)
