"""Thinwire inside of training frameworks. Each module imports its framework, and nothing else does:

    thinwire.integrations.accelerate        attach(accelerator, model, ...)
    thinwire.integrations.lightning         ThinwireCallback(...)
    thinwire.integrations.transformers      ThinwireCallback(trainer, ...)

Each attaches after the framework has wrapped the model, saves the state of every rank with the
framework's checkpoint and takes it back, and logs through the framework's loggers.
"""
import os

from .. import states
from ..ddp import compress
from ..fsdp import ShardedState
from ..optimizer import Distributed
from ..single import Single


def _inner(optimizer):
    """An optimizer without the framework's wrappers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def attached(model, optimizers=(), **options):
    """The state of a wrapped model: that of thinwire's optimizer if it has one, else compress()'s.
    The framework goes on to save the optimizer's own part."""
    for optimizer in map(_inner, optimizers):
        if isinstance(optimizer, Distributed):
            optimizer.check_wrapped(model)
            optimizer.saved_apart = True
            return optimizer.thinwire
    return compress(getattr(model, "_orig_mod", model), **options)      # of torch.compile


def metrics(state):
    """The last step's figures, for a logger: bytes, density, residual norm, times."""
    last = {f"thinwire/{name[5:]}": value for name, value in state.stats().items()
            if name.startswith("last_")}
    return {**last, "thinwire/residual_norm": state.residual_norm()}


def _engine(state):
    return getattr(state, "engine", state)


def _place(state, folder):
    """HSDP: each shard has states of its own."""
    if not isinstance(state, ShardedState):
        return folder
    return os.path.join(folder, f"thinwire-shard-{state.shard}-of-{state.shards}")


def save(state, folder):
    """Writes this rank's state beside a checkpoint. Call it on all ranks."""
    states.save(_place(state, folder), _engine(state).state_dict())


def load(state, folder, allow_missing=False):
    """Takes the states beside a checkpoint, of any number of ranks. Collective. Files of ranks that
    died may be missing with allow_missing."""
    if isinstance(state, Single):
        state.load_state_dict(states.load(folder, 0, 1), allow_missing)
        return
    engine = _engine(state)
    try:
        mine = states.load(_place(state, folder), engine.transport.rank, engine.transport.nranks)
    except Exception:       # perhaps on this rank only: the others must not wait for it
        engine.refuse_state()
        raise
    engine.load_state_dict(mine, allow_missing)
