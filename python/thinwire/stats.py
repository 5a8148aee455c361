"""Bytes, counts and times of steps: totals, and those of the last step."""

BYTES = ("payload_sent", "payload_received", "control_sent", "control_received", "messages_sent")
COUNTS = ("k", "selected", "applied")
TIMES = ("select_seconds", "agree_seconds", "exchange_seconds", "apply_seconds")
# The fastest of the first TRIAL steps is compared with a dense allreduce; the first ones learn
# thresholds and are slow.
TRIAL = 10


class Stats:
    def __init__(self, elements, nranks):
        self.elements = elements
        self.set_ranks(nranks)
        self.missing_states = self.saved_states = 0     # of load_state_dict(allow_missing=True)
        self.dense_seconds = None       # measured: one dense allreduce of all gradients
        self.steps = self.skipped = 0
        self.totals = dict.fromkeys(BYTES + COUNTS + TIMES, 0)
        self.last, self.open = dict(self.totals), dict(self.totals)
        self.fastest = float("inf")

    def set_ranks(self, nranks):
        self.dense_bytes = 2 * (nranks - 1) * 4 * self.elements // nranks

    def add(self, infos):
        """Counts finished tensors. Tensors of one bucket share its bytes and times."""
        buckets = set()
        for info in infos:
            for name in COUNTS:
                self.open[name] += getattr(info, name)
            if info.began in buckets:
                continue
            buckets.add(info.began)
            for name in BYTES:
                self.open[name] += getattr(info.traffic, name)
            for name in TIMES:
                self.open[name] += getattr(info, name)

    def end_step(self, skipped=False):
        if skipped:
            self.skipped += 1
        else:
            self.steps += 1
            self.last = self.open
            self.fastest = min(self.fastest, _busy(self.last))
            for name, value in self.last.items():
                self.totals[name] += value
        self.begin_step()

    def begin_step(self):
        """Starts at zero; what a refused step counted is dropped."""
        self.open = dict.fromkeys(self.totals, 0)

    def slower_than_dense(self):
        """Whether the fastest of the first TRIAL steps took longer than a dense allreduce."""
        return (self.steps == TRIAL and self.dense_seconds is not None
                and self.fastest > self.dense_seconds)

    def as_dict(self):
        """Numbers only, for a logger."""
        measured = {} if self.dense_seconds is None else {"dense_seconds": self.dense_seconds}
        if self.missing_states:
            measured.update(missing_states=self.missing_states,
                            missing_share=self.missing_states / self.saved_states)
        return {"steps": self.steps, "skipped": self.skipped, "elements": self.elements,
                "dense_bytes": self.dense_bytes, **measured, **self.totals,
                **{f"last_{name}": value for name, value in self.last.items()},
                "last_density": self.last["k"] / max(1, self.elements)}

    def line(self):
        steps = max(1, self.steps)
        mean = {name: value / steps for name, value in self.totals.items()}
        sent = mean["payload_sent"] + mean["control_sent"]
        saved = _compared(self.dense_bytes, sent) if sent > 0 and self.dense_bytes > 0 else ""
        times = ", ".join(f"{name.split('_')[0]} {1e3 * mean[name]:.2f}" for name in TIMES)
        return (f"{self.steps} steps, {self.skipped} skipped; a step sends {sent / 1e3:.1f} kB "
                f"(dense {self.dense_bytes / 1e3:.1f} kB{saved}); ms a step: {times}")


def _compared(dense, sent):
    return f", {dense / sent:.1f}x less" if sent <= dense else f", {sent / dense:.1f}x more"


def _busy(step):
    """Seconds of a step, without the wait for the slowest rank: a dense allreduce waits as well."""
    return step["select_seconds"] + step["exchange_seconds"] + step["apply_seconds"]
