"""trace(): where the time of a step goes, as a timeline for Perfetto and Chrome's tracing page.

torch's profiler records its own operations, and the kernels of a GPU. This adds what lies between
them, one row for each thread that has a part in it:

    hook         DDP hands a bucket of gradients over
    queue        the bucket waits for thinwire's thread
    begin        the library is given its gradients
    worker       the thread has all buckets that it needs: launch, finish
    launch       the exchange of a whole model starts
    wait         for the exchange, or it is run here
    finish       the wait, and what follows it
    exposed      from DDP's last bucket of the step to the end of the exchange
    synchronize  without DDP, all of the exchange in step(): begin, launch, finish
    update       of AdamW: what is subtracted from the parameters
    round        of LocalSteps
    select, agree, exchange, apply
                 the stages of the C library

Nothing is measured outside of trace(): it replaces methods of the objects that it is given, and
takes them away again at its end.
"""
import functools
import json
import os
import tempfile
import threading
import time

import torch

from . import ddp
from .errors import ParamError
from .optimizer import Distributed

_STAGES = ("select", "agree", "exchange", "apply")
_CLOCK = "thinwire's clock"     # an event of the profiler, whose time we note by our clock as well
_TIMED = {                      # methods and their names in the timeline
    "state": {"submit": "hook"},
    "worker": {"_run": "worker", "_begin": "begin"},
    "engine": {"launch": "launch", "_wait": "wait", "finish": "finish"},
    "plain": {"synchronize": "synchronize", "_begin": "begin"},
    "optimizer": {"_update": "update"},
    "local": {"_round": "round"},
}


def _parts(exchange):
    """The objects whose methods are timed, by the names in _TIMED."""
    step = exchange._exchange if isinstance(exchange, Distributed) else None
    state = exchange if isinstance(exchange, ddp.State) else getattr(step, "state", None)
    engine = getattr(exchange, "thinwire", None) or getattr(exchange, "engine", None)
    if engine is None:
        raise ParamError(f"exchange: {type(exchange).__name__}; accepted is what compress() "
                         "returned, an optimizer of thinwire, and LocalSteps, of several ranks and "
                         "on the first rank of a worker")
    return {"engine": engine, "state": state, "worker": getattr(state, "_worker", None),
            "plain": step if state is None else None, "optimizer": exchange, "local": exchange}


class trace:
    """Context manager: writes a timeline of the steps within to `path`, of this rank alone.

    exchange: what compress() returned, an optimizer of thinwire, DistributedOptimizer's, or
    LocalSteps. summary() is a table of the same, afterwards. On a GPU the stages of the library are
    those of the host: kernels of the GPU are in the profiler's rows. After an exception there is
    no timeline, only the table.
    """

    def __init__(self, path, exchange):
        self.path, self._objects = path, _parts(exchange)
        self.engine = self._objects["engine"]
        self._spans = []                    # (name, row, begin, end), in ns of CLOCK_MONOTONIC
        self._last = None                   # when the last bucket of a step was handed over
        self._replaced = []
        with open(path, "a"):               # an error now rather than after the steps
            pass

    # ---- spans

    def _note(self, name, row, begin, end):
        self._spans.append((name, row, begin, end))

    def _timed(self, method, part, name):
        @functools.wraps(method)
        def timed(*arguments, **keywords):
            begin = time.monotonic_ns()
            try:
                return method(*arguments, **keywords)
            finally:
                end = time.monotonic_ns()
                if part == "worker" and name == "begin":
                    self._note_queue(arguments[0], begin)
                elif name == "finish" and self._last is not None:
                    self._note("exposed", "exposed", self._last, end)
                    self._last = None
                self._note(name, threading.current_thread().name, begin, end)
        return timed

    def _note_queue(self, jobs, taken):
        """Our thread has taken these buckets."""
        for job in jobs:
            self._note("queue", "queue", job.since, taken)
            self._last = job.since if job.last else None

    def _counted(self, add):
        """Stats.add, of the tensors that have just been exchanged."""
        @functools.wraps(add)
        def counted(infos):
            for info in {info.began: info for info in infos}.values():      # one of each bucket
                at = int(info.began * 1e9)
                for stage in _STAGES:
                    end = at + int(getattr(info, stage + "_seconds") * 1e9)
                    self._note(stage, "library", at, end)
                    at = end
            return add(infos)
        return counted

    def _replace(self, owner, name, method):
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, method)

    def __enter__(self):
        kinds = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(
            activities=[kinds.CPU] + [kinds.CUDA] * (self.engine.stream is not None))
        self._profiler.__enter__()
        for _ in range(2):      # the first one takes longer
            before = time.monotonic_ns()
            with torch.profiler.record_function(_CLOCK):
                self._now = (before + time.monotonic_ns()) / 2
        for part, methods in _TIMED.items():
            owner = self._objects[part]
            for name, label in methods.items():
                if hasattr(owner, name):
                    self._replace(owner, name, self._timed(getattr(owner, name), part, label))
        self._replace(self.engine.costs, "add", self._counted(self.engine.costs.add))
        return self

    def __exit__(self, *error):
        for owner, name, before in reversed(self._replaced):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._profiler.__exit__(*error)
        if error[0] is None:
            self._write()

    # ---- the file

    def _write(self):
        """The profiler's events and ours, by its clock."""
        file, name = tempfile.mkstemp(suffix=".json")
        os.close(file)
        try:
            self._profiler.export_chrome_trace(name)
            with open(name) as theirs:
                whole = json.load(theirs)
        finally:
            os.unlink(name)
        events = whole if isinstance(whole, list) else whole["traceEvents"]     # of torch 1
        clocks = [float(one["ts"]) for one in events
                  if one.get("name") == _CLOCK and one.get("ph") == "X"]
        events += self._events(max(clocks) - self._now / 1e3)
        with open(self.path, "w") as out:
            json.dump(whole, out)

    def _events(self, shift):
        """Rows are threads of a process of their own, above the profiler's."""
        rank, rows = self.engine.transport.rank, {}
        for _, row, _, _ in self._spans:
            rows.setdefault(row, len(rows))
        process = f"thinwire {rank}"
        named = [("process_name", 0, f"thinwire, rank {rank}")]
        named += [("thread_name", number, row) for row, number in rows.items()]
        return [{"ph": "M", "name": kind, "pid": process, "tid": number, "args": {"name": name}}
                for kind, number, name in named] + [
            {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": -1}}
        ] + [{"ph": "X", "cat": "thinwire", "name": name, "pid": process, "tid": rows[row],
              "ts": begin / 1e3 + shift, "dur": (end - begin) / 1e3}
             for name, row, begin, end in self._spans]

    def summary(self):
        """A table: of each part how often it came, and how long it took."""
        parts = {}
        for name, row, begin, end in sorted(self._spans, key=lambda span: span[2]):
            parts.setdefault((row, name), []).append((end - begin) / 1e3)
        lines = [f"{'row':16} {'part':12} {'calls':>6} {'mean us':>9} {'longest us':>10}"]
        lines += [f"{row:16} {name:12} {len(times):6} {sum(times) / len(times):9.1f} "
                  f"{max(times):10.1f}" for (row, name), times in parts.items()]
        return "\n".join(lines)
