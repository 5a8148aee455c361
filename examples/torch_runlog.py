"""The run log of the PyTorch examples: the JSON lines that `thinwire train` writes and `thinwire
report` reads (docs/training.md lists them), with times of steps and histograms of acc.

Nothing here waits for the GPU during a step: marks are CUDA events, and losses stay on the device
until `RunLog.flush`, which all ranks call together.
"""
import json
import math
import time

import torch
import torch.distributed as dist

VERSION, BINS, REACH = 1, 64, 6.0  # as `thinwire train` writes them
STAGES = ("data", "forward", "backward", "exposed", "optimiser")
STATS = {"density": "density", "k": "k", "selected": "selected", "applied": "applied",
         "payload_sent": "payload_sent", "payload_recv": "payload_received",
         "control": "control_sent", "select_s": "select_seconds", "wait_s": "agree_seconds",
         "exchange_s": "exchange_seconds", "apply_s": "apply_seconds"}  # the log's name, thinwire's


class Clock:
    """Marks between the stages of one step, in the device's time."""

    def __init__(self, device):
        self.events = device.type == "cuda"
        self.marks = []

    def mark(self):
        if self.events:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        """One number per stage: between each mark and the next. Waits for the last mark."""
        pairs = list(zip(self.marks, self.marks[1:]))
        if not self.events:
            return [after - before for before, after in pairs]
        self.marks[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


def tidied(value):
    """Floats with seven digits; None (null) for NaN and infinity, which JSON does not have."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None


class RunLog:
    """Collects steps on every rank; rank 0 writes them. path None: writes nothing. A log that is
    resumed continues at a position() of it."""

    def __init__(self, path, device, size=0, elapsed=0.0):
        self.file, self.device, self.pending, self.elapsed = None, device, [], elapsed
        if path and dist.get_rank() == 0:
            self.file = open(path, "a")
            self.file.truncate(size)

    def position(self):
        """Bytes and seconds of the run so far."""
        return self.file.tell() if self.file else 0, self.elapsed

    def write(self, kind, **values):
        if self.file:
            tidy = {key: tidied(value) for key, value in values.items()}
            self.file.write(json.dumps({"kind": kind, **tidy}) + "\n")
            self.file.flush()

    def step(self, values, loss, accuracy, clock):
        """loss and accuracy: of this rank's batch, tensors without a dimension."""
        self.pending.append((values, loss, accuracy, clock))

    def flush(self):
        """Write the steps since the last flush, losses as means over ranks. Collective."""
        if not self.pending:
            return
        means = torch.stack([torch.stack([loss.double(), accuracy.double()])
                             for _, loss, accuracy, _ in self.pending]).cpu()
        dist.all_reduce(means)
        means /= dist.get_world_size()
        for (values, _, _, clock), (loss, accuracy) in zip(self.pending, means.tolist()):
            parts = clock.seconds()
            self.elapsed += sum(parts)
            self.write("step", **values, loss=loss, accuracy=accuracy, time_s=sum(parts),
                       **{f"{name}_s": part for name, part in zip(STAGES, parts)},
                       elapsed_s=self.elapsed, skipped=0)
        self.pending.clear()


def sparse_step(state):
    """Counts, bytes and times of the last step, from thinwire's state."""
    stats = state.stats()
    return {key: stats[f"last_{name}"] for key, name in STATS.items()}


def dense_step(parameters, nranks):
    """The bytes of a ring allreduce of all gradients; plain DDP does not count its own."""
    moved = 2 * 4 * parameters * (nranks - 1) // nranks
    return {"density": 1.0, "k": parameters, "selected": parameters, "applied": parameters,
            "payload_sent": moved, "payload_recv": moved, "control": 0}


def snapshot(acc, k):
    """Histogram of acc[n] over mean +- six standard deviations, with values beyond in the outer
    bins, and |u - Top_k(u)|^2 / |u|^2 with the bounds of GaussianK-SGD's Theorem 1."""
    n, squares = acc.numel(), acc.double().square()
    mean, total = acc.double().mean().item(), squares.sum().item()
    reach = REACH * math.sqrt(max(total / n - mean * mean, 1e-60))
    low, high = mean - reach, mean + reach
    bins = ((acc.double() - low) / (high - low) * BINS).clamp_(0, BINS - 1).long()
    kept = squares.topk(k, sorted=False).values.sum().item() if k < n else total
    rest = 1 - k / n
    return {"low": low, "high": high, "counts": torch.bincount(bins, minlength=BINS).tolist(),
            "n": n, "k": k, "contraction": max(0.0, 1 - kept / total) if total > 0 else 0.0,
            "bound_topk": rest * rest, "bound_random": rest}


class Observer:
    """acc = gradient + residual of this rank in one step. Create it before the step, call acc()
    after it."""

    def __init__(self, model, state):
        held = {} if state is None else dict(zip(state.engine.names, state.engine.residuals()))
        self.parts = {name: held[name].to(p.device).as_strided(p.size(), p.stride())
                      if name in held else torch.zeros_like(p)
                      for name, p in model.named_parameters()}
        self.hooks = [p.register_hook(lambda grad, name=name: self.add(name, grad))
                      for name, p in model.named_parameters()]

    def add(self, name, grad):
        self.parts[name].add_(grad)  # a hook's result would replace the gradient

    def acc(self):
        for hook in self.hooks:
            hook.remove()
        return torch.cat([part.flatten() for part in self.parts.values()])
