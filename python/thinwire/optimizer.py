"""Optimizers whose step() waits for the exchange. DistributedOptimizer makes one of any of torch's,
for scripts without DistributedDataParallel, as in Horovod.

The exchange of a gradient starts when the backward pass has computed it. step() waits for all of
them, then runs the optimizer's own step. Weights must be equal at the start, as with Horovod.
"""
import contextlib
import functools
import sys
import threading
import types
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Callable, Iterable, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .engine import Engine
from .errors import ParamError, StateError
from .options import check, shown
from .schedule import is_adaptive
from .tensors import Groups

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import CompressOptions


class Compression:
    """The options of compress() as an object. whole_model is False by default."""

    @shown
    def __init__(self, scheme: str = "oktopk",
                 density: Union[float, Callable[[int], float], None] = None,
                 **options: "Unpack[CompressOptions]"):
        check(options)
        self.options = dict(options, scheme=scheme, density=density)

    def __repr__(self):
        options = (f"{name}={value!r}" for name, value in self.options.items() if value is not None)
        return f"thinwire.Compression({', '.join(options)})"


class PlainStep:
    """The gradients of one step of a plain model, from the backward pass to step()."""

    def __init__(self, parameters, engine, passes):
        self.parameters, self.engine, self.passes = parameters, engine, passes
        self.lock = threading.Lock()        # the backward pass may have several threads
        self._reset()
        self.kept = []      # autograd nodes; their hooks end with them
        for number, parameter in enumerate(parameters):
            with torch.enable_grad():       # the script may make its optimizer under no_grad()
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(self._hook(number))
            self.kept.append(node)

    def _reset(self):
        self.ready = [0] * len(self.parameters)     # backward passes so far, for each parameter
        self.started = [False] * len(self.parameters)
        self.versions = [0] * len(self.parameters)  # torch's, of the gradients that were started

    def _hook(self, number):
        step = weakref.ref(self)

        def hook(*_):
            if step() is not None:
                step().computed(number)
        return hook

    def computed(self, number):
        with self.lock:
            self.engine.check_used()
            self.engine.is_fresh = False
            self.ready[number] += 1
            if self.engine.as_a_whole:
                return      # step() starts all
            if self.ready[number] > self.passes:
                raise StateError(f"parameter '{self.engine.names[number]}' has a gradient more "
                                 f"often than backward_passes_per_step ({self.passes}) says; call "
                                 "step() between")
            if self.ready[number] == self.passes:
                self._begin([number])
                self.started[number] = True
                self.versions[number] = self.parameters[number].grad._version

    @contextlib.contextmanager
    def _or_leave(self):
        """An error of this rank only: the others must not wait for it."""
        try:
            yield
        except Exception:
            self._reset()       # the next step raises an error of the group again
            self.engine.transport.abort()
            raise

    def _begin(self, numbers):
        """Hands gradients over, behind what computes them."""
        stream = self.engine.stream
        with self._or_leave():
            for number in numbers:
                if self.parameters[number].grad is None:
                    self.parameters[number].grad = torch.zeros_like(self.parameters[number])
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(self.engine.device))
            with torch.cuda.stream(stream):     # None: no effect
                for number in numbers:
                    self.engine.begin(number, self.parameters[number].grad)

    def _check_unchanged(self):
        """The exchange reads gradients from the backward pass on: a change may come too late."""
        for number, parameter in enumerate(self.parameters):
            grad = parameter.grad
            if self.started[number] and (grad is None or grad._version != self.versions[number]):
                self._reset()
                self.engine.transport.abort()
                raise StateError(f"the gradient of '{self.engine.names[number]}' was changed "
                                 "between backward() and step(), while it was exchanged; to clip "
                                 "gradients pass clip_norm or whole_model=True, or call "
                                 "synchronize() first")

    def synchronize(self, then=None):
        """Waits for all gradients, then calls then() in the engine's stream. Parameters that this
        rank did not use count as zero: all ranks sum the same tensors."""
        with self.lock:
            if not self.engine.as_a_whole:
                self._check_unchanged()
            self._begin([number for number, started in enumerate(self.started) if not started])
            self._reset()
            stream = self.engine.stream
            with torch.cuda.stream(stream):
                with self._or_leave():
                    self.engine.launch()
                good = self.engine.finish(then)
            if stream is not None:
                torch.cuda.current_stream(self.engine.device).wait_stream(stream)
            self.engine.end_step(good)

    def check_scaled(self):
        if self.engine.scaler is not None:
            raise StateError("call optimizer.synchronize() before scaler.step(optimizer): the "
                             "scaler looks at gradients before it steps")

    def check_not_unscaled(self, optimizer):
        """The exchange divides gradients by the scale. A scaler that has done it, as torch's notes,
        would make them too small by that factor. Scalers of frameworks may note nothing."""
        noted = getattr(self.engine.scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
        if getattr(noted.get("stage"), "name", "") == "UNSCALED":
            raise StateError("call optimizer.synchronize() before scaler.unscale_(optimizer): it "
                             "divides gradients by the scale itself, for the exchange")

    def close(self):
        self.engine.close()


class DDPStep:
    """The same for a DistributedDataParallel model: its backward pass exchanges all gradients."""

    started = ()

    def __init__(self, state):
        self.state, self.engine, self.parameters = state, state.engine, state.parameters

    def synchronize(self, then=None):
        if not self.engine.is_fresh:
            raise StateError("step() without gradients: call backward() of the model before, the "
                             "last one of a step not under no_sync()")

    def check_scaled(self):
        pass

    def check_not_unscaled(self, optimizer):
        pass    # backward() has exchanged before

    def close(self):
        self.state.close()


class _CopiedError(StateError, AttributeError):
    """Also AttributeError, so that hasattr() is False."""


class NotCopied:
    """Stands for an optimizer or LocalSteps in a copy of what refers to it, as a model or a
    scheduler may: connections belong to one object in one process."""

    __slots__ = ("kind",)

    def __init__(self, kind):
        self.kind = kind

    def __getattr__(self, field):
        raise _CopiedError(f"this is a copy of thinwire's {self.kind}, which exchanges with other "
                           "ranks and cannot be copied or pickled; copy its state_dict()")


def _without_hooks(step):
    """A method as it was before torch wrapped it: torch lets step() call hooks in each class of
    which it makes an optimizer. Wrappers of others stay."""
    theirs = sys.modules[torch.optim.Optimizer.__module__].__file__
    if hasattr(step, "hooked") and step.__func__.__code__.co_filename == theirs:
        return types.MethodType(step.__wrapped__, step.__self__)
    return step


class Distributed:
    """Methods that replace the optimizer's: a base class before the optimizer's own."""

    def synchronize(self):
        """Waits until every gradient is the mean over ranks. Call it before anything between
        backward() and step() that reads gradients: clipping, scaler.step()."""
        self._check_trained()
        self._synchronize()

    def _synchronize(self, then=None):
        self._exchange.check_not_unscaled(self)
        self._exchange.synchronize(then)

    def _check_trained(self):
        """Refuses parameters that were unfrozen later."""
        known = set(map(id, self._exchange.parameters))
        for parameter in held(self):
            if parameter.requires_grad and id(parameter) not in known:
                raise ParamError(f"a parameter of shape {tuple(parameter.shape)} did not require a "
                                 "gradient when the optimizer became distributed: each rank would "
                                 "train it alone; unfreeze parameters before")

    def check_wrapped(self, model):
        """Refuses a DistributedDataParallel that this optimizer was made without."""
        if isinstance(model, DistributedDataParallel) and isinstance(self._exchange, PlainStep):
            raise ParamError("optimizer: it was made before the model was wrapped, so gradients "
                             "would be exchanged twice; make it from the wrapped model")

    def step(self, closure=None):
        own_step = super().step
        if hasattr(type(self).step, "hooked"):      # hooks are called around this one already
            own_step = _without_hooks(own_step)
        if closure is None:
            self._synchronize_once()
            result = own_step()
        else:
            result = own_step(functools.partial(self._evaluate, closure))
        self.thinwire.is_fresh = False
        return result

    def _evaluate(self, closure):
        """Sums the gradients that a closure computes."""
        loss = closure()
        self._synchronize_once()
        return loss

    def _prepare_update(self):
        """What to call as soon as the result is there, if the optimizer's step can begin then."""
        return None

    def check_applied(self):
        """Refuses numbers in the groups that the exchange cannot follow."""

    def _synchronize_once(self):
        self._check_trained()       # also where backward() exchanges
        if not self.thinwire.is_fresh:
            self._exchange.check_scaled()
            self._synchronize(self._prepare_update())

    def __reduce_ex__(self, protocol):
        """For copy and pickle."""
        return NotCopied, (type(self).__name__,)

    def add_param_group(self, group):
        if hasattr(self, "_exchange"):
            raise StateError("parameters cannot be added to a distributed optimizer; add them "
                             "before")
        super().add_param_group(group)

    def zero_grad(self, *arguments, **options):
        if any(self._exchange.started):
            raise StateError("zero_grad() between backward() and step(): the exchange is running")
        if self.thinwire.makes_updates:
            self.thinwire.is_fresh = False
        return super().zero_grad(*arguments, **options)


def held(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# Fields that say how a step is computed. Its result does not depend on them.
_HOW = {"foreach", "fused", "capturable", "differentiable"}


def _numbers(name, value):
    """The numbers that a field of a parameter group holds, by name. Not those of a tensor on a GPU,
    which would have to be waited for."""
    if isinstance(value, (tuple, list)):
        return {f"{name}[{i}]": float(one) for i, one in enumerate(value) if isinstance(one, Real)}
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        value = value.item()
    return {name: float(value)} if isinstance(value, Real) else {}


def applied_by(optimizer, model=None, constants=None):
    """A function that returns the rate and all else that the optimizer applies to results, by name;
    does not keep the optimizer alive. constants: numbers that are in no parameter group. In Join it
    returns nothing: a rank without inputs makes no scheduler step, and gets its weights at the end.
    Nor after it: torch does not say that a model has left Join."""
    references = weakref.ref(optimizer), weakref.ref(model) if model is not None else lambda: None

    def applied():
        optimizer, model = (reference() for reference in references)
        if optimizer is None or model is not None and model._join_config.enable:
            return {}
        optimizer.check_applied()
        found, several = {}, len(optimizer.param_groups) > 1
        for number, group in enumerate(optimizer.param_groups):
            of = f" of parameter group {number}" if several else ""
            for field in optimizer.defaults:
                if field not in _HOW:
                    found.update((name + of, value) for name, value
                                 in _numbers(field, group.get(field)).items())
        found.update(constants or {})
        return found
    return applied


def _named(optimizer, named_parameters):
    names = {id(parameter): name for name, parameter in named_parameters or ()}
    return [(names.get(id(parameter), f"parameter {number}"), parameter)
            for number, parameter in enumerate(held(optimizer)) if parameter.requires_grad]


def _check(optimizer, compression):
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: {type(optimizer).__name__}; accepted is one of torch.optim")
    if compression is not None and not isinstance(compression, Compression):
        raise TypeError(f"compression: {compression!r}; accepted is thinwire.Compression(scheme, "
                        "density, ...)")
    if isinstance(optimizer, Distributed):
        raise StateError("the optimizer is distributed already")
    if "step" in vars(optimizer):       # it would bypass ours
        raise StateError("optimizer.step has been replaced, as learning rate schedulers do; call "
                         "DistributedOptimizer first, and make the scheduler from its result")


def DistributedOptimizer(
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
        compression: Optional[Compression] = None, backward_passes_per_step: int = 1,
        process_group: "Optional[dist.ProcessGroup]" = None) -> torch.optim.Optimizer:
    """Makes optimizer.step() apply the mean over ranks. Collective; returns the optimizer itself.

    named_parameters: names for error texts. Rates and the other numbers in param_groups must be the
    same on all ranks, or step() raises MismatchError and changes nothing; tensors on a GPU are not
    compared. optimizer.thinwire has stats(), summary(), state_dict(), load_state_dict() and
    close(). step(closure) works with optimizers that call the closure once a step. LBFGS does not:
    its number of calls depends on the loss, which differs between ranks.
    """
    _check(optimizer, compression)
    named = _named(optimizer, named_parameters)
    named.reverse()         # as the backward pass reaches them
    options = (compression or Compression()).options
    groups = Groups([0] * len(named), [{}], applied=applied_by(optimizer),
                    is_adaptive=is_adaptive(optimizer.defaults))
    engine = Engine(named, process_group, groups=groups, **options)
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (Distributed, kind), {})
    getattr(optimizer, "_patch_step_function", lambda: None)()     # torch 2: hooks around all of it
    optimizer.thinwire = engine
    optimizer._exchange = PlainStep([parameter for _, parameter in named], engine,
                                    backward_passes_per_step)
    weakref.finalize(optimizer, engine.close)
    return optimizer
