"""What compress() returns for a plain model in a job of one process: nothing is exchanged, and
gradients stay as they are. So a script needs no case of its own for one process."""
from typing import Any, Dict, Optional

import torch

from . import states
from .engine import Engine
from .errors import MismatchError
from .stats import Stats


class Single:
    """named: the trained parameters, as Engine takes them. forms: values of whole_model that a job
    of several ranks may have had which left its states here."""

    scaler = None

    def __init__(self, named, forms, **options):
        self._named, self._forms, self._options = named, forms, options
        self._saved = None      # residuals of a larger job wait here for the next one
        # Checks what several ranks would. Nobody writes the memory of these tensors.
        Engine([(name, torch.empty_like(one, device="cpu")) for name, one in named],
               whole_model=forms[0], opens=False, **options).close()

    def stats(self) -> Dict[str, float]:
        """The figures of several ranks, all 0 but the size of the model."""
        return Stats(sum(parameter.numel() for _, parameter in self._named), 1).as_dict()

    def summary(self) -> str:
        return f"thinwire {self._options['scheme']}, one process: nothing is exchanged"

    def residual_norm(self) -> float:
        return 0.0

    def state_dict(self) -> Dict[str, Any]:
        """The sum of the residuals that load_state_dict() was given."""
        return self._saved or states.of_one_process(self._state(self._forms[0]))

    def gather_state_dict(self, dst: Optional[int] = None) -> Optional[Dict[str, Any]]:
        states.check_root(dst, 1)
        mine = self.state_dict()
        every = states.gathered(mine, [mine["state"].plain()])
        return every if self._saved else states.of_one_process(every)

    def load_state_dict(self, saved: Any, allow_missing: bool = False) -> None:
        """Keeps the residuals for the job that continues from here with several ranks."""
        self._saved, failure = None, None
        if states.is_of_one_process(saved):
            return
        for whole_model in self._forms:
            try:
                self._saved = self._state(whole_model, saved, allow_missing)
                return
            except MismatchError as error:
                failure = failure or error
        raise failure

    def _state(self, whole_model, saved=None, allow_missing=False):
        """The state of a rank that takes over all that were saved, if any."""
        engine = Engine(self._named, whole_model=whole_model, **self._options)
        try:
            if saved is not None:
                engine.load_state_dict(saved, allow_missing)
            return engine.state_dict()
        finally:
            engine.close()

    def __repr__(self):
        return f"<thinwire.Single: {self.summary()}>"

    def close(self) -> None:
        pass
