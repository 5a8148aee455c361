"""Ranks find each other whatever else knocks at their doors; who does not come is named."""
import json
import os
import socket
import threading
import time

from ranks import dist, main
from thinwire.errors import TransportError
from thinwire.process_group import YES, _HELLO, _Meeting, _own_addresses


def meet(nranks, store, absent=(), timeout=20.0):
    """What each rank's meeting returned or raised; ranks are threads."""
    results = [None] * nranks

    def play(rank):
        try:
            results[rank] = _Meeting(store, rank, nranks, timeout).hold()
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(nranks)
               if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def check_lines(results):
    """Every line leads to the rank that it is said to lead to."""
    for rank, lines in enumerate(results):
        for peer, line in lines.items():
            line.sendall(bytes([rank]))
    for rank, lines in enumerate(results):
        assert sorted(lines) == [peer for peer in range(len(results)) if peer != rank]
        for peer, line in lines.items():
            assert line.recv(1) == bytes([peer])


def test_all_meet():
    for nranks in (2, 3, 8):
        check_lines(meet(nranks, dist.HashStore()))


def knock(store, hello):
    """A stranger at the door of rank 0: it gets no answer, or is sent away."""
    port = json.loads(store.get("rank0"))[0]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        try:
            line.sendall(hello)
            line.shutdown(socket.SHUT_WR)
            return line.recv(1)
        except OSError:     # not even all of its words were heard
            return b""


def test_strangers():
    """Nonsense, a wrong secret, ranks that are none, one that wants another rank, and one that gives
    up in the middle."""
    store, answers = dist.HashStore(), []

    def pester():
        secret = store.get("secret")
        for hello in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, _HELLO.pack(b"?" * 32, 1, 0),
                      _HELLO.pack(secret, 0, 0), _HELLO.pack(secret, 77, 0),
                      _HELLO.pack(secret, 1, 1)):
            answers.append(knock(store, hello))
        answers.append(knock(store, _HELLO.pack(secret, 1, 0)))
        _Meeting(store, 1, 2, 20.0).hold()[0].sendall(b"hello")

    stranger = threading.Thread(target=pester)
    stranger.start()
    lines = meet(2, store, absent=(1,))[0]
    stranger.join()
    assert answers == [b""] * 6 + [YES], answers
    assert lines[1].recv(5) == b"hello"


def test_busy_door():
    """Another program has the port at the first address: the next one is tried."""
    store, other = dist.HashStore(), socket.create_server(("127.0.0.2", 0))
    with other, socket.create_server(("127.0.0.1", other.getsockname()[1])) as door:
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        store.set("rank0", json.dumps([door.getsockname()[1], ["127.0.0.2", "127.0.0.1"]]))
        store.set("secret", "s" * 32)
        caller = _Meeting(store, 1, 2, 20.0)
        thread = threading.Thread(target=caller.hold)
        thread.start()
        line, _ = door.accept()
        assert _HELLO.unpack(line.recv(_HELLO.size)) == (b"s" * 32, 1, 0)
        line.sendall(YES)
        assert line.recv(1) == YES
        thread.join()


def test_absent():
    begin, store = time.monotonic(), dist.HashStore()
    results = meet(4, store, absent=(2,), timeout=2.0)
    for rank in (0, 1, 3):
        assert isinstance(results[rank], TransportError), results
        assert "rank 2" in str(results[rank]), results
    assert time.monotonic() - begin < 10


def test_silent_strangers():
    """Who says nothing does not hold up the deadline."""
    store, ended = dist.HashStore(), threading.Event()

    def linger():
        port, lines = json.loads(store.get("rank0"))[0], []
        while not ended.wait(0.2):
            try:
                lines.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            except OSError:
                return

    stranger, begin = threading.Thread(target=linger), time.monotonic()
    stranger.start()
    error = meet(2, store, absent=(1,), timeout=1.0)[0]
    ended.set()
    stranger.join()
    assert isinstance(error, TransportError) and "rank 1" in str(error), error
    assert time.monotonic() - begin < 5


def test_store_is_the_scripts():
    """Its timeout stays what the script has set."""
    store = dist.HashStore()
    before = store.timeout
    check_lines(meet(2, dist.PrefixStore("ours", store), timeout=2.0))
    assert store.timeout == before


def test_wrong_interface():
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere7"
    try:
        _own_addresses()
        raise AssertionError("an interface that is not there was taken")
    except TransportError as error:
        assert "GLOO_SOCKET_IFNAME" in str(error) and "nowhere7" in str(error)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    assert _own_addresses() == ["127.0.0.1"]


if __name__ == "__main__":
    main([test_all_meet, test_strangers, test_busy_door, test_absent, test_silent_strangers,
          test_store_is_the_scripts, test_wrong_interface])
