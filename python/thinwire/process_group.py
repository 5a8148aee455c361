"""The ranks of a torch.distributed process group as a transport.

Ranks are joined by TCP connections of the library's own, so with gloo, nccl or mpi as the script's
backend its messages never mix with the script's. They find each other through the store that the
script's init_process_group made: every rank listens and writes down where, connects to the ranks
before it, and accepts those after it. Then the library has the sockets, and no Python runs for a
message.

A host's address is that of the interface that GLOO_SOCKET_IFNAME names, as for gloo; else the one
by which it reaches MASTER_ADDR, or others.
"""
import ctypes
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from datetime import timedelta

import torch.distributed as dist

from .errors import ParamError, TransportError
from .group import Transport, alone
from .library import check, lib

SIOCGIFADDR = 0x8915
ELSEWHERE = "192.0.2.1"     # reserved for documentation: nothing is sent there
PATIENCE = 5.0              # seconds for an answer, at both ends of one try
YES = b"y"
_HELLO = struct.Struct("!32sII")    # the job's secret, the caller's rank, whom it calls
_opened = {}                # how many transports a set of ranks has made so far


# ---- where ranks are

def _address_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            raise TransportError(f"GLOO_SOCKET_IFNAME: interface {interface!r} has no IPv4 "
                                 f"address: {error.strerror}")
    return socket.inet_ntoa(answer[20:24])


def _address_towards(host):
    """The address of this host that packets to another would carry, None where there is no way."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return probe.getsockname()[0]
    except OSError:
        return None


def _own_addresses():
    """What others may try, the likeliest first."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return [_address_of(interface)]
    ways = [_address_towards(os.environ.get("MASTER_ADDR", "localhost")),
            _address_towards(ELSEWHERE), "127.0.0.1"]
    return list(dict.fromkeys(way for way in ways if way is not None))


def _listen(nranks):
    """At the interface that was named, else at all."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return socket.create_server((_own_addresses()[0], 0), backlog=nranks)
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=nranks,
                                    dualstack_ipv6=True)
    except (OSError, ValueError):       # no IPv6 here
        return socket.create_server(("", 0), backlog=nranks)


# ---- connections

class _Meeting:
    """All ranks of a job connect to each other. Collective."""

    def __init__(self, store, rank, nranks, timeout):
        self.store, self.rank, self.nranks = store, rank, nranks
        self.deadline, self.timeout = time.monotonic() + timeout, timeout
        self.lines = {}     # rank: socket
        if rank == 0:
            store.set("secret", secrets.token_hex(16))

    def hold(self):
        try:
            with _listen(self.nranks) as door:
                port = door.getsockname()[1]
                self.store.set(f"rank{self.rank}", json.dumps([port, _own_addresses()]))
                self.secret = self._read("secret", 0)
                for peer in range(self.rank):
                    self.lines[peer] = self._call(peer)
                while len(self.lines) < self.nranks - 1:
                    self._answer(door)
        except BaseException:
            for line in self.lines.values():
                line.close()
            raise
        return self.lines

    def _left(self):
        return max(0.01, self.deadline - time.monotonic())

    def _read(self, key, peer):
        """What a peer has written into the store. The store's own timeout is the script's."""
        try:
            self.store.wait([key], timedelta(seconds=self._left()))
            return self.store.get(key)
        except RuntimeError as error:
            raise TransportError(f"rank {peer} has not come within {self.timeout:g} s; is it "
                                 f"stopped or dead? {str(error).strip().splitlines()[0]}")

    def _call(self, peer):
        """Tries all addresses of a peer until it says that it is the one."""
        port, addresses = json.loads(self._read(f"rank{peer}", peer))
        error = None
        while time.monotonic() < self.deadline:
            for address in addresses:
                try:
                    return self._try((address, port), peer)
                except OSError as failure:
                    error = failure
            time.sleep(0.05)
        raise TransportError(f"rank {peer} cannot be reached at {' or '.join(addresses)}, port "
                             f"{port}, within {self.timeout:g} s: {error}. GLOO_SOCKET_IFNAME "
                             "names the network interface to use")

    def _try(self, where, peer):
        """One connection; a peer that is busy with others answers a later one."""
        line = socket.create_connection(where, timeout=min(PATIENCE, self._left()))
        try:
            line.sendall(_HELLO.pack(self.secret, self.rank, peer))
            if line.recv(1) != YES:
                raise ConnectionError("something else answers there")
            line.sendall(YES)       # this try is the one that holds
            return line
        except BaseException:
            line.close()
            raise

    def _answer(self, door):
        """Accepts one of the ranks after this one; strangers are sent away."""
        door.settimeout(self._left())
        try:
            line, _ = door.accept()
        except OSError:
            line = None
        if time.monotonic() >= self.deadline:
            if line is not None:
                line.close()
            missing = sorted(set(range(self.rank + 1, self.nranks)) - set(self.lines))
            raise TransportError(f"nothing came from rank {', '.join(map(str, missing))} within "
                                 f"{self.timeout:g} s; is it stopped or dead?")
        if line is not None:
            self._welcome(line)

    def _welcome(self, line):
        try:
            line.settimeout(min(PATIENCE, self._left()))
            hello = _receive(line, _HELLO.size)
            secret, peer, called = _HELLO.unpack(hello)
            known = secret == self.secret and called == self.rank < peer < self.nranks
            if not known or peer in self.lines:
                raise ConnectionError("a stranger")
            line.sendall(YES)
            if line.recv(1) != YES:
                raise ConnectionError("it has given up, and will try again")
            self.lines[peer] = line
        except OSError:
            line.close()


def _receive(line, size):
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise ConnectionError("it has hung up")
        data += part
    return data


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


# ---- the transport

class ProcessGroupTransport(Transport):
    """Collective over the group's ranks."""

    def __init__(self, group, timeout):
        rank, nranks = dist.get_rank(group), dist.get_world_size(group)
        key = "-".join(map(str, ranks_of(group)))
        _opened[key] = _opened.get(key, 0) + 1
        self.store = dist.PrefixStore(f"thinwire/{key}/{_opened[key]}", _store_for(group))
        self.timeout, self.sums = timeout, None
        self.lines = _Meeting(self.store, rank, nranks, timeout).hold()
        try:
            super().__init__(self._lend(rank, nranks))
        except BaseException:
            self._close_lines()
            raise

    def _lend(self, rank, nranks):
        """Copies of the sockets to the library, which closes them; these here are for shutting
        down what it waits for."""
        handle, copies = ctypes.c_void_p(), {}
        try:
            for peer, line in self.lines.items():
                line.setblocking(False)
                copies[peer] = line.dup()
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

    def sum(self, counts):
        """A small tensor on the host becomes its sum over all ranks. Collective."""
        try:
            if self.sums is None:
                self.sums = dist.ProcessGroupGloo(self.store, self.rank, self.nranks,
                                                  timedelta(seconds=self.timeout))
            self.sums.allreduce([counts]).wait()
        except RuntimeError as error:
            time.sleep(0.1)         # until it has come through everywhere
            gone = ", ".join(str(peer) for peer in self.lines if self._is_gone(peer)) or "unknown"
            raise TransportError(f"cannot sum over ranks; gone are: {gone}. "
                                 f"{str(error).strip().splitlines()[0]}")

    def _is_gone(self, peer):
        try:
            return not self.lines[peer].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def leave(self):
        """Tells the other ranks that this one does not go on: what waits for it fails at once,
        there and here."""
        for line in self.lines.values():
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:     # it was the first to leave
                pass

    def close(self):
        super().close()
        self._close_lines()

    def _close_lines(self):
        for line in self.lines.values():
            line.close()


def transport_of(group, timeout):
    """A transport between the ranks of a process group. Collective."""
    if dist.get_rank(group) < 0:
        raise ParamError(f"process_group: rank {dist.get_rank()} is not in it; only its ranks may "
                         "call")
    if dist.get_world_size(group) == 1:
        return alone()
    return ProcessGroupTransport(group, timeout)
