"""Hugging Face Accelerate.

    import thinwire.integrations.accelerate
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = thinwire.integrations.accelerate.attach(accelerator, model, density=0.01)
    ...
    state.log(step)                     # through accelerator.log()
    accelerator.save_state(folder)      # and load_state(folder): with the state of every rank
"""
from accelerate import Accelerator

from ..errors import StateError
from . import attached, load, metrics, save


class Attached:
    """What attach() returns: the state, with log()."""

    def __init__(self, accelerator, state, allow_missing):
        self.accelerator, self.state, self.allow_missing = accelerator, state, allow_missing

    def __getattr__(self, name):
        return getattr(self.state, name)

    def __repr__(self):
        return repr(self.state)

    def log(self, step):
        """Logs the last step's figures."""
        self.accelerator.log(metrics(self.state), step=step)

    def _save(self, _models, _weights, folder):
        if any(one is self or one is self.state for one in self.accelerator._custom_objects):
            raise StateError("register_for_checkpointing() with a state of thinwire: accelerate "
                             "would save that of rank 0 alone. Leave the call out: attach() has "
                             "every rank's state saved and loaded")
        save(self.state, folder)

    def _load(self, _models, folder):
        load(self.state, folder, self.allow_missing)


def attach(accelerator: Accelerator, model, allow_missing: bool = False, **options) -> Attached:
    """Compresses a model that accelerator.prepare() has wrapped. Collective. Options are those of
    thinwire.compress(). A thinwire optimizer that was prepared keeps its own.

    allow_missing: accelerator.load_state() goes on without the states of ranks that died."""
    if accelerator.scaler is not None:
        options.setdefault("grad_scaler", accelerator.scaler)
    state = Attached(accelerator, attached(model, accelerator._optimizers, **options),
                     allow_missing)
    accelerator.register_save_state_pre_hook(state._save)
    accelerator.register_load_state_pre_hook(state._load)
    return state
