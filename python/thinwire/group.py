"""Group: tensors whose gradients are summed over ranks. A thin object over tw_group.

It needs no torch: gradients are given as addresses, or as anything with data_ptr() (tensors) or
the buffer protocol (arrays, numpy). DDP scripts want thinwire.compress instead.
"""
import ctypes

from . import library
from .errors import StateError
from .library import check, lib

_RESULTS = {"mean": 0, "sum": 1}
_GLOBALS = {"exact": 0, "reuse": 1}
_GROUP_OPTIONS = ("timeout", "bucket")
_SELECT_OPTIONS = tuple(name for name, _ in library.SelectParams._fields_
                        if name not in ("method", "reserved"))


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


def group_params(scheme="oktopk", density=0.0, *, select=None, exchange=None, wire=None,
                 result="mean", global_="exact", feedback=True, **options):
    """tw_group_params from keywords; those that the header does not know are refused."""
    params = library.GroupParams()
    params.scheme, params.select.method = _text("scheme", scheme), _text("select", select)
    params.exchange, params.wire = _text("exchange", exchange), _text("wire", wire)
    _set_number(params.select, "density", 0.0 if options.get("k") else density)
    params.select.feedback = 0 if feedback else 1
    params.result = _choice("result", result, _RESULTS)
    params.global_ = _choice("global_", global_, _GLOBALS)
    for name, value in options.items():
        if name not in _GROUP_OPTIONS + _SELECT_OPTIONS:
            raise TypeError(f"unknown option {name!r}; accepted are "
                            f"{', '.join(_GROUP_OPTIONS + _SELECT_OPTIONS)}")
        _set_number(params if name in _GROUP_OPTIONS else params.select, name, value)
    return params


def address(data):
    """Where data lies: an address, a tensor, or an object with a writable buffer."""
    if data is None or isinstance(data, int):
        return data
    if hasattr(data, "data_ptr"):
        return data.data_ptr()
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class Transport:
    """One rank's end of a set of ranks. It carries one group at a time, and must outlive it."""

    def __init__(self, handle):
        self.handle = handle
        rank, nranks = ctypes.c_int(), ctypes.c_int()
        check(lib.tw_transport_info(handle, None, rank, nranks, None))
        self.rank, self.nranks = rank.value, nranks.value

    def traffic(self):
        """Bytes and messages since it was created."""
        traffic = library.Traffic()
        check(lib.tw_transport_info(self.handle, None, None, None, traffic))
        return {name: getattr(traffic, name) for name, _ in traffic._fields_}

    def leave(self):
        """Tells others that this rank does not go on, where a transport can."""

    def close(self):
        handle, self.handle = self.handle, None
        lib.tw_transport_free(handle)


def alone():
    """The transport of a job of one rank."""
    handle = ctypes.c_void_p()
    check(lib.tw_transport_self(handle))
    return Transport(handle)


def threads(nranks):
    """Ranks as threads of this process: a list of transports, one for each."""
    handles = (ctypes.c_void_p * nranks)()
    check(lib.tw_transport_threads(handles, nranks))
    return [Transport(ctypes.c_void_p(handle)) for handle in handles]


class Group:
    """Tensors whose gradients are summed over the ranks of a transport.

        group = thinwire.Group(transport, scheme="oktopk", density=0.01)
        tensor = group.add(n)
        group.open()                        # all ranks
        group.allreduce(tensor, grad)       # grad becomes the mean over ranks

    Keywords are the fields of tw_group_params and tw_select_params. Calls that wait for other
    ranks let other Python threads run. One thread at a time may use a group.
    """

    def __init__(self, transport, scheme="oktopk", density=0.0, **options):
        self._handle = ctypes.c_void_p()
        self.transport = transport
        self.params = group_params(scheme, density, **options)
        check(lib.tw_group_create(self._handle, transport.handle, self.params))

    @property
    def handle(self):
        if self._handle is None:
            raise StateError("it was closed, and what it held is gone; make a new one")
        return self._handle

    def add(self, n, **options):
        """Adds a tensor of n elements, before open(); options replace the group's."""
        tensor, select = ctypes.c_int(), None
        if options:
            select = library.SelectParams.from_buffer_copy(self.params.select)
            for name, value in options.items():
                setattr(select, name, value)
        check(lib.tw_group_add(self.handle, n, select, tensor))
        return tensor.value

    def memory(self):
        """Bytes that open() takes."""
        memory = library.Memory()
        check(lib.tw_group_memory(self.handle, memory))
        return {name: getattr(memory, name) for name, _ in memory._fields_}

    def open(self):
        check(lib.tw_group_open(self.handle))

    def allreduce(self, tensor, grad, out="grad"):
        """Sums one gradient over all ranks into out, float32; by default into grad itself."""
        out = grad if isinstance(out, str) else out
        check(lib.tw_allreduce(self.handle, tensor, address(grad), address(out)))

    def start(self, tensor, grad, out="grad"):
        """The same in the background; grad and out must stay until wait()."""
        out = grad if isinstance(out, str) else out
        check(lib.tw_allreduce_start(self.handle, tensor, address(grad), address(out)))

    def wait(self, tensor=library.ALL):
        check(lib.tw_allreduce_wait(self.handle, tensor))

    def info(self, tensor):
        """A tw_step_info: what the tensor's last step did."""
        info = library.StepInfo()
        check(lib.tw_group_info(self.handle, tensor, info))
        return info

    def residual(self, tensor, into):
        """Copies a residual out, as floats into the host's memory."""
        check(lib.tw_group_get_residual(self.handle, tensor, address(into)))

    def save(self, path):
        check(lib.tw_group_save(self.handle, str(path).encode()))

    def load(self, paths):
        """Goes on from saved states. All ranks; each file is taken by exactly one of them."""
        texts = (ctypes.c_char_p * max(1, len(paths)))(*(str(path).encode() for path in paths))
        check(lib.tw_group_load(self.handle, texts, len(paths)))

    def close(self):
        handle, self._handle = self._handle, None
        lib.tw_group_free(handle)
