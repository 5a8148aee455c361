"""Ranks find each other, whoever else connects to their ports. Missing ranks are named."""
import json
import os
import socket
import threading
import time
from unittest import mock

from ranks import dist, main
from thinwire.errors import TransportError
from thinwire.process_group import (ACK, _HELLO, _own_addresses, _own_host, _Rendezvous,
                                    _tcp_store)


def connect(nranks, store, absent=(), timeout=20.0):
    """What connect_all() returned or raised on each rank. Ranks are threads."""
    results = [None] * nranks

    def play(rank):
        try:
            results[rank] = _Rendezvous(store, rank, nranks, timeout).connect_all()
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(nranks)
               if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def check_sockets(results):
    """Every socket leads to the rank that it is listed under."""
    for rank, sockets in enumerate(results):
        for peer, one in sockets.items():
            one.sendall(bytes([rank]))
    for rank, sockets in enumerate(results):
        assert sorted(sockets) == [peer for peer in range(len(results)) if peer != rank]
        for peer, one in sockets.items():
            assert one.recv(1) == bytes([peer])


def test_all_connect():
    for nranks in (2, 3, 8):
        check_sockets(connect(nranks, dist.HashStore()))


def answer_to(store, hello):
    """What rank 0 answers to these bytes; nothing if it closes the connection."""
    port = json.loads(store.get("rank0"))[0]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        try:
            client.sendall(hello)
            client.shutdown(socket.SHUT_WR)
            return client.recv(1)
        except OSError:     # closed before all bytes were read
            return b""


def test_strangers():
    """Rank 0 refuses nonsense, a wrong secret, ranks that do not exist and a peer that wants
    another rank. A peer that gives up in mid-handshake may come again."""
    store, answers = dist.HashStore(), []

    def disturb():
        secret = store.get("secret")
        for hello in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, _HELLO.pack(b"?" * 32, 1, 0),
                      _HELLO.pack(secret, 0, 0), _HELLO.pack(secret, 77, 0),
                      _HELLO.pack(secret, 1, 1)):
            answers.append(answer_to(store, hello))
        answers.append(answer_to(store, _HELLO.pack(secret, 1, 0)))
        _Rendezvous(store, 1, 2, 20.0).connect_all()[0].sendall(b"hello")

    stranger = threading.Thread(target=disturb)
    stranger.start()
    sockets = connect(2, store, absent=(1,))[0]
    stranger.join()
    assert answers == [b""] * 6 + [ACK], answers
    assert sockets[1].recv(5) == b"hello"


def test_busy_port():
    """Another program has the port at the first address: the next address is tried."""
    store, other = dist.HashStore(), socket.create_server(("127.0.0.2", 0))
    with other, socket.create_server(("127.0.0.1", other.getsockname()[1])) as listener:
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        store.set("rank0", json.dumps([listener.getsockname()[1], ["127.0.0.2", "127.0.0.1"]]))
        store.set("secret", "s" * 32)
        thread = threading.Thread(target=_Rendezvous(store, 1, 2, 20.0).connect_all)
        thread.start()
        peer, _ = listener.accept()
        assert _HELLO.unpack(peer.recv(_HELLO.size)) == (b"s" * 32, 1, 0)
        peer.sendall(ACK)
        assert peer.recv(1) == ACK
        thread.join()


def test_absent():
    begin, store = time.monotonic(), dist.HashStore()
    results = connect(4, store, absent=(2,), timeout=2.0)
    for rank in (0, 1, 3):
        assert isinstance(results[rank], TransportError), results
        assert "rank 2" in str(results[rank]), results
    assert time.monotonic() - begin < 10


def test_silent_strangers():
    """Clients that say nothing do not delay the deadline."""
    store, ended = dist.HashStore(), threading.Event()

    def stay_silent():
        port, clients = json.loads(store.get("rank0"))[0], []
        while not ended.wait(0.2):
            try:
                clients.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            except OSError:
                return

    stranger, begin = threading.Thread(target=stay_silent), time.monotonic()
    stranger.start()
    error = connect(2, store, absent=(1,), timeout=1.0)[0]
    ended.set()
    stranger.join()
    assert isinstance(error, TransportError) and "rank 1" in str(error), error
    assert time.monotonic() - begin < 5


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
    main([test_all_connect, test_strangers, test_busy_port, test_absent, test_silent_strangers,
          test_script_keeps_its_store_timeout, test_wrong_interface, test_unknown_host_name,
          test_tcp_store])
