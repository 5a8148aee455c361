"""Errors are Python exceptions whose texts say what is wrong. A lost rank is named."""
import os
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from unittest import mock

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import thinwire
from known import Known, gradient
from ranks import loss, main, model, run
from thinwire.process_group import transport_of


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {str(error)!r}"
        return
    assert False, f"{kind} with {words!r} was expected"


def bad_arguments(rank, nranks):
    def fresh():
        return DDP(model())
    refused(TypeError, "DistributedOptimizer", lambda: thinwire.compress(model()))
    refused(TypeError, "'fluff'", lambda: thinwire.compress(fresh(), fluff=1))
    refused(ValueError, "'median'", lambda: thinwire.compress(fresh(), result="median"))
    refused(ValueError, "bucket", lambda: thinwire.compress(fresh(), whole_model=True, bucket=5))
    for option, wrong, right in (("density", "0.1", "a number"), ("scheme", 5, "a name"),
                                 ("select", 5, "a name"), ("warmup_steps", 1e3, "a whole number")):
        refused(TypeError, f"{option}: {wrong!r}; accepted is {right}",
                lambda: thinwire.compress(fresh(), **{option: wrong}))
    for k in (3000, 0.5, -1):
        refused(thinwire.KError, f"k: {k}; accepted is 1 .. 2283",
                lambda: thinwire.compress(fresh(), k=k))
    refused(thinwire.KError, "give k or density, not both",
            lambda: thinwire.compress(fresh(), density=0.01, k=5))
    for timeout in (timedelta(seconds=9), float("inf"), -1):
        refused(thinwire.ParamError, f"timeout: {timeout!r}",
                lambda: thinwire.compress(fresh(), timeout=timeout))
    refused(thinwire.ParamError, "grad_scaler: True",
            lambda: thinwire.compress(fresh(), grad_scaler=True))
    refused(thinwire.NameError, "select: 'nope' is not known",
            lambda: thinwire.compress(fresh(), select="nope"))
    refused(thinwire.MismatchError, "select: rank 1 has dgc, rank 0 has exact; ",
            lambda: thinwire.compress(fresh(), select=("exact", "dgc")[rank]))
    refused(thinwire.MismatchError, "global_: rank 1 has 'reuse', rank 0 has 'exact'; ",
            lambda: thinwire.compress(fresh(), global_=("exact", "reuse")[rank]))
    refused(thinwire.MismatchError, "count: rank 1 has 'per_rank', rank 0 has 'of_scheme'; ",
            lambda: thinwire.compress(fresh(), count=("of_scheme", "per_rank")[rank]))
    refused(thinwire.ParamError, "count: 'per_rank' needs a fixed exchange",
            lambda: thinwire.compress(fresh(), "auto", count="per_rank"))
    refused(thinwire.ParamError, "on_loss, count: 'shrink' is not possible with 'per_rank'",
            lambda: thinwire.SGD(model(), 0.1, on_loss="shrink", count="per_rank"))
    refused(thinwire.MismatchError, "on_loss: rank 1 has 'shrink', rank 0 has 'raise'; ",
            lambda: thinwire.SGD(model(), 0.1, on_loss=("raise", "shrink")[rank]))
    refused(thinwire.MismatchError, "type: rank 1 has bfloat16, rank 0 has float32; ",
            lambda: thinwire.SGD(model().to((torch.float, torch.bfloat16)[rank]), 0.1))
    refused(thinwire.NameError, "okto", lambda: thinwire.compress(fresh(), scheme="okto"))
    refused(thinwire.DensityError, "density", lambda: thinwire.compress(fresh(), density=2.0))
    refused(thinwire.ParamError, "momentum", lambda: thinwire.compress(fresh(), momentum=3.0))
    refused(thinwire.ParamError, "'4.bias' is torch.float64",
            lambda: thinwire.compress(DDP(model().double())))
    sparse = DDP(torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True)))
    refused(thinwire.ParamError, "'0' gives its weight a sparse", lambda: thinwire.compress(sparse))
    refused(thinwire.MismatchError, "density",
            lambda: thinwire.compress(fresh(), density=0.1 * (rank + 1)))
    refused(thinwire.ParamError, "'a' has no elements", lambda: thinwire.compress(DDP(Known(a=0))))
    optimizer = torch.optim.SGD(model().parameters(), lr=1.0)
    refused(TypeError, "Compression",
            lambda: thinwire.DistributedOptimizer(optimizer, compression="oktopk"))
    refused(TypeError, "optimizer: Seq", lambda: thinwire.DistributedOptimizer(model()))
    hooked = fresh()
    hooked.register_comm_hook(None, lambda _, bucket: None)
    refused(thinwire.StateError, "another", lambda: thinwire.compress(hooked))
    twice = fresh()
    state = thinwire.compress(twice)
    refused(thinwire.StateError, "already", lambda: thinwire.compress(twice))
    state.close()
    refused(RuntimeError, "closed", lambda: loss(twice, rank, 0).backward())


def test_bad_arguments():
    run(bad_arguments, 2)


def one_rank_fails(rank, nranks):
    """Rank 1 has no memory for the vector of the whole model, which dense needs. Rank 0 fails at
    once, not when rank 1 ends."""
    begin, network = time.monotonic(), DDP(Known(a=100))

    def attempt():
        thinwire.compress(network, "dense", whole_model=True, timeout=20.0)
    if rank == 1:
        with mock.patch("torch.empty", side_effect=RuntimeError("out of memory")):
            refused(RuntimeError, "out of memory", attempt)
    else:
        refused(thinwire.TransportError, "rank 1", attempt)
    assert time.monotonic() - begin < 15
    dist.barrier()


def many_cores(rank, nranks):
    """On a large machine torch's default is more threads than the library accepts."""
    with mock.patch("torch.get_num_threads", return_value=300):
        thinwire.compress(DDP(Known(a=100)))


def test_one_rank_fails():
    run(one_rank_fails, 2)
    run(many_cores, 1)


def changed_size(rank, nranks):
    """On rank 1 only. Rank 0 fails at once."""
    network = Known(a=100)
    optimizer = thinwire.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=1.0),
                                              network.named_parameters())
    refused(thinwire.SizeError, "on meta, it was 100 x torch.float32 on cpu",
            lambda: optimizer.thinwire.begin(0, torch.zeros(100, device="meta")))
    begin = time.monotonic()
    if rank == 1:
        network.a.data = torch.zeros(50)
        network.a.grad = gradient(50, 0, 0)
        refused(thinwire.SizeError, "'a' has changed", optimizer.step)
    else:
        network({"a": gradient(100, 0, 0)}).backward()
        refused(thinwire.TransportError, "rank 1", optimizer.step)
    assert time.monotonic() - begin < 30


def test_changed_size():
    run(changed_size, 2)


def bad_states(rank, nranks):
    """On rank 1 only. Rank 0 fails at once, and both continue."""
    network, other = DDP(model()), DDP(model(width=41))
    state, saved = thinwire.compress(network), thinwire.compress(other).state_dict()
    begin = time.monotonic()
    if rank == 1:
        refused(thinwire.MismatchError, "'4.weight' has 123 elements in it, 120 in this model",
                lambda: state.load_state_dict(saved))
    else:
        refused(thinwire.FileError, "rank 1: ", lambda: state.load_state_dict(state.state_dict()))
    assert time.monotonic() - begin < 30
    refused(thinwire.MismatchError, "expected a dict that thinwire's state_dict()",
            lambda: state.load_state_dict(network.state_dict()))
    if rank == 1:
        refused(AttributeError, "'str'", lambda: state.load_state_dict(
            dict(state.state_dict(), state="text")))
    else:
        refused(thinwire.FileError, "rank 1: ", lambda: state.load_state_dict(state.state_dict()))
    saved = state.state_dict()
    saved["names"].reverse()
    saved["sizes"].reverse()
    refused(thinwire.MismatchError, "another order", lambda: state.load_state_dict(saved))
    loss(network, rank, 0).backward()


def test_bad_states():
    run(bad_states, 2)


def train_until(rank, leaves, how, unused=False, **options):
    """Rank `leaves` leaves at step 3. Returns what the others raised, and after how long."""
    network = DDP(model(), find_unused_parameters=unused)
    thinwire.compress(network, density=0.05, **options)
    for step in range(10):
        now = loss(network, rank, step)
        if step == 3 and rank == leaves:
            return how()
        begin = time.monotonic()
        try:
            now.backward()
        except thinwire.Error as error:
            return type(error).__name__, str(error), time.monotonic() - begin
    assert False, "nothing was raised"


def dies(rank, nranks):
    return train_until(rank, 1, lambda: os._exit(3))


def test_rank_dies():
    for result in run(dies, 3, may_die=(1,))[::2]:
        kind, words, seconds = result
        assert kind == "TransportError" and "rank 1" in words and seconds < 30, result


def dies_without_ddp(rank, nranks, whole_model):
    """Every later step raises the error again."""
    network = model()
    optimizer = thinwire.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(),
        thinwire.Compression(density=0.05, timeout=20.0, whole_model=whole_model))

    def step():
        optimizer.zero_grad()
        loss(network, rank, 0).backward()
        optimizer.step()
    step()
    if rank == 1:
        os._exit(3)
    begin = time.monotonic()
    for _ in range(4):
        refused(thinwire.TransportError, "rank 1", step)
    assert time.monotonic() - begin < 10


def test_rank_dies_without_ddp():
    for whole_model in (False, True):
        run(dies_without_ddp, 3, whole_model, may_die=(1,))


def dies_before_a_union(rank, nranks):
    transport = transport_of(None, 20.0)
    transport.prepare_union(3)
    assert transport.union([rank == 0, rank == 2, False]) == [True, True, False]
    if rank == 1:
        os._exit(3)
    begin = time.monotonic()
    refused(thinwire.TransportError, "rank 1", lambda: transport.union([True]))
    assert time.monotonic() - begin < 10


def test_rank_dies_before_a_union():
    run(dies_before_a_union, 3, may_die=(1,))


def stops(rank, nranks, seconds, unused):
    """Rank 1 comes too late to step 3. Returns what each rank raised, after how long, and what the
    next passes raise."""
    network = DDP(model(), find_unused_parameters=unused)
    thinwire.compress(network, density=0.05, timeout=seconds)
    for step in range(3):
        loss(network, rank, step).backward()
    now, early = loss(network, rank, 3), loss(network, rank, 4)
    if rank == 1:
        time.sleep(1.4 * seconds)
    begin, found = time.monotonic(), []
    for attempt in (now.backward, early.backward, lambda: loss(network, rank, 5)):
        try:
            attempt()
            assert False, "nothing was raised"
        except thinwire.Error as error:
            found.append((type(error).__name__, str(error), time.monotonic() - begin))
    with torch.no_grad():
        loss(network, rank, 5)      # for a last evaluation
    return found


def test_rank_stops():
    """The late rank is named on all ranks, itself included, and in later passes too. The error
    comes when it should; DDP's sum of used parameters does not delay it."""
    for seconds in (2.0, 4.0, 8.0)[:3 if os.environ.get("THINWIRE_TEST_LONG") else 2]:
        for unused in (False, True):
            results = run(stops, 3, seconds, unused)
            for rank, found in enumerate(results):
                for kind, words, _ in found:
                    assert f"within {seconds:g} s from rank 1;" in words, (rank, words)
                    assert kind == "TimeoutError" or rank == 1, (rank, kind)
                assert rank == 1 or 0.9 < found[0][2] / seconds < 1.15, found[0]
            print(f"timeout {seconds:g} s, unused parameters {unused}: raised after",
                  ", ".join(f"{results[rank][0][2]:.3f} s" for rank in (0, 2)), flush=True)


class BadStream:
    """A CUDA stream after an error of the device."""

    def wait_event(self, _):
        raise RuntimeError("CUDA error: device-side assert triggered")


class BadFuture(torch.futures.Future):
    """Cannot record an event for a tensor."""

    def set_result(self, value):
        if isinstance(value, torch.Tensor):
            raise RuntimeError("CUDA error: device-side assert triggered")
        super().set_result(value)


def spoil(state, where):
    if where == "wait_event":
        state.engine.stream = BadStream()
    elif where == "set_result":
        torch.futures.Future = BadFuture
    else:
        state.engine.device = BadStream()       # the hook itself cannot ask it for its type


def device_fails(rank, nranks, where, unused):
    """On rank 1 only. Its script gets the error, and the others do not wait for their timeout."""
    network = DDP(model(), find_unused_parameters=unused, bucket_cap_mb=0.001)
    state = thinwire.compress(network, density=0.05, timeout=60.0, whole_model=False)
    loss(network, rank, 0).backward()
    now, begin = loss(network, rank, 1), time.monotonic()
    if rank == 1:
        spoil(state, where)
        refused(Exception, "has no attribute" if where == "hook" else "device-side assert",
                now.backward)
    else:
        refused(thinwire.TransportError, "1", now.backward)
    assert time.monotonic() - begin < 10
    store = dist.distributed_c10d._get_default_store()
    store.set(f"failed{rank}", "")      # no rank ends before the other has failed too
    store.wait([f"failed{1 - rank}"])


def test_device_fails():
    for where in ("wait_event", "set_result", "hook"):
        for unused in (False, True):
            run(device_fails, 2, where, unused)


class Checkpointed(torch.nn.Module):
    """The backward pass of the last layer runs inside that of the model."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(12, 400), torch.nn.Linear(400, 3)

    def forward(self, inputs):
        return checkpoint(self.second, self.first(inputs), use_reentrant=True)


def nan_in_the_end(rank, nranks):
    network = DDP(Checkpointed(), bucket_cap_mb=0.001)
    thinwire.compress(network, density=0.05)
    loss(network, rank, 0).backward()
    network.module.first.weight.register_hook(lambda grad: grad / 0.0)
    refused(thinwire.NumberError, "'first.weight'", lambda: loss(network, rank, 1).backward())


def test_checkpointed_layers():
    """The backward pass in which the error happened raises it, not the next one."""
    run(nan_in_the_end, 2)


def alone(rank, nranks):
    """One rank: values that are not selected stay in the residual."""
    network = DDP(Known(a=100))
    state = thinwire.compress(network, "topka", density=0.1)
    given = gradient(100, 0, 0)
    network({"a": given}).backward()
    sent = network.module.a.grad
    assert sent.count_nonzero() == 10 and torch.equal(sent, torch.where(sent == 0, sent, given))
    network.module.a.grad = None
    network({"a": torch.zeros(100)}).backward()
    assert network.module.a.grad.count_nonzero() == 10
    assert state.stats()["payload_sent"] == 0 and state.stats()["steps"] == 2


def test_world_size_one():
    run(alone, 1)


def slow(rank, nranks):
    """A dense allreduce of a tiny model is faster than any sparse step."""
    network = DDP(model())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = thinwire.compress(network, density=0.05)
        state.engine.costs.dense_seconds /= 1e3     # whatever this machine's figure is
        for step in range(12):
            loss(network, rank, step).backward()
    return [str(one.message) for one in caught if "dense" in str(one.message)]


def test_warning_when_dense_is_faster():
    first, second = run(slow, 2)
    assert len(first) == 1 and "would be faster" in first[0] and second == []


def strict(rank, nranks):
    """The warning as an error, as under -W error: backward() raises it, and training continues."""
    network, raised = DDP(model()), []
    state = thinwire.compress(network, density=0.05)
    state.engine.costs.dense_seconds /= 1e3
    warnings.simplefilter("error")
    for step in range(12):
        try:
            loss(network, rank, step).backward()
        except UserWarning as warning:
            raised.append((step, str(warning)[:8]))
    return raised, state.stats()["steps"]


def test_warning_as_an_error():
    assert run(strict, 2) == [([(9, "thinwire")], 12), ([], 12)]


SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
sys.path.insert(0, {here!r})
from ranks import loss, model
import thinwire
dist.init_process_group("gloo", {store!r}, rank=int(os.environ["RANK"]), world_size=2)
network = DDP(model())
state = thinwire.compress(network, scheme="oktopk", density=0.05)
for step in range(3):
    loss(network, dist.get_rank(), step).backward()
    if os.fork() == 0:
        sys.exit(0)     # the parent's group lives on
    assert os.wait()[1] == 0
print(state.summary())
"""


def test_processes_end_cleanly():
    """As torchrun starts them: none may hang, crash or print warnings at its end."""
    with tempfile.TemporaryDirectory() as folder:
        script = SCRIPT.format(here=os.path.dirname(os.path.abspath(__file__)),
                               store=f"file://{folder}/store")
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], text=True,
                                  env=dict(os.environ, RANK=str(rank), GLOO_SOCKET_IFNAME="lo"),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for rank in range(2)]
        for rank in ranks:
            out, errors = rank.communicate(timeout=100)
            assert rank.returncode == 0 and "oktopk, 2 ranks, 3 steps" in out, (out, errors)
            assert "thinwire" not in errors and "terminate" not in errors, errors


STUCK = """
import sys, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
sys.path.insert(0, {here!r})
from ranks import model
import thinwire
from thinwire import ddp
ddp._STUCK_SECONDS = 0.3
dist.init_process_group("gloo", {store!r}, rank=0, world_size=1)
state = thinwire.compress(DDP(model()))
state.engine.{call} = lambda: time.sleep(1000)
if {call!r} == "check_used":
    state._worker.jobs.put(type("Job", (), dict(last=True)))
"""


def test_stuck_step_lets_the_process_end():
    for call in ("check_used", "close"):    # in a step, or when all is freed
        stuck_in(call)


def stuck_in(call):
    with tempfile.TemporaryDirectory() as folder:
        script = STUCK.format(here=os.path.dirname(os.path.abspath(__file__)), call=call,
                              store=f"file://{folder}/store")
        ended = subprocess.run([sys.executable, "-c", script], text=True, timeout=30,
                               stderr=subprocess.PIPE)
        assert ended.returncode == 0 and "a step does not end" in ended.stderr, ended.stderr


def stays_away(rank, nranks):
    """Rank 1 does not call compress()."""
    network = DDP(model())
    dist.barrier()
    begin = time.monotonic()
    if rank != 1:
        refused(thinwire.TimeoutError, "from rank 1;", lambda: thinwire.compress(network,
                                                                                timeout=1.0))
        assert time.monotonic() - begin < 1.2, time.monotonic() - begin
    dist.barrier()


def test_rank_stays_away():
    run(stays_away, 3)


if __name__ == "__main__":
    main([test_bad_arguments, test_one_rank_fails, test_changed_size, test_bad_states,
          test_rank_dies, test_rank_dies_without_ddp, test_rank_dies_before_a_union,
          test_rank_stops, test_checkpointed_layers,
          test_world_size_one, test_warning_when_dense_is_faster, test_warning_as_an_error,
          test_processes_end_cleanly, test_device_fails, test_stuck_step_lets_the_process_end,
          test_rank_stays_away])
