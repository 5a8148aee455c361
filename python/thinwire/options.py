"""The options that compress(), Compression, AdamW, SGD and LocalSteps share: names, types,
defaults."""
import inspect
from typing import TYPE_CHECKING, Any, Callable, Optional, TypedDict, TypeVar, Union

if TYPE_CHECKING:
    from torch.cuda.amp import GradScaler

_Function = TypeVar("_Function", bound=Callable[..., Any])


# A signature may not name an option twice: there is a class for each kind of signature.

class _Common(TypedDict, total=False):
    """compress() says what each one does."""

    k: int
    count: str
    steps: int
    warmup: str
    warmup_steps: int
    warmup_density: float
    select: str
    exchange: str
    global_: str
    checksum: bool
    timeout: float
    on_loss: str
    grad_scaler: "GradScaler"
    clip_norm: float
    feedback: bool
    bucket: int
    threads: int
    seed: int
    reuse_period: int
    reuse_low: float
    reuse_high: float
    reuse_nudge: float
    gaussian_rounds: int
    dgc_sample: float


class _Shared(_Common, total=False):
    result: str
    decay: float


class CompressOptions(_Shared, total=False):
    """Beside scheme and density."""

    whole_model: bool
    wire: str
    momentum: float


class OptimizerOptions(_Shared, total=False):
    """Beside scheme, wire, whole_model and momentum."""

    density: Union[float, Callable[[int], float]]


class LocalOptions(_Common, total=False):
    """Beside density, wire, decay, scheme, whole_model and result."""

    momentum: float


class Options(CompressOptions, OptimizerOptions, total=False):
    scheme: str


_DEFAULTS = {"scheme": "oktopk", "k": 0, "count": "of_scheme", "warmup": "exponential",
             "result": "mean", "global_": "exact", "checksum": True, "on_loss": "raise",
             "momentum": 0.0, "clip_norm": 0.0, "feedback": True, "bucket": 0, "threads": 0,
             "seed": 0, "reuse_period": 0, "reuse_low": 0.0, "reuse_high": 0.0, "reuse_nudge": 0.0,
             "gaussian_rounds": 0, "dgc_sample": 0.0, "decay": 0.0}


def check(names):
    for name in names:
        if name not in Options.__annotations__:
            raise TypeError(f"unknown option {name!r}; accepted are "
                            f"{', '.join(Options.__annotations__)}")


def _parameter(name):
    kind, default = Options.__annotations__[name], _DEFAULTS.get(name)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                             annotation=kind if default is not None else Optional[kind])


def shown(function: _Function) -> _Function:
    """Lets help() show the options in place of **options. Type checkers know them from Unpack."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [_parameter(name) for name in Options.__annotations__
            if name not in signature.parameters]
    function.__signature__ = signature.replace(parameters=own + more)
    return function
