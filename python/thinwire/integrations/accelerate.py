"""Hugging Face Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = thinwire.integrations.accelerate.attach(accelerator, model, density=0.01)
    ...
    state.log(step)                     # through accelerator.log()
    accelerator.save_state(folder)      # and load_state(folder): with the state of every rank
"""
from accelerate import Accelerator

from . import attached, load, metrics, save


class Attached:
    """What attach() returns: the state, with log()."""

    def __init__(self, accelerator, state):
        self.accelerator, self.state = accelerator, state

    def __getattr__(self, name):
        return getattr(self.state, name)

    def log(self, step):
        """Logs the last step's figures."""
        self.accelerator.log(metrics(self.state), step=step)


def attach(accelerator: Accelerator, model, allow_missing: bool = False, **options) -> Attached:
    """Compresses a model that accelerator.prepare() has wrapped. Collective. Options are those of
    thinwire.compress(). A thinwire optimizer that was prepared keeps its own.

    allow_missing: accelerator.load_state() goes on without the states of ranks that died."""
    if accelerator.scaler is not None:
        options.setdefault("grad_scaler", accelerator.scaler)
    state = attached(model, accelerator._optimizers, **options)
    accelerator.register_save_state_pre_hook(lambda _models, _weights, folder: save(state, folder))
    accelerator.register_load_state_pre_hook(
        lambda _models, folder: load(state, folder, allow_missing))
    return Attached(accelerator, state)
