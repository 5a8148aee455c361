"""AdamW and SGD: optimizers that exchange gradients themselves, of plain models and of DDP's.

AdamW computes each rank's update before selection: what is selected, summed and averaged is the
update of a rank's own gradient, and step() subtracts the mean. SGD averages gradients, then makes
torch's step. Both keep what was not sent, and take density from a schedule.
"""
import gc
import math
import sys
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from . import ddp
from .decay import Decay
from .engine import Engine
from .errors import MismatchError, ParamError, StateError
from .optimizer import DDPStep, Distributed, PlainStep, applied_by, held
from .options import shown
from .tensors import Groups

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import OptimizerOptions

_LOWEST_EPS = 1.1754943508222875e-38        # the library's: FLT_MIN


# ---- parameters

def _groups_of(module, weight_decay):
    """A module's parameters. One-dimensional ones (biases, norms) have no weight decay."""
    if isinstance(module, DistributedDataParallel):
        parameters = [one for _, one in reversed(ddp.trained(module))]
    else:
        parameters = [one for one in module.parameters() if one.requires_grad]
    decayed = [one for one in parameters if one.dim() > 1]
    rest = [one for one in parameters if one.dim() <= 1]
    if weight_decay == 0 or not decayed or not rest:
        return [{"params": parameters, **({} if decayed else {"weight_decay": 0.0})}]
    return [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]


def _resolve(params, model, weight_decay):
    """params as torch takes them, and the model that they belong to or None."""
    if isinstance(params, torch.nn.Module):
        if model is not None and model is not params:
            raise ParamError("model: params is a module already; leave it out")
        return _groups_of(params, weight_decay), params
    if not isinstance(model, (torch.nn.Module, type(None))):
        raise TypeError(f"model: {type(model).__name__}; accepted is the module of the parameters")
    return params, model


def _named(optimizer, model):
    """The parameters that the optimizer trains, in the order of the backward pass: the same for a
    model in DistributedDataParallel and without, so that each can load the other's state."""
    if isinstance(model, DistributedDataParallel):
        return ddp.trained(model)
    mine = {id(parameter): (f"parameter {number}", parameter)
            for number, parameter in enumerate(held(optimizer)) if parameter.requires_grad}
    named = [(name, parameter) for name, parameter in model.named_parameters()
             if mine.pop(id(parameter), None)] if model is not None else []
    return [*reversed(mine.values()), *reversed(named)]


def _numbers_of_groups(optimizer, named):
    """For each parameter of the model, the number of its parameter group."""
    group_of = {id(parameter): number for number, group in enumerate(optimizer.param_groups)
                for parameter in group["params"] if parameter.requires_grad}
    for name, parameter in named:
        if id(parameter) not in group_of:
            raise ParamError(f"parameter '{name}' of the model is in no parameter group: nothing "
                             "would train it; add it, or freeze it before the model is wrapped")
    if len(group_of) > len(named):
        raise ParamError(f"{len(group_of) - len(named)} parameters are not the model's: nothing "
                         "would exchange their gradients")
    return [group_of[id(parameter)] for _, parameter in named]


def _check_not_wrapped(parameters):
    """Refuses parameters of a DistributedDataParallel that we were not told of: it would sum their
    gradients densely."""
    mine = set(map(id, parameters))
    for one in gc.get_referrers(*_kinds(DistributedDataParallel)):      # their instances do
        if issubclass(type(one), DistributedDataParallel) and \
                any(id(parameter) in mine for parameter in one.parameters()):
            raise ParamError("params: they belong to a DistributedDataParallel, which would sum "
                             "their gradients densely; pass it as params, or as model=")


def _kinds(kind):
    """A class, and all that are derived from it."""
    return [kind, *(one for derived in kind.__subclasses__() for one in _kinds(derived))]


def _check_number(group, field, lowest=0.0):
    value = group[field]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, Real) or not (lowest <= value < math.inf):
        raise ParamError(f"{field}: {value!r}; accepted is a number from {lowest:g}")


def _check_betas(betas):
    if not (isinstance(betas, (tuple, list)) and len(betas) == 2
            and all(isinstance(beta, Real) and 0 <= beta < 1 for beta in betas)):
        raise ParamError(f"betas: {betas!r}; accepted are two numbers, 0 <= beta < 1")


# ---- what both share

class _Exchanging(Distributed):
    """An optimizer with an exchange of its own. A base class before one of torch's."""

    saved_apart = False     # an integration saves the exchange's state: state_dict() is torch's

    def _exchange_with(self, model, process_group, passes, options, constants=None):
        """Opens the exchange; the last thing that a constructor does. constants: what the optimizer
        applies to results and has in no parameter group, by name. Collective."""
        for group in self.param_groups:
            self._check_group(group)
        named = _named(self, model)
        groups = self._before_selection(_numbers_of_groups(self, named))
        is_wrapped = isinstance(model, DistributedDataParallel)
        groups.applied = applied_by(self, model if is_wrapped else None, constants)
        if is_wrapped:
            if process_group is not None and process_group is not model.process_group:
                raise ParamError("process_group: it is that of the model; leave it out")
            self._exchange = DDPStep(ddp.attach(model, named, groups=groups, **options))
            self.thinwire = self._exchange.engine
        else:
            _check_not_wrapped(held(self))
            self.thinwire = Engine(named, process_group, groups=groups, **options)
            self._exchange = PlainStep([parameter for _, parameter in named], self.thinwire, passes)
            weakref.finalize(self, self.thinwire.close)

    def stats(self):
        """Bytes, counts and times: totals, and those of the last step, as last_..."""
        return self.thinwire.stats()

    def summary(self):
        """One line."""
        return self.thinwire.summary()

    def close(self):
        """Frees everything now, not when the optimizer or the model is freed."""
        self._exchange.close()

    def state_dict(self):
        """As torch's, with this rank's residuals, moments, thresholds and counters. Every rank has
        its own: save all of them."""
        if self.saved_apart:
            return super().state_dict()
        return {**super().state_dict(), "thinwire": self.thinwire.state_dict()}

    def gather_state_dict(self, dst=None):
        """The states of all ranks in one dict, which load_state_dict() takes on all ranks of any
        number. Collective. dst: the rank that gets it; others get None. Default: all."""
        exchange = self.thinwire.gather_state_dict(dst)
        return {**super().state_dict(), "thinwire": exchange} if exchange is not None else None

    def load_state_dict(self, state, allow_missing: bool = False):
        """Continues from this rank's dict, from gather_state_dict(), or from the list of the dicts
        of all ranks: see docs/python.md. Collective. After an error nothing has changed.
        allow_missing: the list may lack ranks that died with their states."""
        before = super().state_dict()
        if self.saved_apart and "thinwire" not in state:
            try:
                super().load_state_dict(state)
                return self._check_unchanged()
            except Exception:
                super().load_state_dict(before)
                raise
        try:
            first, exchange = _parts(state)
            super().load_state_dict(first)
            self._check_unchanged()
        except Exception:       # perhaps on this rank only: the others must not wait for it
            super().load_state_dict(before)
            self.thinwire.refuse_state()
            raise
        try:
            self.thinwire.load_state_dict(exchange, allow_missing)
        except BaseException:
            super().load_state_dict(before)
            raise

    def _check_unchanged(self):
        """Refuses values in the groups that the exchange cannot follow."""


def _parts(state):
    """torch's part of a state (of a list, the first one's), and the engine's parts."""
    every = state if isinstance(state, (list, tuple)) else [state]
    if not every or not all(isinstance(one, dict) and "thinwire" in one for one in every):
        raise MismatchError("expected a dict that state_dict() of an optimizer of thinwire "
                            "returned, or a list of such dicts")
    first = {name: value for name, value in every[0].items() if name != "thinwire"}
    exchange = [one["thinwire"] for one in every]
    return first, exchange if isinstance(state, (list, tuple)) else exchange[0]


# ---- AdamW

class _AdamWRule(torch.optim.Optimizer):
    """Subtracts mean updates from the parameters; the receiver's part of AdamW."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._is_updated:
            self._locate()
            with self.thinwire.on_stream():
                self._update()
        self._is_updated = False
        return loss

    def _locate(self):
        """Looks where the parameters lie; a Decay needs them to stay there."""
        if self.thinwire.locate(self._exchange.parameters):
            known = set(map(id, self._exchange.parameters))
            self._decays = [Decay([one for one in group["params"] if id(one) in known])
                            for group in self.param_groups]

    def _update(self):
        for group, decay in zip(self.param_groups, self._decays):
            decay.step(group)
        if self._clip_update:
            _clip(self.thinwire.updates, self._clip_update)
        self.thinwire.subtract(self._exchange.parameters)
        self._is_updated = True


def _clip(updates, limit):
    """Scales all updates down to a common 2-norm."""
    norm = torch.stack([one.norm() for one in updates]).norm()
    factor = (limit / norm).clamp(max=1.0)      # 1 if norm is 0
    for one in updates:
        one.mul_(factor)


class AdamW(_Exchanging, _AdamWRule):
    """AdamW of each rank's own gradient before selection; the mean update is applied. Collective.

    params: a module, plain or DistributedDataParallel, whose one-dimensional parameters get no
    weight decay; or parameters or parameter groups as in torch, with model= the
    DistributedDataParallel if there is one. Without it weights must be equal at the start.

    steps: optimizer steps of the whole run. The density then falls from warmup_density (0.25) to
    its value during the first fifth. warmup_steps says it directly; warmup is "exponential",
    "linear" or "cosine". density may be a function of the step; warmup_density is then the largest
    value that it returns. A rate of two to three times dense AdamW's suits.

    Weight decay of groups of more than 2 million elements is applied to a part of them in each
    step, for all steps since that part's last turn; 16 parts at most (decay.py).

    whole_model: select from each parameter group as a whole, not from each parameter. clip_norm
    limits the 2-norm of each group's (else each parameter's) gradient on each rank, clip_update
    that of the mean update of the model. Other options are those of compress().

    param.grad stays the gradient of this rank. With a DistributedDataParallel backward() exchanges,
    else step() does; with whole_model=False it waits for what backward() has begun.
    """

    @shown
    def __init__(self, params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.99),
                 eps: float = 1e-8, weight_decay: float = 0.01, *,
                 model: Optional[torch.nn.Module] = None, process_group=None,
                 backward_passes_per_step: int = 1, scheme: str = "topka", wire: str = "bf16",
                 whole_model: bool = True, clip_update: float = 0.0,
                 **options: "Unpack[OptimizerOptions]"):
        params, model = _resolve(params, model, weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay})
        _check_number({"clip_update": clip_update}, "clip_update")
        self._clip_update, self._is_updated = clip_update, False
        self._exchange_with(model, process_group, backward_passes_per_step,
                            dict(options, scheme=scheme, wire=wire, whole_model=whole_model),
                            {"clip_update": float(clip_update)})

    @staticmethod
    def _check_group(group):
        for field in ("lr", "weight_decay"):
            _check_number(group, field)
        _check_number(group, "eps", _LOWEST_EPS)
        _check_betas(group["betas"])

    def _before_selection(self, of):
        """What the exchange does. of: the group of each parameter."""
        self._opened = [(tuple(group["betas"]), group["eps"]) for group in self.param_groups]
        options = [{"before": "adamw", "eps": eps, "beta1": betas[0] or sys.float_info.min,
                    "beta2": betas[1]} for betas, eps in self._opened]   # both 0: the defaults
        return Groups(of, options, _rates_of(weakref.ref(self)), is_adaptive=True,
                      whole_updates=self._clip_update > 0)

    def _synchronize(self, then=None):
        self._is_updated = False    # a step that failed may have left it True
        super()._synchronize(then)

    def _prepare_update(self):
        self._locate()
        return torch.no_grad()(self._update)

    def _check_unchanged(self):
        for group, opened in zip(self.param_groups, self._opened):
            if (tuple(group["betas"]), group["eps"]) != opened:
                raise ParamError(f"betas, eps: {group['betas']}, {group['eps']}; they cannot "
                                 f"change, they were {opened[0]}, {opened[1]} (schedulers: "
                                 "cycle_momentum=False)")
            _check_number(group, "lr")


def _rates_of(reference):
    """A function that returns the rate of each group, and does not keep the optimizer alive."""
    def rates():
        optimizer = reference()
        if optimizer is None:
            raise StateError("the optimizer of the model is gone")
        optimizer._check_unchanged()
        return [float(group["lr"]) for group in optimizer.param_groups]
    return rates


# ---- SGD

class SGD(_Exchanging, torch.optim.SGD):
    """torch's SGD of the mean gradient, of which each rank sends the values that matter.
    Collective.

    params, model, steps, density and the warm-up are as in AdamW; most models need no warm-up.
    Momentum comes after the exchange, as in torch. momentum_before=True: before selection, as in
    Deep Gradient Compression. Then torch's part has momentum 0, and weight_decay / (1 - momentum),
    which decays as much. whole_model: select from the model as a whole, not from each parameter.
    Other options are those of compress().

    lr, momentum, dampening, weight_decay and nesterov must be the same on all ranks: they are
    compared in each exchange, and if one differs it raises MismatchError and changes nothing. In
    Join, and after it with the same model, nothing is compared; tensors on a GPU never are.
    """

    @shown
    def __init__(self, params, lr: float, momentum: float = 0, dampening: float = 0,
                 weight_decay: float = 0, nesterov: bool = False, *,
                 momentum_before: bool = False, model: Optional[torch.nn.Module] = None,
                 process_group=None, backward_passes_per_step: int = 1, scheme: str = "oktopk",
                 wire: str = "bf16", whole_model: bool = True,
                 **options: "Unpack[OptimizerOptions]"):
        params, model = _resolve(params, model, weight_decay)
        super().__init__(params, lr, momentum=momentum, dampening=dampening,
                         weight_decay=weight_decay, nesterov=nesterov)
        self._momentum_before = momentum_before
        self._exchange_with(model, process_group, backward_passes_per_step,
                            dict(options, scheme=scheme, wire=wire, whole_model=whole_model))

    def _check_group(self, group):
        for field in ("lr", "momentum", "weight_decay"):
            _check_number(group, field)
        if self._momentum_before and (group["nesterov"] or group["dampening"] != 0):
            raise ParamError("nesterov, dampening: not with momentum_before")
        if self._momentum_before and group["momentum"] != self.param_groups[0]["momentum"]:
            raise ParamError("momentum: with momentum_before all parameter groups have the same")

    def _check_unchanged(self):
        for group in self.param_groups:
            if self._momentum_before and group["momentum"] != 0:
                raise ParamError(f"momentum: {group['momentum']}; with momentum_before that of the "
                                 "parameter groups stays 0, and momentum cannot change "
                                 "(schedulers: cycle_momentum=False)")

    check_applied = _check_unchanged

    def _before_selection(self, of):
        """As in AdamW. Rates come after the exchange, so all groups can be one."""
        momentum = self.param_groups[0]["momentum"] if self._momentum_before else 0.0
        if self._momentum_before and 0 <= momentum < 1:     # the library refuses others
            for group in self.param_groups:
                group["momentum"], group["weight_decay"] = 0, group["weight_decay"] / (1 - momentum)
        return Groups([0] * len(of), [{"momentum": momentum}], is_adaptive=False)
