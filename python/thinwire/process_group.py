"""The ranks of a torch.distributed process group as a transport.

Each pair of ranks shares one TCP connection, used by Thinwire only: its messages never mix with
those of the script's backend (gloo, nccl or mpi). Ranks find each other through the store that the
script's init_process_group made. Every rank listens, publishes its address in the store, connects
to the ranks below it and accepts the ranks above it. Then the C library takes over the sockets, and
no Python runs for a message.

A rank listens on the interface that GLOO_SOCKET_IFNAME names, as gloo does. Without it, on the one
that routes to MASTER_ADDR.
"""
import array
import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import secrets
import selectors
import socket
import struct
import threading
import time

import torch
import torch.distributed as dist

from .errors import ParamError, StateError, TimeoutError, TransportError
from .group import Group, Transport, alone
from .library import check, lib

SIOCGIFADDR = 0x8915
OTHER_NETWORK = "192.0.2.1"     # reserved for documentation: nothing is sent to it
HANDSHAKE_SECONDS = 5.0         # that one handshake may take
MOST_STRANGERS = 64             # handshakes with others than ranks; the oldest gives way
ACK, READY = b"y", b"r"
_LOOK = 0.02            # seconds between looks at what the store's thread has read
_SLOWEST_LOOK = 0.1     # seconds between looks at the store, after a while
_PAUSE = 0.05           # seconds before an attempt is repeated
_HELLO = struct.Struct("!32sII")    # the job's secret, the rank that connects, the rank it wants
_last = {}              # ranks of a group: the secret of their last meeting


# ---- addresses

def _address_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            raise TransportError(f"GLOO_SOCKET_IFNAME: interface {interface!r} has no IPv4 "
                                 f"address: {error.strerror}")
    return socket.inet_ntoa(answer[20:24])


def _address_towards(host):
    """This machine's address in packets to host; None without a route."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return probe.getsockname()[0]
    except OSError:
        return None


def _own_addresses():
    """Addresses of this rank on the job's network, the likeliest first. MASTER_ADDR tells which
    network that is, unless it is missing, or a name that is a loopback address on its own host."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return [_address_of(interface)]
    master = os.environ.get("MASTER_ADDR", "")
    found = [_address_towards(master or "127.0.0.1")]
    if found[0] is None or _is_loopback(found[0]) and not _is_loopback(master):
        found += [_address_towards(OTHER_NETWORK), "127.0.0.1"]
    return list(dict.fromkeys(address for address in found if address is not None))


def _is_loopback(host):
    return host in ("localhost", "::1") or host.startswith("127.")


def _own_host():
    """A name or an address by which other hosts find this one."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        return name
    except OSError:     # in containers not even this host may know its name
        addresses = _own_addresses()
        return next((one for one in addresses if not one.startswith("127.")), addresses[0])


def _listen(address, nranks):
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.bind(where)
        listener.listen(max(nranks, 128))
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


# ---- connections

class _StoreThread(threading.Thread):
    """Publishes this rank's contact in the store and follows those of the ranks below. A contact
    says where a rank listens; that of rank 0 has the secret of the meeting too. A thread, since a
    store whose host is stopped does not answer. It asks with add(), which never waits for a key."""

    def __init__(self, store, rank, contact):
        super().__init__(daemon=True, name="thinwire store")
        self.store, self.rank, self.contact = store, rank, contact
        self.contacts, self.versions = {}, {}     # by rank
        self.error, self.ended = None, threading.Event()
        self.start()

    def run(self):
        try:
            self.store.set(f"rank{self.rank}", json.dumps(self.contact))
            for counter in (f"version{self.rank}", "changes"):
                self.store.add(counter, 1)
            pause, seen = 0.01, None
            while not self.ended.wait(pause):
                changes = self.store.add("changes", 0)
                pause = 0.01 if changes != seen else min(2 * pause, _SLOWEST_LOOK)
                if changes != seen:
                    self._read()
                seen = changes
        except Exception as error:      # the meeting raises it
            self.error = error

    def _read(self):
        for peer in range(self.rank):
            version = self.store.add(f"version{peer}", 0)
            if version != self.versions.get(peer, 0):
                self.versions[peer] = version
                self.contacts[peer] = json.loads(self.store.get(f"rank{peer}"))

    def end(self):
        self.ended.set()
        self.join(_PAUSE)       # it may be stuck


class _Handshakes:
    """Sockets in use, served side by side. Each has a generator, which yields the event that it
    waits for. An OSError in it closes the socket."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.running = {}       # {socket: (generator, deadline)}, the oldest first

    def add(self, one, steps, deadline):
        one.setblocking(False)
        self.running[one] = steps, deadline
        self.selector.register(one, selectors.EVENT_READ)
        self._advance(one)

    def _advance(self, one):
        try:
            self.selector.modify(one, next(self.running[one][0]))
        except StopIteration:
            self.release(one)
        except OSError:
            self.drop(one)

    def extend(self, one, deadline):
        self.running[one] = self.running[one][0], deadline

    def serve(self, seconds):
        """Waits for events and handles them. Drops what is past its deadline."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj in self.running:         # not dropped by another one's step
                self._advance(key.fileobj)
        now = time.monotonic()
        for one in [one for one, (_, deadline) in self.running.items() if deadline <= now]:
            self.drop(one)

    def release(self, one):
        """Forgets a socket, which stays open."""
        if self.running.pop(one, None) is not None:
            self.selector.unregister(one)

    def drop(self, one):
        self.release(one)
        one.close()

    def close(self):
        for one in list(self.running):
            self.drop(one)
        self.selector.close()


class _Rendezvous:
    """All ranks of a job connect to each other. Collective.

    Rank 0 makes a secret for each meeting and publishes it with its address. A rank that starts
    again, or in place of another, publishes a new address and meets those that still wait. Ranks
    that are connected to all others tell them so. The meeting is over when all have said it.

    last: the secret of the meeting before, which is over.
    """

    def __init__(self, store, rank, nranks, timeout, last=None):
        self.store, self.rank, self.nranks, self.last = store, rank, nranks, last
        self.deadline, self.timeout = time.monotonic() + timeout, timeout
        self.secret = secrets.token_hex(16) if rank == 0 else None
        self.handshakes = _Handshakes()
        self.attempts = {}      # by rank: sockets, contact, time of its beginning
        self.sockets = {}       # by rank
        self.told, self.ready = set(), set()    # ranks that we told, or that told us
        self.closed = {}        # by rank that told us: when it closed its connection
        self.met = set()        # ranks that were connected once
        self.strangers = {}     # accepted sockets before the end of their handshake, oldest first
        self.errors = {}        # by rank: why its last attempt failed

    def connect_all(self):
        """Returns {rank: socket} of all other ranks."""
        reader, at = None, []
        try:
            for address in _own_addresses():
                listener = _listen(address, self.nranks)
                at.append(listener.getsockname()[:2])
                self.handshakes.add(listener, self._accept(listener), math.inf)
            reader = _StoreThread(self.store, self.rank, {"at": at, "secret": self.secret})
            while len(self.ready) < self.nranks - 1:
                self._check(reader)
                self._lose_closed()
                self._follow(reader.contacts)
                self.handshakes.serve(_LOOK)
                self._tell()
        except BaseException:
            for peer in list(self.sockets):
                self._lose(peer)
            raise
        finally:
            for one in self.sockets.values():
                self.handshakes.release(one)
            self.handshakes.close()
            if reader is not None:
                reader.end()
        return self.sockets

    def _check(self, reader):
        if reader.error is None and time.monotonic() < self.deadline:
            return
        others = set(range(self.nranks)) - {self.rank}
        missing = others - self.met or others - set(self.sockets) or others - self.ready
        if 0 in missing:        # without its secret the others cannot meet
            missing = {0}
        names = ", ".join(map(str, sorted(missing)))
        if reader.error is not None:
            raise TimeoutError(f"rank {names} is missing, and the store of the process group has "
                               f"failed: {_first_line(reader.error)}; is the process that holds it "
                               "dead? Often that is rank 0")
        tried = "".join(f" {error}." for peer, error in self.errors.items() if peer in missing)
        raise TimeoutError(f"no answer within {self.timeout:g} s from rank {names}; is it stopped "
                           "or dead?" + (f"{tried} GLOO_SOCKET_IFNAME names the network interface "
                                         "to use" if tried else ""))

    # ---- the ranks below

    def _follow(self, contacts):
        """Connects to the ranks below, where they are now. While rank 0 is connected its secret is
        valid, even if it has published the next one: then this meeting is nearly over."""
        if self.rank > 0 and 0 not in self.sockets:
            secret = contacts[0]["secret"] if 0 in contacts else None
            if secret != self.secret and secret != self.last:
                self._begin_again(secret)
        for peer in range(self.rank):
            if self.secret is not None and peer not in self.sockets and peer in contacts:
                self._attempt(peer, contacts[peer])

    def _begin_again(self, secret):
        """Rank 0 has started a new meeting."""
        for peer in list(self.sockets):
            self._lose(peer)
        for peer in list(self.attempts):
            self._end_attempts(peer)
        for one in list(self.strangers):
            self.handshakes.drop(one)
        self.secret = secret

    def _attempt(self, peer, contact):
        """Tries all addresses of a peer side by side, again if its contact changes."""
        sockets, before, since = self.attempts.get(peer, ((), None, 0.0))
        waits = any(one in self.handshakes.running for one in sockets)
        if contact is before and (waits or time.monotonic() - since < _PAUSE):
            return
        self._end_attempts(peer)
        self.attempts[peer] = sockets, _, _ = [], contact, time.monotonic()
        for address, port in contact["at"]:
            try:
                where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                one = socket.socket(*where[:2])
            except OSError as error:
                self._note(peer, (address, port), error)
                continue
            sockets.append(one)
            self.handshakes.add(one, self._connect(one, where[4], peer),
                                time.monotonic() + HANDSHAKE_SECONDS)

    def _end_attempts(self, peer, but=None):
        for one in self.attempts.pop(peer, ((),))[0]:
            if one is not but:
                self.handshakes.drop(one)

    def _note(self, peer, where, error):
        self.errors[peer] = f"Rank {peer} at {where[0]}, port {where[1]}: {error.strerror}"

    def _connect(self, one, where, peer):
        try:
            error = one.connect_ex(where)
            if error == errno.EINPROGRESS:
                yield selectors.EVENT_WRITE
                error = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            one.sendall(_HELLO.pack(self.secret.encode(), self.rank, peer))
            if (yield from _receive(one, 1)) != ACK:
                raise ConnectionError(errno.EPROTO, "another program answers")
            one.sendall(ACK)        # the peer keeps this attempt, and no other
        except OSError as error:
            self._note(peer, where, error)
            raise
        self._end_attempts(peer, but=one)
        yield from self._keep(peer, one)

    # ---- the ranks above

    def _accept(self, listener):
        while True:
            yield selectors.EVENT_READ
            try:
                new = listener.accept()[0]
            except (BlockingIOError, ConnectionError):
                continue
            except OSError:         # no descriptor is free
                time.sleep(_PAUSE)
                continue
            if len(self.strangers) == self.nranks + MOST_STRANGERS:
                self.handshakes.drop(self.strangers.pop(next(iter(self.strangers))))
            self.strangers[new] = new
            self.handshakes.add(new, self._identify(new), time.monotonic() + HANDSHAKE_SECONDS)

    def _identify(self, new):
        """Keeps a connection from a rank of this job; closes all others."""
        try:
            secret, peer, wanted = _HELLO.unpack((yield from _receive(new, _HELLO.size)))
            if self.secret is None or secret != self.secret.encode() \
                    or not wanted == self.rank < peer < self.nranks:
                raise ConnectionError("not a rank that is expected")
            new.sendall(ACK)
            if (yield from _receive(new, 1)) != ACK:
                raise ConnectionError("the peer gave this attempt up and will try again")
        finally:
            self.strangers.pop(new, None)
        yield from self._keep(peer, new)

    # ---- all ranks

    def _keep(self, peer, one):
        """Replaces an earlier connection of the peer. Waits until the peer is ready."""
        self._lose(peer)
        self.sockets[peer] = one
        self.met.add(peer)
        self.handshakes.extend(one, math.inf)
        try:
            if (yield from _receive(one, 1)) != READY:
                raise ConnectionError("not a rank of this job")
        except OSError:
            self._lose(peer)
            raise
        self.ready.add(peer)
        yield selectors.EVENT_READ      # for this rank the meeting is over, or it gave up
        if _is_closed(one):
            self.closed[peer] = time.monotonic()

    def _lose_closed(self):
        """Forgets ranks that have closed their connection. If their meeting is over, so is ours as
        soon as the last words of the others are here: they get some time."""
        for peer, since in list(self.closed.items()):
            if time.monotonic() - since > _PAUSE:
                self._lose(peer)

    def _lose(self, peer):
        self.closed.pop(peer, None)
        if peer in self.sockets:
            self.handshakes.drop(self.sockets.pop(peer))
            self.told.discard(peer)
            self.ready.discard(peer)

    def _tell(self):
        """Tells the others once this rank is connected to all."""
        if len(self.sockets) < self.nranks - 1:
            return
        for peer in set(self.sockets) - self.told:
            try:
                self.sockets[peer].sendall(READY)
                self.told.add(peer)
            except OSError:
                self._lose(peer)


def _receive(connection, size):
    """A step of a handshake: bytes from a socket that does not block."""
    data = b""
    while len(data) < size:
        yield selectors.EVENT_READ
        try:
            part = connection.recv(size - len(data))
        except BlockingIOError:
            continue
        if not part:
            raise ConnectionError(errno.ECONNRESET, "the connection was closed")
        data += part
    return data


def _is_closed(connection):
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _first_line(error):
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _tcp_store(host, port, is_master):
    """A TCPStore without libuv: Debian 13's torch 2.6 makes libuv the default and is built without
    it. Old versions (1.13) do not know the argument."""
    options = {"is_master": is_master, "wait_for_workers": False}
    try:
        return dist.TCPStore(host, port, use_libuv=False, **options)
    except TypeError:
        return dist.TCPStore(host, port, **options)


def _store_for(group):
    """The store of the script's process group. With mpi there is none: the first rank makes one."""
    store = dist.distributed_c10d._get_default_store()
    if store is not None:
        return store
    first, where = dist.get_rank(group) == 0, [None]
    if first:
        store = _tcp_store("127.0.0.1", 0, True)     # even without /etc/hosts
        where = [(_own_host(), store.port)]
    dist.broadcast_object_list(where, src=ranks_of(group)[0], group=group)
    return store if first else _tcp_store(*where[0], False)


def ranks_of(group):
    """The ranks of a process group, as numbered in the default group."""
    if group is None or group is dist.group.WORLD:
        return list(range(dist.get_world_size()))
    return [dist.get_global_rank(group, rank) for rank in range(dist.get_world_size(group))]


def timeout_of(group):
    """Seconds that a process group itself waits for other ranks; None if it does not say, as that
    of mpi."""
    if not dist.is_initialized():
        return None
    group = group or dist.group.WORLD
    if hasattr(group, "_get_backend"):      # torch 2
        device = "cuda" if "nccl" in str(dist.get_backend(group)) else "cpu"
        with contextlib.suppress(RuntimeError):
            group = group._get_backend(torch.device(device))
    options = getattr(group, "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout.total_seconds() if timeout else None


# ---- the transport

class _Sockets(Transport):
    """A transport over connections of a rendezvous."""

    def __init__(self, meeting):
        self.timeout, self.sockets = meeting.timeout, meeting.connect_all()
        try:
            super().__init__(self._make(meeting.rank, meeting.nranks))
        except BaseException:
            self._close_sockets()
            raise

    def _make(self, rank, nranks):
        """Gives duplicates of the sockets to the library, which closes them. abort() uses ours."""
        handle, copies = ctypes.c_void_p(), {}
        try:
            for peer, one in self.sockets.items():
                one.setblocking(False)
                copies[peer] = one.dup()
            sockets = (ctypes.c_int * nranks)(*(copies[peer].fileno() if peer != rank else -1
                                                for peer in range(nranks)))
            check(lib.tw_transport_sockets(handle, sockets, rank, nranks))
        except BaseException:
            for copy in copies.values():
                copy.close()
            raise
        for copy in copies.values():
            copy.detach()
        return handle

    def abort(self):
        """Shuts all connections down: calls that wait for this rank, or on it, fail at once."""
        for one in self.sockets.values():
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:     # the peer was first
                pass

    def renumber(self, before):
        super().renumber(before)
        kept = {rank: self.sockets.pop(old) for rank, old in enumerate(before)
                if old in self.sockets}
        self._close_sockets()       # those of lost ranks
        self.sockets = kept

    def close(self):
        super().close()
        self._close_sockets()

    def _close_sockets(self):
        for one in self.sockets.values():
            one.close()


class ProcessGroupTransport(_Sockets):
    """A transport between the ranks of a process group. Creation is collective."""

    def __init__(self, group, timeout):
        rank, nranks = dist.get_rank(group), dist.get_world_size(group)
        key = "-".join(map(str, ranks_of(group)))
        self.store = dist.PrefixStore(f"thinwire/{key}", _store_for(group))
        self.flags = None       # a group of its own, for union()
        meeting = _Rendezvous(self.store, rank, nranks, timeout, _last.get(key))
        super().__init__(meeting)
        self.secret = _last[key] = meeting.secret

    def prepare_union(self, most):
        """Connects the ranks for union() of lists with up to `most` elements. Collective."""
        store = dist.PrefixStore(self.secret, self.store)
        links = _Sockets(_Rendezvous(store, self.rank, self.nranks, self.timeout))
        try:
            self.flags = Group(links, "dense", 1.0, result="sum", timeout=self.timeout)
            self.flags.add(most)
            self.flags.open()
        except BaseException:
            self._close_flags(links)
            raise
        self.most = most

    def union(self, used):
        """Whether any rank says so, for each of a list. Collective. The library's allreduce finds
        out who is late, and tells all ranks."""
        flags = array.array("f", used) + array.array("f", [0.0]) * (self.most - len(used))
        self.flags.allreduce(0, flags)
        return [flag > 0 for flag in flags[:len(used)]]

    def abort(self):
        super().abort()
        if self.flags is not None:
            self.flags.transport.abort()

    def close(self):
        super().close()
        if self.flags is not None:
            self._close_flags(self.flags.transport)

    def _close_flags(self, links):
        if self.flags is not None:
            self.flags.close()
        links.close()


def transport_of(group, timeout):
    """A transport between the ranks of a process group. Collective. A script that made no process
    group and was started alone is a job of one rank."""
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise StateError("WORLD_SIZE is more than 1, and there is no process group; call "
                             "torch.distributed.init_process_group first")
        return alone()
    if dist.get_rank(group) < 0:
        raise ParamError(f"process_group: rank {dist.get_rank()} is not in it; only its ranks may "
                         "call")
    if dist.get_world_size(group) == 1:
        return alone()
    return ProcessGroupTransport(group, timeout)
