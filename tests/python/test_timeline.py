"""thinwire.trace(): the timeline holds each part, in the profiler's time; then all is as before."""
import functools
import json
import os
import shutil
import tempfile

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
import thinwire.timeline
from ranks import equal, loss, main, model, run, weights
from test_bad import refused

STEPS = 3
STAGES = {"select", "agree", "exchange", "apply"}


def plain(network):
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.05)
    return optimizer, optimizer


def hooked(network, **options):
    state = thinwire.compress(network, density=0.05, **options)
    return state, torch.optim.SGD(network.parameters(), lr=0.1)


def in_rounds(network):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return thinwire.LocalSteps(network, optimizer, 1), optimizer


def train(network, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()


HOOKED = {"hook", "queue", "exposed", "worker", "begin", "launch", "finish", "wait"}
KINDS = (
    (plain, False, {"synchronize", "begin", "launch", "finish", "wait", "update"}),
    (functools.partial(hooked, whole_model=True), True, HOOKED),
    (functools.partial(hooked, whole_model=False), True, HOOKED),
    (in_rounds, False, {"round", "launch", "finish", "wait"}),
)


def traced(rank, nranks, folder):
    """The weights after some steps within trace(), and without it."""
    results = []
    for number, (make, wrapped, parts) in enumerate(KINDS):
        for tracing in (True, False):
            network = DDP(model(), bucket_cap_mb=0.001) if wrapped else model()
            exchange, optimizer = make(network)
            train(network, optimizer, rank, range(STEPS))
            if tracing:
                before = dict(vars(thinwire.timeline._parts(exchange)["engine"]))
                with thinwire.trace(f"{folder}/{number}.{rank}", exchange) as timeline:
                    train(network, optimizer, rank, range(STEPS, 2 * STEPS))
                after = vars(thinwire.timeline._parts(exchange)["engine"])
                assert set(before) == set(after), set(before) ^ set(after)
                assert all(part in timeline.summary() for part in parts | STAGES)
            else:
                train(network, optimizer, rank, range(STEPS, 2 * STEPS))
            train(network, optimizer, rank, [2 * STEPS])
            results.append(weights(network))
    return results


def check_file(path, parts):
    with open(path) as file:
        whole = json.load(file)
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    ours = [one for one in events if one.get("cat") == "thinwire"]
    assert {one["name"] for one in ours} == parts | STAGES, {one["name"] for one in ours}
    theirs = [float(one["ts"]) for one in events
              if one.get("ph") == "X" and one.get("cat") != "thinwire"]
    assert len(theirs) > 10
    for one in ours:        # 10 ms of doubt in the clocks, on a machine that is busy
        assert one["dur"] >= 0 and min(theirs) - 1e4 < one["ts"] < max(theirs) + 1e4, one
    stages = [one for one in ours if one["name"] in STAGES]
    waits = [one for one in ours if one["name"] == "wait"]
    assert len(stages) == 4 * len(waits) >= 4 * STEPS


def test_timelines():
    folder = tempfile.mkdtemp()     # a TemporaryDirectory would end with the first rank
    try:
        results = run(traced, 2, folder)
        for number, (_, _, parts) in enumerate(KINDS):
            for rank in range(2):
                check_file(f"{folder}/{number}.{rank}", parts)
    finally:
        shutil.rmtree(folder)
    assert equal([torch.cat(one) for one in results])
    for with_trace, without in zip(results[0][::2], results[0][1::2]):
        assert torch.equal(with_trace, without)


def test_refusals():
    refused(thinwire.ParamError, "exchange: SGD; accepted is what compress() returned",
            lambda: thinwire.trace(os.devnull, torch.optim.SGD(model().parameters(), lr=0.1)))
    refused(thinwire.ParamError, "exchange: Single",
            lambda: thinwire.trace(os.devnull, thinwire.compress(model())))
    refused(FileNotFoundError, "nowhere",
            lambda: thinwire.trace("/nowhere/x", thinwire.AdamW(model(), lr=0.1)))


if __name__ == "__main__":
    main([test_timelines, test_refusals])
