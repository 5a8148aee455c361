"""Engine: the gradients of some parameters, summed over the ranks of a process group.

Every parameter is a tensor of one tw_group, so residuals belong to parameters, however gradients
are bucketed on their way. The DDP hook and DistributedOptimizer are both made of it:

    begin(number, grad) ... finish()      the mean over ranks is in grad, on all ranks alike

With whole_model all of them are one tensor, a vector of the engine's own: the k largest values are
then those of the model, and not so many of each parameter's.

With a GradScaler gradients are unscaled on the way in and scaled on the way out, so a residual
does not depend on the loss scale; all parameters then travel as one, so that a step with an
infinity anywhere is refused whole: residuals stay, and every gradient becomes infinite, which the
scaler sees on all ranks.
"""
import bisect
import contextlib
import itertools
import os
import re
import time
import warnings
from numbers import Integral, Real

import torch
import torch.distributed as dist

from . import library, saved
from .errors import Error, KError, NumberError, ParamError, SizeError
from .group import Group
from .process_group import transport_of
from .stats import TRIAL, Stats

_TYPES = {torch.float32: library.F32, torch.float16: library.F16, torch.bfloat16: library.BF16}
_DENSITY = 0.01                 # when neither it nor k is given
_DENSE_SAMPLE = 25 << 20        # bytes of the dense allreduce that is timed: a bucket of DDP's
_LONGEST = 1000000              # seconds: torch's stores count milliseconds in an int
_MOST_THREADS = 256             # that the library takes


def _check(parameters):
    if not parameters:
        raise ParamError("no parameter requires a gradient: there is nothing to compress")
    for name, parameter in parameters:
        if parameter.dtype not in _TYPES:
            raise ParamError(f"parameter '{name}' is {parameter.dtype}; accepted are "
                             f"{', '.join(map(str, _TYPES))}")
        if parameter.numel() == 0:
            raise ParamError(f"parameter '{name}' has no elements; freeze it before the model is "
                             "wrapped: requires_grad_(False)")
        if parameter.device != parameters[0][1].device:
            raise ParamError(f"parameter '{name}' is on {parameter.device}, '{parameters[0][0]}' "
                             f"on {parameters[0][1].device}; accepted is one device a rank")


def _check_options(elements, k, density, timeout, scaler):
    """What the library does not see as the user gave it."""
    if not isinstance(k, Integral) or not 0 <= k <= elements:
        raise KError(f"k: {k!r}; accepted is 1 .. {elements}, whole numbers up to the elements "
                     "of all parameters")
    if k and density:
        raise KError(f"k: {k} and density: {density!r}; give k or density, not both")
    if not isinstance(timeout, Real) or not 0 <= timeout <= _LONGEST:
        raise ParamError(f"timeout: {timeout!r}; accepted are 0 (default) .. {_LONGEST} seconds")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise ParamError(f"grad_scaler: {scaler!r}; accepted is the GradScaler of the loss")


def _enabled(scaler):
    """GradScaler(enabled=False) looks at no gradient: infinite ones would reach the weights."""
    return scaler is not None and getattr(scaler, "is_enabled", lambda: True)()


class Engine:
    """parameters is [(name, parameter)], in the order in which gradients become ready."""

    def __init__(self, parameters, process_group=None, *, scheme="oktopk", density=None, k=0,
                 whole_model=False, grad_scaler=None, bucket=0, threads=0, timeout=300.0,
                 **options):
        _check(parameters)
        _check_options(sum(parameter.numel() for _, parameter in parameters), k, density, timeout,
                       grad_scaler)
        if not _enabled(grad_scaler):
            grad_scaler = None
        if bucket and (whole_model or grad_scaler is not None):
            raise ValueError("bucket: with whole_model or grad_scaler all of a step travels as one "
                             "bucket; leave it out")
        self.names = [name for name, _ in parameters]
        self.sizes = [parameter.numel() for _, parameter in parameters]
        self.dtypes = [parameter.dtype for _, parameter in parameters]
        self.device = parameters[0][1].device
        self.process_group, self.scaler, self.scheme = process_group, grad_scaler, scheme
        self.as_a_whole = whole_model or grad_scaler is not None    # steps begin when all is there
        self.under_way, self.scale, self.process = [], 1.0, os.getpid()
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        timeout = timeout or 300.0      # 0 means default, as everywhere
        self.transport = transport_of(process_group, timeout)
        self.costs = Stats(sum(self.sizes), self.transport.nranks)
        self.vector = self.group = None
        if k:
            density = k / self.costs.elements
        elif density is None:
            density = _DENSITY
        if density == 1.0:      # all is wanted: a threshold from earlier steps would leave some
            options.setdefault("select", "exact")
        try:
            if whole_model:
                self._make_vector()
            self._open(scheme=scheme, density=density,
                       bucket=library.LARGEST if grad_scaler is not None else bucket,
                       threads=threads or min(torch.get_num_threads(), _MOST_THREADS),
                       timeout=timeout, **options)
            self._time_dense()
        except BaseException:       # of this rank alone perhaps: the others must not wait for it
            self.close()
            raise

    def _make_vector(self):
        self.vector = torch.empty(sum(self.sizes), dtype=torch.float32, device=self.device)
        self.slots = self.vector.split(self.sizes)
        self.starts = [0, *itertools.accumulate(self.sizes)][:-1]

    def _open(self, **options):
        if self.stream is not None:
            options.update(device=library.CUDA, ordinal=self.device.index or 0,
                           stream=self.stream.cuda_stream)
        self.group = Group(self.transport, **options)
        if self.vector is not None:
            self.group.add(self.vector.numel(), type=library.F32)
        else:
            for size, dtype in zip(self.sizes, self.dtypes):
                self.group.add(size, type=library.F32 if self.scaler is not None
                               else _TYPES[dtype])
        self.group.open()

    def _time_dense(self):
        """What a dense allreduce takes here, from one bucket of the script's own group."""
        if self.transport.nranks == 1:
            return
        count = min(self.costs.elements, _DENSE_SAMPLE // 4)
        sample = torch.zeros(count, dtype=torch.float32, device=self.device)
        for _ in range(2):      # the first one makes connections
            begin = time.monotonic()
            dist.all_reduce(sample, group=self.process_group)
            if self.stream is not None:
                torch.cuda.synchronize(self.device)
            self.costs.dense_seconds = (time.monotonic() - begin) * self.costs.elements / count

    # ---- a step

    def begin(self, number, grad):
        """Starts a gradient; it belongs to the engine until finish(). CUDA: in self.stream."""
        if grad.is_sparse:
            raise ParamError(f"parameter '{self.names[number]}' has a sparse gradient; use "
                             "sparse=False in embeddings")
        now = grad.numel(), grad.dtype, grad.device
        then = self.sizes[number], self.dtypes[number], self.device
        if now != then:
            raise SizeError(f"parameter '{self.names[number]}' has changed: {_kind(*now)}, it was "
                            f"{_kind(*then)}; wrap the model anew and compress that")
        if self.scaler is not None and not self.under_way:
            self.scale = self.scaler.get_scale()
        source = self._source(number, grad)
        mean = source if source.dtype == torch.float32 else torch.empty_like(source,
                                                                             dtype=torch.float32)
        self.under_way.append((number, grad, source, mean))
        if self.vector is None:
            self.group.start(number, source, mean)
        elif len(self.under_way) == len(self.sizes):
            self.group.start(0, self.vector, self.vector)

    def _source(self, number, grad):
        """What is to be summed, where the library can read it."""
        if self.vector is not None:
            source = self.slots[number].view_as(grad).copy_(grad)
        elif self.scaler is not None:
            source = grad.contiguous().float()
        else:
            return grad.contiguous()
        return source.mul_(1.0 / self.scale) if self.scaler is not None else source

    def _check_complete(self, begun):
        """A parameter without a gradient could not take its part of the result."""
        missing = set(range(len(self.sizes))) - {number for number, _, _, _ in begun}
        if missing:
            raise ParamError(f"parameter '{self.names[min(missing)]}' got no gradient on any rank; "
                             "whole_model=True is for models that use all their parameters in "
                             "every step")

    def finish(self):
        """Ends what was begun: every gradient is the mean over ranks now. Raises Error, the same on
        all ranks. Returns whether the step holds good; if not, gradients are infinite."""
        begun, self.under_way = self.under_way, []
        if self.vector is not None:
            self._check_complete(begun)
        try:
            self.group.wait()
        except NumberError as error:
            if self.scaler is None:
                raise NumberError(f"{self._by_name(error)}; with loss scaling, give grad_scaler= "
                                  "your GradScaler and such steps are skipped") from None
            for _, grad, _, _ in begun:
                grad.fill_(float("inf"))
            return False
        except Error as error:
            raise type(error)(self._by_name(error)) from None
        for _, grad, _, mean in begun:
            if self.scaler is not None:
                mean.mul_(self.scale)
            if mean is not grad:
                grad.copy_(mean)
        tensors = [number for number, _, _, _ in begun] if self.vector is None else [0]
        self.costs.add([self.group.info(tensor) for tensor in tensors])
        return True

    def _by_name(self, error):
        """Its text with the user's names in place of the library's numbers."""
        def named(match):
            number, element = int(match[1]), match[2] and int(match[2])
            if self.vector is not None and element is not None:
                number = bisect.bisect_right(self.starts, element) - 1
                element -= self.starts[number]
            elif self.vector is not None:
                return "all parameters"
            at = "" if element is None else f": element {element}"
            return f"parameter '{self.names[number]}'{at}"
        return re.sub(r"\btensor (\d+)(?:: element (\d+))?", named, str(error))

    def end_step(self, good=True):
        self.costs.end_step(skipped=not good)
        if self.costs.slower_than_dense() and self.transport.rank == 0:
            warnings.warn(f"thinwire: {self.scheme} takes {1e3 * self.costs.fastest:.2f} ms a step "
                          f"(the fastest of {TRIAL}), a dense allreduce of this model "
                          f"{1e3 * self.costs.dense_seconds:.2f} ms (measured at the start): on "
                          "this network training without thinwire would be faster")

    def used_anywhere(self, used):
        """Whether any rank says so, for each: the same answer on all of them. A parameter that
        nobody used keeps its residual for a step whose result is not thrown away."""
        used = torch.tensor(used, dtype=torch.int64, device="cpu")
        if self.transport.nranks > 1:
            self.transport.sum(used)
        return used.tolist()

    # ---- what it cost, and what it holds

    def stats(self):
        """Bytes, counts and times: totals, and those of the last step under "last"."""
        return self.costs.as_dict()

    def summary(self):
        """One line."""
        return f"thinwire {self.scheme}, {self.transport.nranks} ranks, {self.costs.line()}"

    def residuals(self):
        """This rank's, [n] on the host for each parameter."""
        vector = torch.empty(sum(self.sizes), dtype=torch.float32, device="cpu")
        tensors = [vector] if self.vector is not None else vector.split(self.sizes)
        for number, tensor in enumerate(tensors):
            self.group.residual(number, tensor)
        return vector.split(self.sizes)

    def state_dict(self):
        """This rank's residuals, thresholds and counters, for torch.save."""
        return {"version": 1, "rank": self.transport.rank, "nranks": self.transport.nranks,
                "names": list(self.names), "sizes": list(self.sizes),
                "state": saved.bytes_of(self.group)}

    def load_state_dict(self, state):
        """Goes on from this rank's dict, or from the list of all ranks' dicts of a run with any
        number of ranks, the same list on all: each is then taken by one rank. Collective."""
        with contextlib.ExitStack() as stack:
            try:
                mine = saved.own_of(state, self.transport.rank, self.transport.nranks,
                                    dict(zip(self.names, self.sizes)))
                paths = stack.enter_context(saved.files_of(mine, self.transport.nranks))
            except Exception:           # of this rank alone: the others must not wait for it
                with contextlib.suppress(Error):
                    self.group.load(["what load_state_dict() was given"])
                raise
            self.group.load(paths)

    def close(self):
        """Frees everything; other ranks that wait for this one fail at once. Not in a forked
        process, which has no thread of the library's to wait for: its copy goes with it."""
        if os.getpid() != self.process:
            return
        if self.group is not None:
            self.group.close()
        self.transport.close()


def _kind(size, dtype, device):
    return f"{size} x {dtype} on {device}"
