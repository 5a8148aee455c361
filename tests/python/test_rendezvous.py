"""Ranks find each other, whoever else connects to their ports. Missing ranks are named."""
import contextlib
import json
import os
import random
import resource
import socket
import threading
import time
from unittest import mock

from ranks import dist, main, run
from thinwire import process_group
from thinwire.errors import TimeoutError, TransportError
from thinwire.process_group import (ACK, READY, _HELLO, _own_addresses, _own_host, _Rendezvous,
                                    _tcp_store, transport_of)


class Rank(threading.Thread):
    """A rank of a meeting. result: what connect_all() returned or raised."""

    def __init__(self, store, rank, nranks, timeout=20.0, last=None):
        super().__init__(daemon=True)
        self.meeting, self.result = (store, rank, nranks, timeout, last), None
        self.start()

    def run(self):
        begin = time.monotonic()
        try:
            self.meeting = _Rendezvous(*self.meeting)
            self.result = self.meeting.connect_all()
            for one in self.result.values():
                one.settimeout(5)
        except Exception as error:
            self.result = error
        self.seconds = time.monotonic() - begin

    def end(self):
        self.join(40)
        return self.result


def connect(nranks, store, absent=(), timeout=20.0):
    """What connect_all() returned or raised on each rank. Ranks are threads."""
    threads = [Rank(store, rank, nranks, timeout) if rank not in absent else None
               for rank in range(nranks)]
    return [thread.end() if thread else None for thread in threads]


def check_sockets(results):
    """Every socket leads to the rank that it is listed under."""
    for rank, sockets in enumerate(results):
        assert isinstance(sockets, dict), sockets
        for peer, one in sockets.items():
            one.sendall(bytes([rank]))
    for rank, sockets in enumerate(results):
        assert sorted(sockets) == [peer for peer in range(len(results)) if peer != rank]
        for peer, one in sockets.items():
            assert one.recv(1) == bytes([peer])


def is_late(error, rank):
    return isinstance(error, TimeoutError) and f"from rank {rank};" in str(error)


def publish(store, rank, secret, *at):
    """What a rank of an earlier job may have left in the store."""
    store.set(f"rank{rank}", json.dumps({"at": at, "secret": secret}))
    store.add(f"version{rank}", 1)
    store.add("changes", 1)


def contact_of(store, rank):
    return json.loads(store.get(f"rank{rank}"))


def port_of(store, rank):
    return contact_of(store, rank)["at"][0][1]


def test_all_connect():
    for nranks in (2, 3, 8):
        check_sockets(connect(nranks, dist.HashStore()))


def answer_to(store, hello):
    """What rank 0 answers to these bytes; nothing if it closes the connection."""
    with socket.create_connection(("127.0.0.1", port_of(store, 0)), timeout=10) as client:
        try:
            client.sendall(hello)
            client.shutdown(socket.SHUT_WR)
            return client.recv(1)
        except OSError:     # closed before all bytes were read
            return b""


def test_strangers():
    """Rank 0 refuses nonsense, a wrong secret, ranks that do not exist and a peer that wants
    another rank. A peer that gives up in mid-handshake may come again."""
    store = dist.HashStore()
    first = Rank(store, 0, 2)
    secret = contact_of(store, 0)["secret"].encode()
    for hello in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, _HELLO.pack(b"?" * 32, 1, 0),
                  _HELLO.pack(secret, 0, 0), _HELLO.pack(secret, 77, 0),
                  _HELLO.pack(secret, 1, 1)):
        assert answer_to(store, hello) == b"", hello
    assert answer_to(store, _HELLO.pack(secret, 1, 0)) == ACK
    second = Rank(store, 1, 2)
    check_sockets([first.end(), second.end()])


def any_bytes(rng, secret):
    """What a stranger may send in a handshake with rank 1 of 4: often nearly right. Returns the
    bytes, and the rank that it becomes."""
    peer, wanted = rng.choice((2, 3, 3, rng.randrange(6))), rng.choice((1, 1, 1, 2))
    data = bytearray(_HELLO.pack(secret, peer, wanted) + rng.choice((ACK, ACK, b"", READY)) +
                     rng.choice((READY, READY, b"", ACK, b"more than that")))
    for _ in range(rng.choice((0, 0, 1, 2))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    del data[rng.choice((len(data), rng.randrange(len(data) + 1))):]
    words = bytes(data)
    right = words[:_HELLO.size + 1] == _HELLO.pack(secret, peer, 1) + ACK and peer in (2, 3)
    return words, peer if right else None


def meet_strangers(rng):
    """Handshakes of some strangers, side by side, in pieces and in any order."""
    meeting = _Rendezvous(None, 1, 4, 20.0)
    meeting.secret, ends = "s" * 32, {}
    for _ in range(rng.randrange(1, 5)):
        words, peer = any_bytes(rng, b"s" * 32)
        own, other = socket.socketpair()
        ends[own] = [other, words, peer]
        meeting.strangers[own] = own
        meeting.handshakes.add(own, meeting._identify(own), time.monotonic() + 5)
    while any(words for _, words, _ in ends.values()):
        end = rng.choice(list(ends.values()))
        size = rng.randrange(len(end[1]) + 1)
        with contextlib.suppress(OSError):      # it was refused
            end[0].sendall(end[1][:size])
        end[1] = end[1][size:]
        if not end[1] and rng.randrange(4) == 0:
            end[0].close()
        for _ in range(rng.randrange(4)):
            meeting.handshakes.serve(0)
            meeting._tell()
    for _ in range(8):
        meeting.handshakes.serve(0)
    for peer, one in meeting.sockets.items():
        assert ends[one][2] == peer and one.fileno() >= 0
    assert meeting.ready <= set(meeting.sockets)
    assert all(one.fileno() >= 0 for one in meeting.handshakes.running)
    for one, (other, _, _) in ends.items():
        assert one in meeting.sockets.values() or one in meeting.strangers or one.fileno() < 0
        other.close()
    for _ in range(8):
        meeting.handshakes.serve(0)
    assert not meeting.strangers
    for one in meeting.sockets.values():
        meeting.handshakes.release(one)
        one.close()
    assert not meeting.handshakes.running
    meeting.handshakes.close()


def test_any_bytes():
    """2,000 handshakes with random faults: only who knows the secret becomes a rank, and every
    other connection is closed."""
    rng = random.Random(1)
    for _ in range(800):
        meet_strangers(rng)


def test_busy_port():
    """Another program has the port at the first address: the next address is tried."""
    store, other = dist.HashStore(), socket.create_server(("127.0.0.2", 0))
    with other, socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        publish(store, 0, "s" * 32, other.getsockname(), listener.getsockname())
        rank = Rank(store, 1, 2)
        peer, _ = listener.accept()
        assert _HELLO.unpack(peer.recv(_HELLO.size)) == (b"s" * 32, 1, 0)
        peer.sendall(ACK)
        assert peer.recv(2, socket.MSG_WAITALL) == ACK + READY
        peer.sendall(READY)
        assert list(rank.end()) == [0]


def test_absent():
    """The missing rank is named, and no other, within the deadline."""
    for absent in (0, 2):
        ranks = {rank: Rank(store, rank, 4, 1.0) for store in [dist.HashStore()]
                 for rank in range(4) if rank != absent}
        for thread in ranks.values():
            assert is_late(thread.end(), absent), thread.result
            assert thread.seconds < 1.2, thread.seconds


def test_rank_that_left():
    """Rank 1 was there and is gone. Rank 2, which never came, is named alone."""
    store = dist.HashStore()
    first, second = Rank(store, 0, 3, 1.5), Rank(store, 1, 3, 0.5)
    assert is_late(second.end(), 2), second.result
    assert is_late(first.end(), 2), first.result


@contextlib.contextmanager
def disturbers(store):
    """80 clients of rank 0 that say nothing, and one that sends a byte from time to time."""
    ended, clients = threading.Event(), []
    for _ in range(80):
        clients.append(socket.create_connection(("127.0.0.1", port_of(store, 0)), timeout=5))

    def drip():
        while not ended.wait(0.1):
            with contextlib.suppress(OSError):
                clients[-1].sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for one in clients:
            one.close()


def test_silent_strangers():
    """Clients that say little delay neither the meeting nor its deadline."""
    store = dist.HashStore()
    first = Rank(store, 0, 2, 15.0)
    with disturbers(store):
        begin, second = time.monotonic(), Rank(store, 1, 2, 15.0)
        check_sockets([first.end(), second.end()])
        assert time.monotonic() - begin < 2
    store = dist.HashStore()
    first = Rank(store, 0, 2, 1.0)
    with disturbers(store):
        assert is_late(first.end(), 1), first.result
        assert first.seconds < 1.2, first.seconds


def test_one_deadline_for_a_hello():
    """A client that sends a byte from time to time is closed in the end."""
    store = dist.HashStore()
    with mock.patch.object(process_group, "HANDSHAKE_SECONDS", 0.5):
        first, begin = Rank(store, 0, 2), time.monotonic()
        with socket.create_connection(("127.0.0.1", port_of(store, 0))) as client:
            client.settimeout(0.1)
            try:
                while time.monotonic() - begin < 2:
                    client.sendall(b"x")
                    with contextlib.suppress(socket.timeout):
                        assert client.recv(1) == b""
                        break
            except OSError:
                pass
        assert 0.4 < time.monotonic() - begin < 1, time.monotonic() - begin
        second = Rank(store, 1, 2)
        check_sockets([first.end(), second.end()])


def test_job_interface_only():
    """A rank of a job on this host listens on the loopback address of MASTER_ADDR alone."""
    with mock.patch.dict(os.environ, MASTER_ADDR="127.0.0.1"):
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        store = dist.HashStore()
        first = Rank(store, 0, 2, 0.5)
        assert [address for address, _ in contact_of(store, 0)["at"]] == ["127.0.0.1"]
        try:
            socket.create_connection(("127.0.0.2", port_of(store, 0)), timeout=1).close()
            raise AssertionError("it listens on other addresses too")
        except ConnectionRefusedError:
            pass
        first.end()


def test_no_descriptor_left():
    """accept() fails for want of descriptors: the meeting waits without using the CPU, and goes on
    when there are some."""
    store, limits = dist.HashStore(), resource.getrlimit(resource.RLIMIT_NOFILE)
    first, client = Rank(store, 0, 2), socket.socket()
    port = port_of(store, 0)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        client.connect(("127.0.0.1", port))
        begin = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - begin
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    client.close()
    assert used < 0.05, f"{used} s of CPU time"
    second = Rank(store, 1, 2)
    check_sockets([first.end(), second.end()])


def test_replacement():
    """A process that takes the place of rank 1 meets survivors, which have met before."""
    store = dist.HashStore()
    before = [Rank(store, rank, 3) for rank in range(3)]
    check_sockets([rank.end() for rank in before])
    lasts = [before[0].meeting.secret, None, before[2].meeting.secret]
    for first in range(3):      # whoever comes first
        order = sorted(range(3), key=lambda rank: rank != first)
        ranks = {}
        for rank in order:
            ranks[rank] = Rank(store, rank, 3, last=lasts[rank])
            time.sleep(0.1)
        check_sockets([ranks[rank].end() for rank in range(3)])
        assert ranks[0].meeting.secret == ranks[1].meeting.secret != lasts[0]
        lasts = [ranks[0].meeting.secret, None, ranks[2].meeting.secret]


def test_rank_comes_again():
    """A rank that has given up meets those that still wait for it."""
    for early in range(3):
        store = dist.HashStore()
        ranks = {rank: Rank(store, rank, 3, 0.3 if rank == early else 20.0)
                 for rank in range(3) if rank != (early + 1) % 3}
        assert is_late(ranks[early].end(), (early + 1) % 3), ranks[early].result
        for rank in early, (early + 1) % 3:
            ranks[rank] = Rank(store, rank, 3)
        check_sockets([ranks[rank].end() for rank in range(3)])


def test_rank_0_gives_up_after_all_are_connected():
    """Rank 2 is connected but does not say so, and leaves. Rank 0 gives up and begins a new
    meeting. Rank 1 comes to it."""
    store = dist.HashStore()
    first, second = Rank(store, 0, 3, 0.5), Rank(store, 1, 3)
    secret = contact_of(store, 0)["secret"].encode()
    clients = []
    for peer in range(2):
        answer = b""
        while answer != ACK:        # rank 1 may not have read the secret yet
            one = socket.create_connection(("127.0.0.1", port_of(store, peer)))
            with contextlib.suppress(OSError):
                one.sendall(_HELLO.pack(secret, 2, peer))
                answer = one.recv(1)
        one.sendall(ACK)
        clients.append(one)
    assert [one.recv(1) for one in clients] == [READY] * 2
    assert is_late(first.end(), 2), first.result
    for one in clients:
        one.close()
    ranks = [Rank(store, 0, 3), second, Rank(store, 2, 3)]
    check_sockets([rank.end() for rank in ranks])


def test_stale_keys():
    """Rank 0 of an earlier job has left an address, at which a program accepts and says nothing.
    The new rank 0 comes later."""
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        publish(store, 0, "s" * 32, silent.getsockname())
        second, begin = Rank(store, 1, 2, 3.0), time.monotonic()
        time.sleep(0.3)
        first = Rank(store, 0, 2, 3.0)
        check_sockets([first.end(), second.end()])
        assert time.monotonic() - begin < 1.5


class Stuck:
    """A store whose host is stopped: it does not answer."""

    def set(self, *_):
        time.sleep(5)


class Broken:
    def set(self, *_):
        raise RuntimeError("Connection reset by peer")


def test_stuck_store():
    rank = Rank(Stuck(), 1, 2, 0.5)
    assert is_late(rank.end(), 0) and rank.seconds < 0.65, (rank.result, rank.seconds)
    error = Rank(Broken(), 1, 2, 5.0).end()
    assert isinstance(error, TimeoutError) and "reset by peer" in str(error), error


def failed_alone(rank, nranks):
    """Rank 1 fails before its first meeting and stays away. The next one takes place."""
    if rank == 0:
        begin = time.monotonic()
        try:
            transport_of(None, 0.5)
            assert False, "rank 1 did not come"
        except TimeoutError as error:
            assert is_late(error, 1), error
        assert time.monotonic() - begin < 0.65
    dist.barrier()
    for _ in range(2):
        transport_of(None, 5.0).close()


def test_one_rank_fails_before_the_meeting():
    run(failed_alone, 2)


def test_script_keeps_its_store_timeout():
    store = dist.HashStore()
    before = store.timeout
    check_sockets(connect(2, dist.PrefixStore("ours", store), timeout=2.0))
    assert store.timeout == before


def test_wrong_interface():
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere7"
    try:
        _own_addresses()
        raise AssertionError("an interface that does not exist was accepted")
    except TransportError as error:
        assert "GLOO_SOCKET_IFNAME" in str(error) and "nowhere7" in str(error)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    assert _own_addresses() == ["127.0.0.1"]


def test_unknown_host_name():
    """An address replaces the name of a host that does not know its own name."""
    with mock.patch("socket.gethostname", return_value="nowhere.invalid"):
        assert _own_host() == "127.0.0.1"       # of lo
    with mock.patch("socket.gethostname", return_value="127.0.0.2"):
        assert _own_host() == "127.0.0.2"


def without_libuv(host, port, is_master=False, wait_for_workers=True, use_libuv=True):
    """TCPStore of Debian 13's torch 2.6."""
    if use_libuv:
        raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")
    return host, port, is_master, wait_for_workers


def without_argument(host, port, is_master=False, wait_for_workers=True):
    """TCPStore of torch 1.13."""
    return host, port, is_master, wait_for_workers


def test_tcp_store():
    """A store is made with and without libuv, and by a torch that does not know the argument."""
    for kind in (without_libuv, without_argument):
        with mock.patch.object(dist, "TCPStore", kind):
            assert _tcp_store("host", 7, True) == ("host", 7, True, False)
    store = _tcp_store("127.0.0.1", 0, True)
    _tcp_store("127.0.0.1", store.port, False).set("key", "value")
    assert store.get("key") == b"value"


if __name__ == "__main__":
    main([test_all_connect, test_strangers, test_any_bytes, test_busy_port, test_absent,
          test_rank_that_left, test_silent_strangers, test_one_deadline_for_a_hello,
          test_job_interface_only,
          test_no_descriptor_left, test_replacement, test_rank_comes_again,
          test_rank_0_gives_up_after_all_are_connected, test_stale_keys, test_stuck_store,
          test_one_rank_fails_before_the_meeting,
          test_script_keeps_its_store_timeout, test_wrong_interface, test_unknown_host_name,
          test_tcp_store])
