"""LocalSteps: workers train alone for some steps, then exchange what changed, sparsely.

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    local = thinwire.LocalSteps(model, optimizer, every=30)
    ...                         # the usual loop: every 30th optimizer.step() ends a round
    local.synchronize()         # at the end

A round, as in DiLoCo (Douillard et al., 2023) and SparseLoCo (Sarfi et al., 2025):

    difference = start - weights        of this worker, over its inner steps
    mean       = exchange(difference)   the largest entries; the residual keeps the rest, and decays
    base       = SGD(base, mean)        the outer step: rate, momentum, Nesterov
    weights    = base                   equal on all workers

delayed: the exchange runs while the next round computes, and its mean is applied one round later.
Until then a worker keeps its own progress: weights = base - difference.
"""
import contextlib
import functools
import math
import struct
import types
import warnings
import weakref
from numbers import Integral, Real
from typing import TYPE_CHECKING, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import library, membership, states
from .engine import Engine, check_type
from .errors import (BY_CODE, Error, ExcludedError, MismatchError, ParamError, StateError,
                     TransportError)
from .group import tcp
from .optimizer import NotCopied, held
from .options import shown
from .parameters import broadcast_parameters, check_whole
from .process_group import ranks_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import LocalOptions

_MEETING = 300.0        # seconds that workers wait for each other at the start, at least
_DENSITY = 1 / 64       # default
_CHUNK = 1 << 20        # elements that are hashed at a time
_BITS = {2: torch.int16, 4: torch.int32}


# ---- checks

def _check_number(field, value, below=math.inf):
    if not isinstance(value, Real) or not 0 <= value < below:
        limit = f" below {below:g}" if below < math.inf else ""
        raise ParamError(f"{field}: {value!r}; accepted is a number from 0{limit}")


def _check(model, optimizer, every, outer_lr, outer_momentum, nesterov):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: {type(model).__name__}; accepted is the module to train")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: {type(optimizer).__name__}; accepted is one of torch's")
    if not isinstance(every, Integral) or isinstance(every, bool) or every < 1:
        raise ParamError(f"every: {every!r}; accepted is a number of inner steps from 1")
    _check_number("outer_lr", outer_lr)
    _check_number("outer_momentum", outer_momentum, 1)
    if nesterov and outer_momentum == 0:
        raise ParamError("nesterov: it needs outer_momentum")


def _default_result(scheme, exchange, delayed):
    """mean_of_senders with exchange allgather, which knows who has sent an entry. An entry of one
    worker then counts in full. With `delayed` mean: before an entry is applied, the other workers
    have changed the same weights. Figures of both are in docs/local_steps.md."""
    of_scheme = library.schemes().get(scheme, {}).get("exchange")
    knows = of_scheme != "auto" and (exchange or of_scheme) == "allgather"
    return "mean_of_senders" if knows and not delayed else "mean"


def _check_meeting(meet, workers, join, delayed, process_group, on_loss):
    if meet is None:
        if workers or join:
            raise ParamError("workers, join: they need meet=, the host:port of the meeting point")
        return
    if on_loss != "shrink":
        raise ParamError(f"on_loss: {on_loss!r}; with meet= accepted is 'shrink'")
    if process_group is not None:
        raise ParamError("process_group: not with meet=, which takes its place")
    if join and delayed:
        raise ParamError("join: not with delayed, whose exchange runs between rounds")
    if not join and (not isinstance(workers, Integral) or workers < 1):
        raise ParamError(f"workers: {workers!r}; with meet= accepted is their number, from 1")


def _hash(tensor):
    """Of the bits of a tensor: the same on every device. An int64 tensor."""
    bits = tensor.detach().contiguous().flatten().view(_BITS[tensor.element_size()])
    factors = 2 * torch.arange(min(_CHUNK, len(bits)), device=bits.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in bits.split(_CHUNK):
        total = 31 * total + (part.to(torch.int64) * factors[:len(part)]).sum()
    return total


def _hashes(tensors):
    return torch.stack([_hash(one) for one in tensors]).tolist()


def _combined(hashes):
    return functools.reduce(lambda sum_, one: (31 * sum_ + one) % (1 << 62), hashes, 0)


def _as_integer(value):
    return struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else value


class LocalSteps:
    """Inner steps on each worker, and a sparse outer step after every `every` of them. Collective.

    model: its parameters must be equal on all workers (broadcast_parameters()). optimizer: any of
    torch's; every call of its step() counts. Learning rates, schedulers and its state_dict() stay
    the script's.

    density (or k; default 1/64), wire, decay, scheme: of the exchange; decay multiplies the
    residual before each round. result: "mean" over all workers, or "mean_of_senders" of each entry.
    The default is "mean_of_senders" with exchange allgather (thinwire.schemes() lists each scheme's
    exchange), unless delayed; else "mean". Other options are those of compress(). outer_lr,
    outer_momentum, nesterov: of the outer SGD, which is `outer`: a scheduler may change its rate,
    on all workers alike. delayed: see above.

    process_group: the workers, default all ranks. inner_group: the ranks of one worker, for
    instance of its DistributedDataParallel, which hold equal weights; its first rank belongs to
    process_group and gives the others the result. host: outer state and residual in host memory.

    weight: of this worker in the mean, for instance the samples of the round; set it before the
    last step of a round.

    on_loss: "raise", or "shrink": the others go on when a worker dies, or does not come to the end
    of a round within timeout= seconds. A worker that comes later raises ExcludedError.

    meet: "host:port", in place of torch's process group, with on_loss="shrink". The workers, given
    their rank and their number, meet there (thinwire.tcp()), and all get the weights of rank 0.
    secret: bytes that all of them know. join=True: become one more worker of a job that runs. It
    gets weights, outer state and counters at the end of a round. A worker that came too late joins
    anew by itself, without its residual. Joining is not possible with delayed.
    """

    _weight = 1.0

    @property
    def weight(self):
        return self._weight

    @weight.setter
    def weight(self, value):
        if not isinstance(value, Real) or not 1e-30 <= value <= 1e30:
            raise ParamError(f"weight: {value!r}; accepted is a number from 1e-30 to 1e30")
        self._weight = float(value)

    @shown
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, every: int = 30,
                 density: Optional[float] = None, wire: str = "q2", decay: float = 0.95,
                 outer_lr: float = 1.0, outer_momentum: float = 0.0, nesterov: bool = False,
                 delayed: bool = False, *, process_group=None, inner_group=None,
                 host: bool = False, scheme: str = "topka", whole_model: bool = True,
                 result: Optional[str] = None, meet: Optional[str] = None, rank: int = 0,
                 workers: int = 0, secret: Optional[bytes] = None, job: str = "",
                 join: bool = False, **options: "Unpack[LocalOptions]"):
        _check(model, optimizer, every, outer_lr, outer_momentum, nesterov)
        _check_meeting(meet, workers, join, delayed, process_group, options.get("on_loss"))
        if inner_group is not None and process_group is None and meet is None:
            raise ParamError("process_group: with inner_group give the group of the first ranks of "
                             "all workers")
        if isinstance(model, DistributedDataParallel) and inner_group is None:
            membership.refuse(options.get("on_loss"), "DistributedDataParallel over all workers",
                              ". Or give LocalSteps the plain model")
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        for name, one in named:
            check_whole(name, one)
            check_type(name, one)
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._exchanged = set(map(id, self.parameters))
        self._frozen = {id(one): name for name, one in model.named_parameters()
                        if not one.requires_grad}
        self.optimizer, self.every, self.delayed = optimizer, every, bool(delayed)
        self._check_trained()
        self.process_group, self.inner_group = process_group, inner_group
        self.count = self.rounds = self.inner_steps = 0
        self.made = None        # _steps_made() when the round began
        self.pending = self.arrived = False     # an exchange is under way; its mean is there
        self.engine = None
        timeout = options.get("timeout")        # Engine checks it
        self._meet = None if meet is None else functools.partial(
            tcp, meet, secret=secret, job=job,
            timeout=max(timeout if isinstance(timeout, Real) else 0.0, _MEETING))
        self._chosen = result is not None       # the caller has passed a result
        if result is None:
            result = _default_result(scheme, options.get("exchange"), delayed)
        if density is None and not options.get("k"):
            density = _DENSITY
        self._options = dict(options, density=density, wire=wire, decay=decay, scheme=scheme,
                             whole_model=whole_model, time_dense=False, result=result)
        if self._is_leader():
            self._make_outer(torch.device("cpu") if host else None, outer_lr, outer_momentum,
                             nesterov)
        if meet is not None:
            self._begin_alike(rank, workers, join)
        elif self._is_leader():
            self._agree({**self._settings(), "outer_lr": float(outer_lr), **self._weights()})
            self._open()
        self.hashes = _hashes(self.parameters)
        self._wrap()

    def _is_leader(self):
        return self.inner_group is None or dist.get_rank(self.inner_group) == 0

    def _make_outer(self, device, outer_lr, outer_momentum, nesterov):
        def new(one):
            place = one.device if device is None else device
            return one.detach().to(place, torch.float32, copy=True).contiguous()
        self.base = [new(one) for one in self.parameters]
        self.grads = [torch.zeros_like(one) for one in self.base]
        plain = not self.delayed and all(one.dtype == torch.float32 for one in self.parameters)
        self.starts = self.base if plain else [new(one) for one in self.parameters]
        self.outer = torch.optim.SGD(self.base, lr=outer_lr, momentum=outer_momentum,
                                     nesterov=nesterov)
        for base, grad in zip(self.base, self.grads):
            base.grad = grad

    def _settings(self):
        """What must be equal on all workers, and does not change."""
        outer = self.outer.param_groups[0]
        return {"every": self.every, "outer_momentum": float(outer["momentum"]),
                "nesterov": int(outer["nesterov"]), "delayed": int(self.delayed)}

    def _weights(self):
        return {"weights": _combined(_hashes(self.base))}

    def _open(self, transport=None):
        self.engine = Engine(list(zip(self.names, self.grads)), self.process_group,
                             transport=transport, **self._options)
        self._finalizer = weakref.finalize(self, self.engine.close)

    # ---- workers that meet without torch, and those that come later

    def _begin_alike(self, rank, workers, join):
        """Meets the other workers, or joins them. All have the weights of the first then."""
        failure = None
        if self._is_leader():
            try:
                self._open_alike(self._meet(join=True) if join else self._meet(rank, workers))
                if not join:
                    self._verify({"outer_lr": float(self.outer.param_groups[0]["lr"])})
                self._welcome(wants=join or rank > 0)
            except Error as error:
                failure = error
        self._share(failure)

    def _open_alike(self, transport):
        """The group compares `result` when it opens, `delayed` is compared after that."""
        try:
            self._open(transport)
        except MismatchError as error:
            if not str(error).startswith("result:"):
                raise
            raise MismatchError(f"{error}. Where result= is left out it depends on delayed, which "
                                f"is {self.delayed} here: give all ranks the same, too") from None

    def _welcome(self, wants):
        """Gives weights, outer state and counters of the first worker to those that want them, and
        compares. A worker that got them in part only must not go on. Collective."""
        self._verify(self._settings())
        gift = self._gift()
        if not self.engine.broadcast(gift, wants) and wants:
            raise TransportError("a worker was lost while this one joined; join again")
        if wants:
            self._take(gift)
        self._verify(self._weights())

    def _velocities(self):
        """The outer momentum, by parameter; zeros before the first outer step."""
        state = self.outer.state
        return [state[one].get("momentum_buffer") if one in state else None for one in self.base]

    def _gift(self):
        outer = self.outer.param_groups[0]
        head = torch.tensor([self.rounds, self.inner_steps, outer["lr"]], dtype=torch.float64)
        parts = [head.view(torch.uint8)] + [_bytes(one) for one in self.base]
        if outer["momentum"]:
            parts += [_bytes(torch.zeros_like(one) if velocity is None else velocity)
                      for one, velocity in zip(self.base, self._velocities())]
        return torch.cat(parts)

    @torch.no_grad()
    def _take(self, gift):
        head = gift[:24].view(torch.float64)
        self.rounds, self.inner_steps = int(head[0]), int(head[1])
        outer, at = self.outer.param_groups[0], 24
        outer["lr"] = float(head[2])
        velocities = [torch.zeros_like(one) for one in self.base] if outer["momentum"] else []
        for one in self.base + velocities:
            size = 4 * one.numel()
            one.copy_(gift[at:at + size].clone().view(torch.float32).view_as(one))
            at += size
        for one, velocity in zip(self.base, velocities):
            if self.rounds > 0:
                self.outer.state[one]["momentum_buffer"] = velocity
        for parameter, base in zip(self.parameters, self.base):
            parameter.copy_(base)
        if self.starts is not self.base:
            for start, parameter in zip(self.starts, self.parameters):
                start.copy_(parameter)

    def _grow(self):
        """At the end of a round: workers that wait join, and begin the next one with the others."""
        if self._meet is not None and not self.delayed and self.engine.grow() > 0:
            self._welcome(wants=False)

    def _rejoin(self, error):
        """The others went on without this worker: it becomes a new one, with their weights. What it
        learned in the round, and its residual, are lost."""
        if self._meet is None or self.delayed:
            raise error
        warnings.warn(f"thinwire: {error}. It joins anew", RuntimeWarning, stacklevel=2)
        self._finalizer()
        for grad in self.grads:
            grad.zero_()
        self.pending = self.arrived = False
        self._open(self._meet(join=True))
        self._welcome(wants=True)

    def _agree(self, fields):
        """Compares whole numbers and floats over the workers."""
        if not dist.is_initialized() or dist.get_world_size(self.process_group) == 1:
            return
        if self.engine is not None:
            self._check_presence()
        mine = torch.tensor([_as_integer(value) for value in fields.values()],
                            device=states.device_of(self.process_group, self.parameters[0].device))
        every = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self.process_group))]
        try:
            dist.all_gather(every, mine, group=self.process_group)
        except RuntimeError as error:
            raise TransportError(f"workers could not compare their rounds: {error}") from None
        for at, (field, value) in enumerate(fields.items()):
            for rank, theirs in enumerate(every):
                if theirs[at] != every[0][at]:
                    raise MismatchError(self._differs(field, rank, theirs[at], every[0][at],
                                                      isinstance(value, float)))

    def _check_presence(self):
        """Raises the error that names a worker which is late or gone. The process group would name
        none, and wait for its own timeout."""
        transport = self.engine.transport
        if transport.flags is None:
            transport.prepare_union(1)
        transport.union([True])

    def _differs(self, field, rank, theirs, first, is_real):
        if field == "weights":
            return (f"weights: rank {rank} and rank 0 start the round with different ones; "
                    "somebody changed them on one rank. Call broadcast_parameters() at the start")
        values = [int(theirs), int(first)]
        if is_real:
            values = [struct.unpack("<d", struct.pack("<q", one))[0] for one in values]
        return (f"{field}: rank {rank} has {values[0]:g}, rank 0 has {values[1]:g}; give all ranks "
                "the same")

    # ---- inner steps

    def _wrap(self):
        """Counts the optimizer's steps; torch 1 has no hooks for that. A bound method: schedulers
        that are made later replace it again, and look for the optimizer in it."""
        step = self.optimizer.step

        @functools.wraps(getattr(step, "__func__", step))   # with self, which MethodType takes away
        def counted(_, *arguments, **keywords):
            if self._closed:        # a scheduler's step() still calls this one
                return step(*arguments, **keywords)
            self._before_step()
            result = step(*arguments, **keywords)
            self._after_step()
            return result
        self._closed, self._replaced = False, vars(self.optimizer).get("step")
        self._step = self.optimizer.step = types.MethodType(counted, self.optimizer)

    def _unwrap(self):
        """The optimizer's own step(), or that of a scheduler which was made before."""
        self._closed = True
        if vars(self.optimizer).get("step") is not self._step:
            return
        del self.optimizer.step
        if self._replaced is not None:
            self.optimizer.step = self._replaced

    def _check_trained(self):
        """Refuses what the optimizer would train and no round would exchange."""
        for one in held(self.optimizer):
            if not one.requires_grad or id(one) in self._exchanged:
                continue
            if id(one) in self._frozen:
                raise ParamError(f"parameter '{self._frozen[id(one)]}' did not require a gradient "
                                 "when LocalSteps was made: each worker would train it alone; "
                                 "unfreeze parameters before")
            raise ParamError(f"a parameter of shape {tuple(one.shape)} is the optimizer's, but not "
                             "the model's: each worker would train it alone; give LocalSteps the "
                             "model that holds all parameters of the optimizer")

    def _before_step(self):
        self._check_trained()
        if self.count > 0:
            return
        for name, now, then in zip(self.names, _hashes(self.parameters), self.hashes):
            if now != then:
                raise StateError(f"parameter '{name}' was changed after the last round, and not by "
                                 "the optimizer; load a checkpoint of the model before LocalSteps, "
                                 "or with load_state_dict() of both")
        self.made = self._steps_made()

    def _after_step(self):
        self.count += 1
        self.inner_steps += 1
        if self.count >= self.every:
            self._round(self.delayed)

    def _steps_made(self):
        """What the optimizer has counted itself, for each parameter. None: it does not count."""
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        counts = [state.get("step", 0) for state in states]
        if not any("step" in state for state in states):
            return None
        on_device = [one for one in counts if isinstance(one, torch.Tensor)]
        alike = [one.reshape(1).to(on_device[0].device) for one in on_device]
        copied = iter(torch.cat(alike).tolist() if alike else ())       # one wait for a GPU
        return [int(next(copied) if isinstance(one, torch.Tensor) else one) for one in counts]

    def _steps_of_round(self):
        """Those of the parameter with most: the others had no gradient in some steps."""
        made = self._steps_made() if self.count else None
        if made is None:
            return self.count
        before = self.made or 0
        if not isinstance(before, list):    # of a state of earlier versions: one number for all
            before = [before] * len(made)
        return max(now - then for now, then in zip(made, before))

    def _check_steps(self):
        made = self._steps_of_round()
        if made != self.count:
            raise StateError(f"optimizer: {type(self.optimizer).__name__} has made {made} steps in "
                             f"{self.count} calls since the last round; it skips steps (with a "
                             "GradScaler?), so workers would differ in what they have learned")

    # ---- rounds

    def synchronize(self):
        """Ends the round now, whatever the number of inner steps, and applies a delayed one as
        well: weights are equal on all workers then. Collective; call it at the end of the run."""
        self._round(False, is_last=True)

    @torch.no_grad()
    def _round(self, delay, is_last=False):
        failure = None
        if self.engine is not None:
            try:
                self._end_round(delay, is_last)
            except Error as error:
                failure = error
        self._share(failure)
        self.count = 0
        self.hashes = _hashes(self.parameters)

    def _end_round(self, delay, is_last):
        try:
            self._exchange(delay)
            self.rounds += 1
            if not is_last:
                self._grow()
        except ExcludedError as error:
            self._rejoin(error)     # it takes the others' counters

    def _exchange(self, delay):
        outer = self.outer.param_groups[0]      # schedulers may change it
        fields = {"inner steps of the round": self.count,
                  "steps that the optimizer has made of them": self._steps_of_round(),
                  "outer_lr": float(outer["lr"]), "outer_momentum": float(outer["momentum"]),
                  "weights": _combined(_hashes(self.base))}
        if self.engine.members is None:
            self._agree(fields)
        else:       # torch's process group may be gone
            self._arrive()
            self._verify(fields)
        self._check_steps()
        self._apply()
        for grad, start, parameter in zip(self.grads, self.starts, self.parameters):
            torch.sub(start, parameter.to(start.device, torch.float32), out=grad)
        if delay:
            for parameter, base, grad in zip(self.parameters, self.base, self.grads):
                parameter.copy_(base - grad)
        self._begin()
        if not delay:
            self._apply()
            for parameter, base in zip(self.parameters, self.base):
                parameter.copy_(base)
        if self.starts is not self.base:
            for start, parameter in zip(self.starts, self.parameters):
                start.copy_(parameter)

    def _verify(self, fields):
        """_agree() among the workers that are left. Those that differ are out."""
        try:
            self.engine.verify(struct.pack(f"<{len(fields)}q",
                                           *map(_as_integer, fields.values())))
        except MismatchError as error:
            mine = ", ".join(f"{field}: {value}" for field, value in fields.items())
            raise MismatchError(f"this worker is out: {error}. Here {mine}") from None

    def _begin(self):
        """Starts the exchange of the differences."""
        if self._weight != 1.0:
            torch._foreach_mul_(self.grads, self._weight)
        self.engine.set_weight(self._weight)
        with self.engine.on_stream():
            for number, grad in enumerate(self.grads):
                self.engine.begin(number, grad)
            self.engine.launch()
        self.pending, self.arrived = True, False

    def _arrive(self):
        """Waits until grads hold the mean."""
        if not self.pending or self.arrived:
            return
        try:
            with self.engine.on_stream():
                self.engine.finish()
        except BaseException:
            self.pending = False
            raise
        self.engine.end_step()
        self.arrived = True

    def _apply(self):
        """The outer step of the exchange that is under way, if any."""
        self._arrive()
        if self.pending:
            self.outer.step()
        self.pending = self.arrived = False

    def _share(self, failure):
        """The result of this worker's first rank, on its other ranks."""
        if self.inner_group is not None:
            device = states.device_of(self.inner_group, self.parameters[0].device)
            told = torch.tensor([failure.code if failure is not None else 0, self.rounds,
                                 self.inner_steps], device=device)
            dist.broadcast(told, ranks_of(self.inner_group)[0], group=self.inner_group)
            if self.engine is None:
                code, self.rounds, self.inner_steps = told.tolist()
                if code != 0:
                    failure = BY_CODE[code]("the first rank of this worker failed in the round")
        if failure is not None:
            raise failure
        if self.inner_group is not None:
            broadcast_parameters(self.parameters, 0, self.inner_group)

    # ---- information and state

    def stats(self):
        """Of the exchange, as in compress(); and rounds, inner steps, bytes that an inner step
        sends (dense data parallelism: dense_bytes) and, where every entry goes to all, bits per
        entry."""
        if self.engine is None:
            return {"rounds": self.rounds, "inner_steps": self.inner_steps}
        found = self.engine.stats()
        sent = found["payload_sent"] + found["control_sent"]
        found.update(rounds=self.rounds, inner_steps=self.inner_steps,
                     bytes_per_inner_step=sent / max(1, self.inner_steps))
        others = self.engine.transport.nranks - 1
        if found.get("lost_ranks"):     # entries went to more ranks before
            others = 0
        if self.engine.scheme == "topka" and found["selected"] and others:
            found["bits_per_entry"] = 8 * found["payload_sent"] / (found["selected"] * others)
        return found

    def summary(self):
        """One line."""
        found = self.stats()
        if self.engine is None:
            return f"thinwire local steps, {self.rounds} rounds"
        bits = found.get("bits_per_entry")
        sent = found["bytes_per_inner_step"]
        fewer = f", {found['dense_bytes'] / sent:.0f}x fewer than dense" if sent > 0 else ""
        return (f"thinwire {self.engine.scheme}, {self.engine.transport.nranks} workers, "
                f"{self.rounds} rounds of {self.every} inner steps; an inner step sends "
                f"{sent:.0f} bytes{fewer}" + (f", {bits:.2f} bits per entry" if bits else ""))

    def __repr__(self):
        return f"<thinwire.LocalSteps: {self.summary()}>"

    def __reduce_ex__(self, protocol):
        """For copy and pickle."""
        return NotCopied, ("LocalSteps",)

    def state_dict(self):
        """This worker's outer state and residual. Every rank has its own: save all of them, beside
        the state of the model and of the optimizer."""
        state = {"version": 1, "count": self.count, "rounds": self.rounds,
                 "inner_steps": self.inner_steps, "hashes": list(self.hashes),
                 "made": self.made, "result": self._options["result"]}
        if self.engine is None:
            return state
        self._arrive()
        return {**state, "pending": self.pending, "outer": self.outer.state_dict(),
                "base": _copies(self.base), "starts": _copies(self.starts),
                "grads": _copies(self.grads) if self.pending else None,
                "thinwire": self.engine.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state, allow_missing: bool = False):
        """Continues from this rank's dict, or from the list of the dicts of all workers, also if
        these were more or fewer. Load the model and the optimizer too. Collective.

        A list is for the end of a round, without delayed: inner steps of a round that has not ended
        are each worker's own. allow_missing: it may lack workers that died with their states.
        result must be what it was; states of earlier versions, which do not hold it, count as
        "mean" unless you have passed a result."""
        every = list(state) if isinstance(state, (list, tuple)) else [state]
        if not every or not all(isinstance(one, dict) and one.get("version") == 1
                                and "hashes" in one for one in every):
            self._refuse_state("expected a dict that state_dict() of LocalSteps returned, or a "
                               "list of such dicts")
        if isinstance(state, (list, tuple)) and any(one["count"] or one.get("pending")
                                                    for one in every):
            self._refuse_state("a list of states must be of the end of a round, without delayed: "
                               "after synchronize()")
        self._check_result(every)
        if self.engine is not None:
            self._arrive()
            self.engine.load_state_dict([one["thinwire"] for one in every]
                                        if isinstance(state, (list, tuple)) else state["thinwire"],
                                        allow_missing)
        state = every[0]
        if self.engine is not None:
            self.outer.load_state_dict(state["outer"])
            for name in ("base", "starts", "grads"):
                for mine, saved in zip(getattr(self, name), state[name] or ()):
                    mine.copy_(saved)
            self.pending = self.arrived = state["pending"]
        self.count, self.rounds, self.inner_steps, self.hashes, self.made = (
            state[name] for name in ("count", "rounds", "inner_steps", "hashes", "made"))

    def _check_result(self, every):
        """Earlier versions did not save it."""
        mine = self._options["result"]
        for one in every:
            saved, there = one.get("result"), "the state was saved with"
            if saved is None:
                saved = mine if self._chosen else "mean"
                there = "the state is of an earlier version, whose default was"
            if saved != mine:
                self._refuse_state(f"result: {there} {saved!r}, here it is {mine!r}; pass to "
                                   "LocalSteps the result with which it was saved")

    def _refuse_state(self, why):
        if self.engine is not None:         # the other workers must not wait for this one
            with contextlib.suppress(Error):
                self._arrive()              # as they do: the group must be idle
            self.engine.refuse_state()
        raise MismatchError(why)

    def close(self):
        """Frees everything now, and leaves the optimizer as it was."""
        self._unwrap()
        if self.engine is not None:
            self.engine.close()


def _bytes(tensor):
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def _copies(tensors):
    return [one.detach().cpu().clone() for one in tensors]
