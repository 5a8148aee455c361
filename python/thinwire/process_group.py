"""The ranks of a torch.distributed process group as a transport.

Each pair of ranks shares one TCP connection, used by Thinwire only: its messages never mix with
those of the script's backend (gloo, nccl or mpi). Ranks find each other through the store that the
script's init_process_group made. Every rank listens, publishes its address in the store, connects
to the ranks below it and accepts the ranks above it. Then the C library takes over the sockets, and
no Python runs for a message.

A rank's address is that of the interface that GLOO_SOCKET_IFNAME names, as for gloo. Without it,
the address that routes to MASTER_ADDR comes first, then the one that routes to other networks.
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

from .errors import ParamError, StateError, TransportError
from .group import Transport, alone
from .library import check, lib

SIOCGIFADDR = 0x8915
OTHER_NETWORK = "192.0.2.1"     # reserved for documentation: nothing is sent to it
HANDSHAKE_SECONDS = 5.0         # to wait for the other rank in one handshake
ACK = b"y"
_HELLO = struct.Struct("!32sII")    # the job's secret, the rank that connects, the rank it wants
_opened = {}                # ranks of a group: how many transports they have made


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
    """Addresses at which others may reach this rank, the likeliest first."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return [_address_of(interface)]
    found = [_address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1")),
             _address_towards(OTHER_NETWORK), "127.0.0.1"]
    return list(dict.fromkeys(address for address in found if address is not None))


def _own_host():
    """A name or an address by which other hosts find this one."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        return name
    except OSError:     # in containers not even this host may know its name
        addresses = _own_addresses()
        return next((one for one in addresses if not one.startswith("127.")), addresses[0])


def _listen(nranks):
    """Listens on the interface of GLOO_SOCKET_IFNAME, or on all."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return socket.create_server((_own_addresses()[0], 0), backlog=nranks)
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=nranks,
                                    dualstack_ipv6=True)
    except (OSError, ValueError):       # no IPv6
        return socket.create_server(("", 0), backlog=nranks)


# ---- connections

class _Rendezvous:
    """All ranks of a job connect to each other. Collective."""

    def __init__(self, store, rank, nranks, timeout):
        self.store, self.rank, self.nranks = store, rank, nranks
        self.deadline, self.timeout = time.monotonic() + timeout, timeout
        self.sockets = {}       # by rank
        if rank == 0:
            store.set("secret", secrets.token_hex(16))

    def connect_all(self):
        """Returns {rank: socket} of all other ranks."""
        try:
            with _listen(self.nranks) as listener:
                port = listener.getsockname()[1]
                self.store.set(f"rank{self.rank}", json.dumps([port, _own_addresses()]))
                self.secret = self._read("secret", 0)
                for peer in range(self.rank):
                    self.sockets[peer] = self._connect(peer)
                while len(self.sockets) < self.nranks - 1:
                    self._accept(listener)
        except BaseException:
            for one in self.sockets.values():
                one.close()
            raise
        return self.sockets

    def _left(self):
        return max(0.01, self.deadline - time.monotonic())

    def _read(self, key, peer):
        """The value that a peer has stored. Waits no longer than our deadline; the timeout of the
        script's store stays as it is."""
        try:
            self.store.wait([key], timedelta(seconds=self._left()))
            return self.store.get(key)
        except RuntimeError as error:
            raise TransportError(f"rank {peer} has not come within {self.timeout:g} s; is it "
                                 f"stopped or dead? {str(error).strip().splitlines()[0]}")

    def _connect(self, peer):
        """Tries all addresses of a peer until one handshake succeeds."""
        port, addresses = json.loads(self._read(f"rank{peer}", peer))
        error = None
        while time.monotonic() < self.deadline:
            for address in addresses:
                try:
                    return self._handshake((address, port), peer)
                except OSError as failure:
                    error = failure
            time.sleep(0.05)
        raise TransportError(f"rank {peer} cannot be reached at {' or '.join(addresses)}, port "
                             f"{port}, within {self.timeout:g} s: {error}. GLOO_SOCKET_IFNAME "
                             "names the network interface to use")

    def _handshake(self, address, peer):
        """One attempt. A peer that is busy with others answers a later one."""
        new = socket.create_connection(address, timeout=min(HANDSHAKE_SECONDS, self._left()))
        try:
            new.sendall(_HELLO.pack(self.secret, self.rank, peer))
            if new.recv(1) != ACK:
                raise ConnectionError("another program answers at this address")
            new.sendall(ACK)        # the peer keeps this attempt, and no earlier one
            return new
        except BaseException:
            new.close()
            raise

    def _accept(self, listener):
        """Accepts one of the ranks above this one."""
        listener.settimeout(self._left())
        try:
            new, _ = listener.accept()
        except OSError:
            new = None
        if time.monotonic() >= self.deadline:
            if new is not None:
                new.close()
            missing = sorted(set(range(self.rank + 1, self.nranks)) - set(self.sockets))
            raise TransportError(f"nothing came from rank {', '.join(map(str, missing))} within "
                                 f"{self.timeout:g} s; is it stopped or dead?")
        if new is not None:
            self._identify(new)

    def _identify(self, new):
        """Keeps a connection from a rank of this job; closes all others."""
        try:
            new.settimeout(min(HANDSHAKE_SECONDS, self._left()))
            secret, peer, wanted = _HELLO.unpack(_receive(new, _HELLO.size))
            known = secret == self.secret and wanted == self.rank < peer < self.nranks
            if not known or peer in self.sockets:
                raise ConnectionError("not a rank that is expected")
            new.sendall(ACK)
            if new.recv(1) != ACK:
                raise ConnectionError("the peer gave this attempt up and will try again")
            self.sockets[peer] = new
        except OSError:
            new.close()


def _receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


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


# ---- the transport

class ProcessGroupTransport(Transport):
    """A transport between the ranks of a process group. Creation is collective."""

    def __init__(self, group, timeout):
        rank, nranks = dist.get_rank(group), dist.get_world_size(group)
        key = "-".join(map(str, ranks_of(group)))
        _opened[key] = _opened.get(key, 0) + 1
        self.store = dist.PrefixStore(f"thinwire/{key}/{_opened[key]}", _store_for(group))
        self.timeout, self.gloo = timeout, None
        self.sockets = _Rendezvous(self.store, rank, nranks, timeout).connect_all()
        try:
            super().__init__(self._make(rank, nranks))
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

    def sum(self, counts):
        """Replaces a small tensor on the host by its sum over all ranks. Collective."""
        try:
            if self.gloo is None:
                self.gloo = dist.ProcessGroupGloo(self.store, self.rank, self.nranks,
                                                  timedelta(seconds=self.timeout))
            self.gloo.allreduce([counts]).wait()
        except RuntimeError as error:
            time.sleep(0.1)         # a dead rank's connections close a little later
            gone = ", ".join(str(peer) for peer in self.sockets if self._is_gone(peer)) or "unknown"
            raise TransportError(f"cannot sum over ranks; gone are: {gone}. "
                                 f"{str(error).strip().splitlines()[0]}")

    def _is_gone(self, peer):
        try:
            return not self.sockets[peer].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def abort(self):
        """Shuts all connections down: calls that wait for this rank, or on it, fail at once."""
        for one in self.sockets.values():
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:     # the peer was first
                pass

    def close(self):
        super().close()
        self._close_sockets()

    def _close_sockets(self):
        for one in self.sockets.values():
            one.close()


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
