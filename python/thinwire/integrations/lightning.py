"""Lightning, 2.0 or newer (package lightning or pytorch_lightning).

    trainer = Trainer(strategy="ddp", callbacks=[ThinwireCallback(density=0.01)])

The states of all ranks are part of Lightning's checkpoint.
"""
try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from ..errors import ParamError
from ..fsdp import ShardedState
from . import attached, metrics


class ThinwireCallback(Callback):
    """Options are those of thinwire.compress(). If configure_optimizers() has made an optimizer of
    thinwire, with self.trainer.strategy.model as its model, that one's are used.

    state: None before fit().
    """

    def __init__(self, **options):
        self.options, self.state, self._found = options, None, None

    def on_fit_start(self, trainer, pl_module):
        options = dict(self.options)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            options.setdefault("grad_scaler", scaler)
        self.state = attached(trainer.strategy.model, trainer.optimizers, **options)
        if isinstance(self.state, ShardedState):
            raise ParamError("HSDP: Lightning's checkpoint would hold one shard's states; call "
                             "thinwire.compress() and save its state yourself")
        if self._found is not None:
            self.state.load_state_dict(self._found)
            self._found = None

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        """All ranks come here; rank 0 writes the file."""
        if self.state is not None:
            checkpoint["thinwire"] = self.state.gather_state_dict(dst=0)

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self._found = checkpoint.get("thinwire")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % trainer.log_every_n_steps == 0:
            values = metrics(self.state) if trainer.is_global_zero and trainer.loggers else {}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
