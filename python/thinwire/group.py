"""Group: tensors whose gradients are summed over ranks. A thin object over tw_group.

It needs no torch. A gradient is an address, or anything with data_ptr() (tensors) or the buffer
protocol (arrays, numpy). For DDP scripts use thinwire.compress instead.
"""
import ctypes
import os
from typing import Any, Dict, Iterable, List, Optional

from . import errors, library
from .errors import ParamError, SizeError, StateError
from .library import check, lib

_RESULTS = {"mean": 0, "sum": 1, "mean_of_senders": 2}
_GLOBALS = {"exact": 0, "reuse": 1}
_COUNTS = {"of_scheme": 0, "per_rank": 1}
_MEMBERSHIPS = {"fixed": 0, "elastic": 1}
_ON = {True: 0, False: 1}
_CHOICES = {"feedback": _ON, "before": {"nothing": 0, "adamw": 1},
            "warmup": {"exponential": 0, "linear": 1, "cosine": 2, "caller": 3}}
_BYTES = {library.F32: 4, library.F16: 2, library.BF16: 2}
_SELECT_OPTIONS = ("select", *(name for name, _ in library.SelectParams._fields_
                               if name not in ("method", "reserved")))
OPTIONS = ("scheme", "exchange", "wire", "result", "global_", "count", "checksum", "timeout",
           "bucket", "membership", *_SELECT_OPTIONS)


def _choice(field, value, choices):
    if value not in choices:
        raise ValueError(f"{field}: {value!r}; accepted is {', '.join(map(repr, choices))}")
    return choices[value]


def _text(field, name):
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"{field}: {name!r}; accepted is a name")
    return name.encode() if name is not None else None


def _set_number(params, field, value):
    try:
        setattr(params, field, value)
    except TypeError:
        kind = "a whole number" if isinstance(getattr(params, field), int) else "a number"
        raise TypeError(f"{field}: {value!r}; accepted is {kind}") from None
    stored = getattr(params, field)
    if isinstance(stored, int) and stored != value:     # ctypes keeps only the lowest bits
        raise ParamError(f"{field}: {value!r}; it is out of range")


def _set_select(params, options, accepted=_SELECT_OPTIONS):
    """Sets fields of tw_select_params from keywords; refuses unknown ones."""
    for name, value in options.items():
        if name not in _SELECT_OPTIONS:
            raise TypeError(f"unknown option {name!r}; accepted are {', '.join(accepted)}")
        if name == "select":
            params.method = _text(name, value)
        elif name in _CHOICES:
            setattr(params, name, _choice(name, value, _CHOICES[name]))
        else:
            _set_number(params, name, value)


def group_params(scheme="oktopk", density=0.0, *, exchange=None, wire=None, result="mean",
                 global_="exact", count="of_scheme", checksum=True, timeout=0.0, bucket=0,
                 membership="fixed", **select):
    """tw_group_params from keywords."""
    params = library.GroupParams()
    params.scheme = _text("scheme", scheme)
    params.exchange, params.wire = _text("exchange", exchange), _text("wire", wire)
    params.result = _choice("result", result, _RESULTS)
    params.global_ = _choice("global_", global_, _GLOBALS)
    params.count = _choice("count", count, _COUNTS)
    params.checksum = _choice("checksum", checksum, _ON)
    params.membership = _choice("membership", membership, _MEMBERSHIPS)
    _set_number(params, "timeout", timeout)
    _set_number(params, "bucket", bucket)
    _set_select(params.select, dict(select, density=density), OPTIONS)
    return params


def address(data, size):
    """The address of size bytes: data is an address itself, a tensor or a writable buffer."""
    if data is None or isinstance(data, int):
        return data
    if hasattr(data, "data_ptr"):
        if not data.is_contiguous():
            raise ParamError("the tensor is not contiguous; give its contiguous()")
        given, start = data.nelement() * data.element_size(), data.data_ptr()
    else:
        given = memoryview(data).nbytes
        start = ctypes.addressof(ctypes.c_char.from_buffer(data))
    if given != size:
        raise SizeError(f"{given} bytes were given, the tensor has {size}")
    return start


class Change:
    """A tw_members: the ranks before and after a change.

    before: the number that each rank had, or None if it is new. lost: for each rank that is no
    member any more, its number before, the last known norm of its residual (None: not known) and
    the step after which that was its norm. completed: the step that had failed is complete."""

    def __init__(self, members):
        self.rank, self.nranks = members.rank, members.nranks
        self.nranks_before, self.completed = members.nranks_before, bool(members.completed)
        self.before = [one if one >= 0 else None for one in members.before[:members.nranks]] \
            if members.before else list(range(members.nranks))
        self.lost = [(one.rank, one.norm if one.norm >= 0 else None, one.step)
                     for one in members.lost[:members.nlost]]


class Transport:
    """One rank's connections to all others. One group at a time may use it; free that first."""

    def __init__(self, handle):
        self.handle = handle
        self._number()

    def _number(self):
        rank, nranks = ctypes.c_int(), ctypes.c_int()
        check(lib.tw_transport_info(self.handle, None, rank, nranks, None))
        self.rank, self.nranks = rank.value, nranks.value

    def renumber(self, before):
        """The ranks have changed. before: the number that each rank had; None: it is new."""
        self._number()

    def traffic(self) -> Dict[str, int]:
        """Bytes and messages since it was created."""
        traffic = library.Traffic()
        check(lib.tw_transport_info(self.handle, None, None, None, traffic))
        return {name: getattr(traffic, name) for name, _ in traffic._fields_[:-1]}

    def prepare_union(self, most):
        """Makes union() of lists with up to `most` elements possible. Collective."""

    def union(self, used):
        """Whether any rank says so, for each of a list. Collective."""
        return used

    def abort(self):
        """Lets other ranks that wait for this one fail at once, if the transport can."""

    def close(self) -> None:
        handle, self.handle = self.handle, None
        lib.tw_transport_free(handle)


def alone() -> Transport:
    """The transport of a job of one rank."""
    handle = ctypes.c_void_p()
    check(lib.tw_transport_self(handle))
    return Transport(handle)


def threads(nranks: int) -> List[Transport]:
    """Ranks as threads of this process: a list of transports, one for each."""
    handles = (ctypes.c_void_p * nranks)()
    check(lib.tw_transport_threads(handles, nranks))
    return [Transport(ctypes.c_void_p(handle)) for handle in handles]


def tcp(meet: str, rank: int = 0, nranks: int = 0, *, secret: Optional[bytes] = None,
        job: str = "", timeout: float = 0.0, join: bool = False) -> Transport:
    """Ranks as processes that meet at host:port, or at the first of several such addresses with
    commas that answers. Collective. A process that can listen there is the meeting point.

    secret: bytes that all ranks know, random, 16 or more; it is never sent. Without it anybody who
    reaches the port may take part. Messages are not encrypted. job: a name that keeps jobs apart.
    timeout: seconds in which all ranks must come; 0: 300. join: become a new rank of a job whose
    groups are elastic, when its ranks call grow(); rank and nranks are the job's to give."""
    params = library.TcpParams()
    params.meet, params.job = _text("meet", meet), _text("job", job)
    if secret is not None:
        if not isinstance(secret, bytes):
            raise TypeError(f"secret: {type(secret).__name__}; accepted are bytes")
        params.secret, params.secret_bytes = secret, len(secret)
    for field, value in (("rank", rank), ("nranks", nranks), ("timeout", timeout)):
        _set_number(params, field, value)
    handle = ctypes.c_void_p()
    check((lib.tw_transport_join if join else lib.tw_transport_tcp)(handle, params))
    return Transport(handle)


class Group:
    """Tensors whose gradients are summed over the ranks of a transport.

        group = thinwire.Group(transport, scheme="oktopk", density=0.01)
        tensor = group.add(n)
        group.open()                        # all ranks
        group.allreduce(tensor, grad)       # grad becomes the mean over ranks

    Keywords are the fields of tw_group_params and tw_select_params. One thread at a time may use a
    group. Calls that wait for other ranks let other Python threads run.
    """

    def __init__(self, transport: Transport, scheme: str = "oktopk", density: float = 0.0,
                 **options: Any):
        self._handle = ctypes.c_void_p()
        self._sizes = []        # of each tensor: elements, bytes per element of its gradient
        self._pieces = []       # of each tensor: elements of its pieces
        self.transport = transport
        self.params = group_params(scheme, density, **options)
        check(lib.tw_group_create(self._handle, transport.handle, self.params))

    @property
    def handle(self):
        if self._handle is None:
            raise StateError("the group was closed, and its state is gone; make a new one")
        return self._handle

    def add(self, n: int, **options: Any) -> int:
        """Adds a tensor of n elements. Call it before open(). Options are fields of
        tw_select_params and replace the group's; k replaces its density, density its k."""
        select = self._select(options)
        tensor = ctypes.c_int()
        check(lib.tw_group_add(self.handle, n, select if options else None, tensor))
        self._note(tensor, [n], select)
        return tensor.value

    def add_pieces(self, sizes, **options):
        """Adds a tensor whose gradient lies in pieces of these sizes. Options as in add()."""
        select = self._select(options)
        tensor = ctypes.c_int()
        check(lib.tw_group_add_pieces(self.handle, (ctypes.c_int64 * len(sizes))(*sizes),
                                      len(sizes), select if options else None, tensor))
        self._note(tensor, sizes, select)
        return tensor.value

    def _select(self, options):
        select = library.SelectParams.from_buffer_copy(self.params.select)
        if options.get("k") or options.get("density"):
            select.k, select.density = 0, 0.0
        _set_select(select, options)
        return select

    def _note(self, tensor, sizes, select):
        self._sizes.append((sum(sizes), _BYTES[select.type]))
        self._pieces.append(list(sizes))

    def memory(self) -> Dict[str, int]:
        """Bytes that open() allocates."""
        memory = library.Memory()
        check(lib.tw_group_memory(self.handle, memory))
        return {name: getattr(memory, name) for name, _ in memory._fields_[:-1]}

    def open(self) -> None:
        check(lib.tw_group_open(self.handle))

    def allreduce(self, tensor: int, grad: Any, out: Any = "grad") -> None:
        """Sums one gradient over all ranks into out, float32; by default into grad itself."""
        check(lib.tw_allreduce(self.handle, tensor, *self._addresses(tensor, grad, out)))

    def start(self, tensor: int, grad: Any, out: Any = "grad") -> None:
        """The same in the background. Keep grad and out until wait() returns."""
        check(lib.tw_allreduce_start(self.handle, tensor, *self._addresses(tensor, grad, out)))

    def start_pieces(self, tensor, grads, outs=None):
        """start() of a tensor in pieces; without outs the result is kept for subtract()."""
        width = self._size(tensor)[1]
        check(lib.tw_allreduce_start_pieces(
            self.handle, tensor, self.pointers(tensor, grads, width),
            None if outs is None else self.pointers(tensor, outs), len(grads)))

    def subtract(self, tensor, params):
        """Subtracts the last result from params, float32: its pieces, or what pointers() made of
        them. With a GPU this is queued on the tensor's stream."""
        self._size(tensor)
        if not isinstance(params, ctypes.Array):
            params = self.pointers(tensor, params)
        check(lib.tw_group_subtract(self.handle, tensor, params, len(params)))

    def pointers(self, tensor, pieces, width=4):
        """An array of the addresses of pieces, whose elements have `width` bytes."""
        sizes = self._pieces[tensor]
        if len(pieces) != len(sizes):
            raise ParamError(f"{len(pieces)} pieces were given, the tensor has {len(sizes)}")
        return (ctypes.c_void_p * len(sizes))(*(
            piece if isinstance(piece, int) else address(piece, size * width)
            for piece, size in zip(pieces, sizes)))

    def _addresses(self, tensor, grad, out):
        n, width = self._size(tensor)
        return address(grad, n * width), address(grad if isinstance(out, str) else out, 4 * n)

    def _size(self, tensor):
        if not 0 <= tensor < len(self._sizes):
            raise errors.IndexError(f"tensor: {tensor}; accepted is 0 .. {len(self._sizes) - 1}")
        return self._sizes[tensor]

    def wait(self, tensor: int = library.ALL) -> None:
        check(lib.tw_allreduce_wait(self.handle, tensor))

    def set_rate(self, tensor: int, rate: float) -> None:
        """AdamW's rate from the next step on."""
        check(lib.tw_group_set_rate(self.handle, tensor, rate))

    def set_density(self, tensor: int, density: float) -> None:
        """The density from the next step on, with warmup="caller"."""
        check(lib.tw_group_set_density(self.handle, tensor, density))

    def set_weight(self, weight: float) -> None:
        """This rank's weight in means from the next step on; multiply gradients by it."""
        check(lib.tw_group_set_weight(self.handle, weight))

    def set_common(self, values: List[float]) -> None:
        """Numbers that all ranks apply to results themselves, from the next step on. A step before
        which ranks have set different ones raises MismatchError."""
        check(lib.tw_group_set_common(self.handle, (ctypes.c_double * len(values))(*values),
                                      len(values)))

    def info(self, tensor: int) -> library.StepInfo:
        """The tw_step_info of the tensor's last step."""
        info = library.StepInfo()
        check(lib.tw_group_info(self.handle, tensor, info))
        return info

    def residual(self, tensor: int, into: Any) -> None:
        """Copies a residual into host memory, as floats."""
        check(lib.tw_group_get_residual(self.handle, tensor,
                                        address(into, 4 * self._size(tensor)[0])))

    def save(self, path: str) -> None:
        check(lib.tw_group_save(self.handle, os.fsencode(path)))

    def load(self, paths: Iterable[str], allow_missing: bool = False) -> library.Missing:
        """Continues from saved states. Collective; each file goes to exactly one rank. Files may be
        missing with allow_missing; what is missing is returned."""
        texts, missing = (ctypes.c_char_p * max(1, len(paths)))(*map(os.fsencode, paths)), \
            library.Missing()
        if allow_missing:
            check(lib.tw_group_load_some(self.handle, texts, len(paths), missing))
        else:
            check(lib.tw_group_load(self.handle, texts, len(paths)))
        return missing

    # ---- membership="elastic": thinwire.h, section 7

    def shrink(self) -> Change:
        """Goes on with the ranks that are left, after a call has failed with TimeoutError or
        TransportError. All of them call it, then repeat what failed."""
        members = library.Members()
        check(lib.tw_group_shrink(self.handle, members))
        return self._changed(members)

    def verify(self, digest: bytes) -> Optional[Change]:
        """Compares up to 64 bytes over all ranks. Collective. Ranks whose bytes are not those of
        rank 0 get MismatchError and are no members any more; the others get the change."""
        members = library.Members()
        try:
            check(lib.tw_group_verify(self.handle, digest, len(digest), members))
        except errors.MismatchError:
            if members.nranks == 0:     # this rank is out
                raise
            return self._changed(members)
        return None

    def grow(self) -> Optional[Change]:
        """Lets processes join that wait in tcp(join=True). Collective, between steps. A process
        whose group differs, or cannot open, is refused. None: nothing has changed."""
        members = library.Members()
        try:
            check(lib.tw_group_grow(self.handle, members))
        except (errors.MismatchError, errors.MemoryError, errors.DeviceError):
            if members.nranks == 0:     # the ranks differ, or one of them lacks memory
                raise
        if members.nlost == 0 and members.nranks == members.nranks_before:
            return None
        return self._changed(members)

    def broadcast(self, data: Any, size: int, wants: bool) -> None:
        """size bytes of rank 0, on the ranks that want them. Collective, between steps."""
        data = address(data, size) if wants or self.transport.rank == 0 else None
        check(lib.tw_group_broadcast(self.handle, 0, data, size))

    def _changed(self, members):
        change = Change(members)
        self.transport.renumber(change.before)
        return change

    def close(self) -> None:
        handle, self._handle = self._handle, None
        lib.tw_group_free(handle)
