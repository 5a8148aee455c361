"""Densities of the steps of a run: what people ask for, as fields of tw_select_params.

Adaptive optimizers (AdamW and the like) train badly if density is low from the first step on: who
asks for that without having been told is warned once.
"""
import gc
import warnings
from numbers import Integral, Real

from .errors import DensityError, KError, ParamError

DENSITY = 0.01          # default
_LOW = 0.05             # below, adaptive optimizers need a warm-up
_WARMUP_SHARE = 5       # of `steps`: warm-up takes a fifth of the run
_LEAST = 1e-12          # of a density that a function sets: one entry of each tensor
_SHAPES = ("exponential", "linear", "cosine")
_warned = False


class Schedule:
    """density: a number, or a function of the step (0, 1, 2 ...). steps: of the whole run."""

    def __init__(self, elements, density=None, k=0, steps=None, warmup="exponential",
                 warmup_steps=None, warmup_density=None):
        _check(elements, density, k, steps, warmup_steps)
        if warmup not in _SHAPES:
            raise ValueError(f"warmup: {warmup!r}; accepted is {', '.join(map(repr, _SHAPES))}")
        self.function = density if callable(density) else None
        self.options = {"warmup": warmup, "warmup_density": warmup_density or 0.0}
        if self.function is not None:
            self.options.update(warmup="caller", density=_LEAST)
            return
        density = k / elements if k else DENSITY if density is None else density
        self.is_abrupt = (steps is None and warmup_steps is None and isinstance(density, Real)
                          and 0 < density < _LOW)
        if warmup_steps is None:
            warmup_steps = max(1, steps // _WARMUP_SHARE) if steps is not None else 0
        self.options.update(density=density, warmup_steps=warmup_steps)

    is_abrupt = False       # low from the first step on, and nobody said that it should be

    def at(self, step):
        """What the function says of a step."""
        density = self.function(step)
        if not isinstance(density, Real):
            raise DensityError(f"density: the function returned {density!r} for step {step}; "
                               "accepted is a number")
        return density


def _check(elements, density, k, steps, warmup_steps):
    if isinstance(density, Real) and not 0 < density <= 1:      # to the library 0 means: see k
        raise DensityError(f"density: {density!r}; accepted is 0 < density <= 1")
    if not isinstance(k, Integral) or not 0 <= k <= elements:
        raise KError(f"k: {k!r}; accepted is 1 .. {elements}, whole numbers up to the elements "
                     "of all parameters")
    if k and density:
        raise KError(f"k: {k} and density: {density!r}; give k or density, not both")
    if steps is not None and not (isinstance(steps, Integral) and steps > 0):
        raise ParamError(f"steps: {steps!r}; accepted is the number of steps of the whole run")
    if callable(density) and (steps is not None or warmup_steps):
        raise ParamError("steps, warmup_steps: the function that is density says all; leave them "
                         "out")


# ---- the warning

def is_adaptive(options):
    """Adam, AdamW, RMSprop, Adagrad and the like divide by what eps keeps from zero.
    options: an optimizer's defaults, or one of its parameter groups."""
    return "eps" in options


def is_trained_adaptively(parameter):
    """Whether an adaptive optimizer of this process holds the parameter. Looks at all objects, so
    call it once."""
    lists = [one for one in gc.get_referrers(parameter) if type(one) is list]
    return any(type(one) is dict and is_adaptive(one) and any(one.get("params") is params
                                                              for params in lists)
               for one in gc.get_referrers(*lists))


def warn_once():
    global _warned
    if not _warned:
        _warned = True
        warnings.warn("thinwire: with AdamW and other adaptive optimizers a low density from the "
                      "first step on costs accuracy; pass steps=, the number of optimizer steps of "
                      "the whole run: density then falls to its value during the first fifth "
                      "(warmup_steps=0 keeps it low, without this warning)")
