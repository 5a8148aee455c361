"""Weight decay that touches a part of a large group in each step.

To decay all parameters in each step is to read and write all of them: with AdamW before selection
that would be 2 of 9 words an element. So a parameter group is divided into parts. Each step decays
one part, by the product of the factors of all steps since its last turn. After a step the weights
of a part lack the decay of at most 15 steps: with rate 1e-3 and weight decay 0.01, 0.00015 of their
value. Small groups are one part, which is decayed in each step as in torch.

What is pending is in the parameter group, so that torch saves and loads it.
"""
import torch

_PARTS = 16             # at most
_LEAST = 1 << 20        # elements of a part


class Decay:
    """The parameters of a group. They must stay where they are."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.total = sum(one.numel() for one in parameters)
        self.views = {}     # of parts that had their turn

    def step(self, group):
        """One step of the weight decay of a parameter group."""
        factor = 1.0 - float(group["lr"]) * group["weight_decay"]
        pending, turn = group.get("pending_decay"), group.get("decay_turn", 0)
        if pending is None and factor == 1.0:
            return
        if pending is None:
            pending = [1.0] * max(1, min(_PARTS, self.total // _LEAST))
        pending = [one * factor for one in pending]     # a new list: a state_dict may hold the old
        part = self._part(turn, len(pending))
        if pending[turn] != 1.0 and part:       # torch takes no empty list
            torch._foreach_mul_(part, pending[turn])
        pending[turn] = 1.0
        group["pending_decay"], group["decay_turn"] = pending, (turn + 1) % len(pending)

    def _part(self, turn, parts):
        """Part `turn` of the elements, as views."""
        if parts == 1:
            return self.parameters
        if (turn, parts) not in self.views:
            self.views[turn, parts] = list(self._cut(turn * self.total // parts,
                                                     (turn + 1) * self.total // parts))
        return self.views[turn, parts]

    def _cut(self, begin, end):
        """Elements begin .. end - 1. A parameter that is not contiguous is cut nowhere: it belongs
        to the part in which it begins."""
        for one in self.parameters:
            size = one.numel()
            first, last = max(begin, 0), min(end, size)
            if one.is_contiguous() and first < last:
                yield one.view(-1)[first:last]
            elif not one.is_contiguous() and begin <= 0 < end:
                yield one
            begin, end = begin - size, end - size
