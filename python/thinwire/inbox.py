"""Inbox: where the threads of peers put messages, and the library's thread looks for them."""
import ctypes
import threading
from collections import deque

TAGS = 4
move = ctypes.PyDLL(None).memmove       # as ctypes.memmove, but does not let go of the GIL
move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
move.restype = ctypes.c_void_p


class Request:
    __slots__ = ("data", "capacity", "bytes", "error", "done", "queue")

    def __init__(self, data=None, capacity=0, done=False):
        self.data, self.capacity, self.done = data, capacity, done
        self.bytes, self.error, self.queue = capacity, None, None


class Inbox:
    """Messages that came, and receives that wait for them, for each peer and tag in order."""

    def __init__(self, nranks):
        self.lock = threading.Lock()
        self.bell = threading.Lock()    # free when there is news
        self.messages = [[deque() for _ in range(TAGS)] for _ in range(nranks)]
        self.waiting = [[deque() for _ in range(TAGS)] for _ in range(nranks)]
        self.gone = {}      # rank: why nothing comes from it any more

    def _ring(self):
        """With the lock held: only idle() takes the bell, so it is free or can be freed."""
        if self.bell.locked():
            self.bell.release()

    def idle(self, seconds):
        self.bell.acquire(timeout=seconds)

    def _finish(self, request, body):
        request.bytes = len(body)
        if len(body) > request.capacity:
            request.error = f"a message of {len(body)} bytes, {request.capacity} were expected"
        else:
            move(request.data, body, len(body))
        request.done = True     # test() looks at it without the lock

    def deliver(self, peer, tag, body):
        with self.lock:
            if self.waiting[peer][tag]:
                self._finish(self.waiting[peer][tag].popleft(), body)
            else:
                self.messages[peer][tag].append(body)
            self._ring()

    def leave(self, peer, why):
        with self.lock:
            self.gone.setdefault(peer, why)
            for queue in self.waiting[peer]:
                while queue:
                    request = queue.popleft()
                    request.error = why
                    request.done = True
            self._ring()

    def expect(self, peer, tag, request):
        with self.lock:
            if self.messages[peer][tag]:
                self._finish(request, self.messages[peer][tag].popleft())
            elif peer in self.gone:
                request.error = self.gone[peer]
                request.done = True
            else:
                request.queue = self.waiting[peer][tag]
                request.queue.append(request)

    def forget(self, request):
        with self.lock:
            if request.queue is not None and request in request.queue:
                request.queue.remove(request)
