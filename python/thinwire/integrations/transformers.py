"""The Trainer of Hugging Face transformers.

    trainer.add_callback(ThinwireCallback(trainer, density=0.01))
    trainer.train()                 # or train(resume_from_checkpoint=True)

Every rank writes its state into the Trainer's checkpoint folder.
"""
import os

from transformers import Trainer, TrainerCallback

from ..errors import ParamError
from ..optimizer import Distributed
from . import attached, load, metrics, save


def _wrapped(optimizer):
    """An optimizer, and those inside of it."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)


class ThinwireCallback(TrainerCallback):
    """Options are those of thinwire.compress(). An optimizer of thinwire is refused: the Trainer
    makes it before it wraps the model, and loads it before this callback.

    resume_from: the folder of the checkpoint, if it is not in the Trainer's output_dir.
    allow_missing: go on without the states of ranks that died. state: None before train().
    """

    def __init__(self, trainer: Trainer, resume_from=None, allow_missing: bool = False, **options):
        self.trainer, self.resume_from, self.options = trainer, resume_from, options
        self.allow_missing = allow_missing
        self.state = self._model = None

    def on_train_begin(self, args, state, control, **_):
        model, options = self.trainer.model_wrapped, dict(self.options)
        if model is not self._model:
            if self.trainer.accelerator.scaler is not None:
                options.setdefault("grad_scaler", self.trainer.accelerator.scaler)
            if any(isinstance(one, Distributed) for one in _wrapped(self.trainer.optimizer)):
                raise ParamError("optimizer: the Trainer makes it before it wraps the model; use "
                                 "torch.optim.AdamW with this callback, or a loop of your own")
            self.state = attached(model, **options)
            self._model = model
        if state.global_step > 0:
            load(self.state, self.resume_from or self._folder(args, state), self.allow_missing)

    def _folder(self, args, state):
        return os.path.join(args.output_dir, f"checkpoint-{state.global_step}")

    def on_save(self, args, state, control, **_):
        save(self.state, self._folder(args, state))

    def on_step_end(self, args, state, control, **_):
        if control.should_log:
            self.trainer.log(metrics(self.state))
