"""What help(), dir() and repr() show; arguments and figures; one process; weights alike."""
import ast
import builtins
import copy
import inspect
import pathlib
import pickle
import pydoc
import re
import resource
from datetime import timedelta

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known
from ranks import equal, loss, main, model, run, weights
from test_bad import refused
from thinwire import options
from thinwire.errors import BY_CODE
from thinwire.process_group import timeout_of
from thinwire.stats import Stats

MANUAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
CALLS = ("compress", "AdamW", "SGD", "DistributedOptimizer", "Compression", "LocalSteps",
         "broadcast_parameters")


def options_of_manual():
    """The names in the first column of the table of compress()' options."""
    text = MANUAL.read_text()
    table = text[text.index("## compress("):text.index("The state:")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"tw_select_params"}


def test_help_shows_what_the_manual_says():
    names = options_of_manual()
    assert len(names) > 20, names
    signature = inspect.signature(thinwire.compress).parameters
    assert names <= set(signature), names - set(signature)
    assert all(one.annotation is not one.empty for one in signature.values()), signature
    text = pydoc.plain(pydoc.render_doc(thinwire.compress))
    assert all(re.search(rf"\b{name}\b", text[text.index("model "):]) for name in names)
    for kind in (thinwire.AdamW, thinwire.SGD, thinwire.Compression):
        assert names <= set(inspect.signature(kind).parameters), kind
    assert inspect.signature(thinwire.AdamW).parameters["scheme"].default == "topka"


def test_dir_and_help():
    assert set(CALLS) <= set(dir(thinwire))
    text = pydoc.plain(pydoc.render_doc(thinwire))
    assert all(re.search(rf"\b{name}\b", text) for name in CALLS)


def test_type_checkers_see_the_same():
    """Names that are loaded when they are used are imported for type checkers, from the same
    modules; every error has its name here."""
    tree = ast.parse(pathlib.Path(thinwire.__file__).read_text())
    block = next(one for one in tree.body if isinstance(one, ast.If))
    found = {name.asname: one.module for one in block.body for name in one.names}
    assert ast.dump(block.test).count("TYPE_CHECKING") == 1 and found == thinwire._LAZY, found
    for kind in BY_CODE.values():
        assert vars(thinwire)[kind.__name__] is kind
    for call in (thinwire.compress, thinwire.Compression.__init__, thinwire.AdamW.__init__,
                 thinwire.SGD.__init__, thinwire.LocalSteps.__init__):
        own = set(call.__code__.co_varnames[:call.__code__.co_argcount
                                            + call.__code__.co_kwonlyargcount])
        others = call.__annotations__["options"]
        others = set(getattr(options, others[len("Unpack["):-1]).__annotations__)
        assert not own & others, f"{call} names twice, which type checkers refuse: {own & others}"
        assert set(options.Options.__annotations__) <= own | others | {"momentum"}, call


def test_unknown_options():
    def names(call):
        try:
            call()
        except TypeError as error:
            return str(error)
    text = names(lambda: thinwire.Compression(fluff=1))
    assert "'fluff'" in text and "whole_model" in text and "grad_scaler" in text, text
    assert not re.search(r"\b(device|stream|type|ordinal)\b", text), text
    assert repr(thinwire.Compression(density=0.1)) == \
        "thinwire.Compression(scheme='oktopk', density=0.1)"


def test_timeout_error():
    """Also Python's, with the text as given."""
    error = thinwire.TimeoutError("rank 1")
    assert isinstance(error, builtins.TimeoutError) and isinstance(error, thinwire.Error)
    assert str(error) == "rank 1" and error.code == -12


def test_summary_that_sends_more():
    stats = Stats(1000, 2)
    stats.open["payload_sent"] = 3 * stats.dense_bytes
    stats.end_step()
    assert "3.0x more" in stats.line(), stats.line()
    stats.open["payload_sent"] = 0
    stats.end_step()
    stats.end_step()
    stats.end_step()
    stats.end_step()
    stats.end_step()
    assert "2.0x less" in stats.line(), stats.line()


def defaults(rank, nranks):
    """The defaults that help() shows mean the same as to leave an option out."""
    shown = inspect.signature(thinwire.compress).parameters
    named = {name: one.default for name, one in shown.items() if name != "model"}
    found = []
    for options in ({}, named):
        network = DDP(model())
        state = thinwire.compress(network, **options)
        loss(network, rank, 0).backward()
        found.append((len(state.engine.tensors.sizes), state.stats()["last_k"],
                      state.engine.residuals()))
    assert found[0][:2] == found[1][:2] and found[0][0] == 1, found
    assert all(map(torch.equal, found[0][2], found[1][2]))


def test_defaults():
    run(defaults, 2)


def figures(rank, nranks):
    network = DDP(model())
    state = thinwire.compress(network, density=0.05)
    loss(network, rank, 0).backward()
    stats = state.stats()
    assert all(isinstance(value, (int, float)) for value in stats.values()), stats
    assert stats["last_density"] == stats["last_k"] / stats["elements"] > 0.04
    assert stats["last_payload_sent"] == stats["payload_sent"] > 0
    assert "oktopk, 2 ranks, 1 steps" in repr(state), repr(state)
    norm = torch.cat([one.flatten() for one in state.engine.residuals()]).norm()
    assert abs(state.residual_norm() - norm) < 1e-5 and norm > 0


def test_figures():
    run(figures, 2)


def shown(rank, nranks):
    """Of what has no state of compress()."""
    network = model()
    local = thinwire.LocalSteps(network, torch.optim.SGD(network.parameters(), lr=0.1))
    assert "topka, 2 workers, 0 rounds of 30 inner steps" in repr(local), repr(local)
    optimizer = thinwire.SGD(model(), lr=0.1)
    assert "oktopk, 2 ranks, 0 steps" in repr(optimizer.thinwire), repr(optimizer.thinwire)


def test_repr():
    run(shown, 2)


def mismatches(rank, nranks):
    refused(thinwire.MismatchError, "whole_model or grad_scaler: rank 1 has True, rank 0 has False",
            lambda: thinwire.compress(DDP(model()), whole_model=rank == 1))
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    scaler.is_enabled = lambda: True
    refused(thinwire.MismatchError, "whole_model: rank 1 has False, rank 0 has True",
            lambda: thinwire.compress(DDP(model()), whole_model=rank == 0, grad_scaler=scaler))
    refused(thinwire.MismatchError, "bucket: rank 1 has 6, rank 0 has 5",
            lambda: thinwire.compress(DDP(model()), bucket=5 + rank))
    refused(thinwire.MismatchError, "result: rank 1 has 'sum', rank 0 has 'mean'; ",
            lambda: thinwire.compress(DDP(model()), result=("mean", "sum")[rank]))
    refused(thinwire.MismatchError, "checksum: rank 1 has False, rank 0 has True; ",
            lambda: thinwire.compress(DDP(model()), checksum=rank == 0))
    refused(thinwire.ParamError, "result: 'mean_of_senders' needs exchange allgather",
            lambda: thinwire.compress(DDP(model()), result="mean_of_senders"))
    refused(thinwire.DensityError, "density: 0; accepted is 0 < density <= 1",
            lambda: thinwire.compress(DDP(model()), density=0))


def test_mismatches():
    run(mismatches, 2)


def waits(rank, nranks):
    """As long as the process group."""
    assert timeout_of(None) == 1800, timeout_of(None)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=77))
    state = thinwire.compress(DDP(Known(a=10), process_group=group))
    assert state.engine.transport.timeout == 77, state.engine.transport.timeout
    state = thinwire.compress(DDP(Known(a=10), process_group=group), timeout=5)
    assert state.engine.transport.timeout == 5


def test_timeout_of_the_process_group():
    run(waits, 2)


def grown_by(call):
    """KiB that this process has had more than ever before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def test_one_process():
    """A plain model, without a process group: the script has no case of its own."""
    network, plain = model(), model()
    network = network if not dist.is_initialized() else DDP(network)
    state = thinwire.compress(network, density=0.05)
    loss(network, 0, 0).backward()
    loss(plain, 0, 0).backward()
    assert torch.equal(network[0].weight.grad, plain[0].weight.grad)
    assert "one process" in state.summary() == str(state)[18:-1]
    stats = state.stats()
    assert stats["payload_sent"] == stats["last_payload_sent"] == stats["last_density"] == 0
    assert stats["elements"] == sum(one.numel() for one in plain.parameters())
    state.close()
    for kind, words, options in (
            (thinwire.NameError, "okto", {"scheme": "okto"}),
            (thinwire.NameError, "select: 'nope'", {"select": "nope"}),
            (thinwire.NameError, "'q3'", {"wire": "q3"}),
            (ValueError, "count: 'each'; accepted is 'of_scheme', 'per_rank'", {"count": "each"}),
            (ValueError, "result: 'median'", {"result": "median"}),
            (thinwire.KError, "k: 3000", {"k": 3000}),
            (thinwire.DensityError, "density: 2.0", {"density": 2.0}),
            (thinwire.ParamError, "grad_scaler: True", {"grad_scaler": True}),
            (thinwire.ParamError, "on_loss: 'shrink' is not possible", {"on_loss": "shrink"}),
            (ValueError, "bucket", {"whole_model": True, "bucket": 5})):
        refused(kind, words, lambda: thinwire.compress(model(), **options))
    refused(thinwire.ParamError, "'4.bias' is torch.float64",
            lambda: thinwire.compress(model().double()))
    grown = [grown_by(lambda: thinwire.compress(torch.nn.Linear(1000, rows, False, "meta")))
             for rows in (10, 32000)]       # the first one loads parts of torch
    assert grown[1] < 32 << 10, grown


def alike(rank, nranks):
    network = torch.nn.Sequential(model(seed=rank), torch.nn.BatchNorm1d(3))
    network[1].running_mean.fill_(rank)
    thinwire.broadcast_parameters(network, root=1)
    assert network[1].running_mean[0] == 1
    first = weights(network)
    network = model(seed=rank)
    thinwire.broadcast_parameters(network.named_parameters())
    return first, weights(network)


def copied(rank, nranks):
    """What an exchange belongs to is not copied in halves: a copy, as of what refers to it, serves
    nothing. Models and states are copied."""
    for wrapped in (False, True):
        network = DDP(model()) if wrapped else model()
        optimizer = thinwire.AdamW(network, density=0.1)
        loss(network, rank, 0).backward()
        optimizer.step()
        others = [optimizer]
        if not wrapped:
            third, inner = model(), torch.optim.SGD(model().parameters(), lr=0.1)
            others += [thinwire.SGD(model(), lr=0.1), thinwire.DistributedOptimizer(inner),
                       thinwire.LocalSteps(third, torch.optim.SGD(third.parameters(), lr=0.1))]
        for one in others:
            for call in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
                refused(thinwire.StateError, "copy its state_dict()", lambda: call(one).state_dict)
            cycle = torch.optim.lr_scheduler.OneCycleLR(
                getattr(one, "optimizer", one), 0.1, total_steps=9, cycle_momentum=False)
            pickle.dumps(cycle.state_dict())        # in torch 1.13 it refers to the optimizer
            owner = model()
            owner.trained_by = one
            refused(thinwire.StateError, "copy its state_dict()",
                    lambda: copy.deepcopy(owner).trained_by.step)
        state = copy.deepcopy(optimizer.state_dict())
        assert weights(copy.deepcopy(getattr(network, "module", network))).any()
        optimizer.load_state_dict(pickle.loads(pickle.dumps(state)))
        loss(network, rank, 1).backward()
        optimizer.step()
    return weights(network)


def test_copies():
    assert equal(run(copied, 2))


class Mixed(torch.nn.Module):
    """Buffers of all types that models have."""

    def __init__(self, rank):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2, 3), rank + 0.5, dtype=torch.bfloat16))
        for dtype in (torch.bool, torch.float16, torch.float64, torch.int64, torch.uint8,
                      torch.complex64):
            name = str(dtype)[6:]
            self.register_buffer(name, torch.full((4, 2), rank + 1).eq(1).to(dtype).t())
            self.register_buffer(f"scalar_{name}", torch.tensor(rank + 1).eq(1).to(dtype))
        self.register_buffer("empty", torch.zeros(0, 3))


def alike_of_all_types(rank, nranks):
    network = Mixed(rank)
    thinwire.broadcast_parameters(network, root=1)
    for name, one in Mixed(1).state_dict().items():
        found = network.state_dict()[name]
        assert found.dtype == one.dtype and torch.equal(found, one), name


def test_broadcast_of_all_types():
    run(alike_of_all_types, 2)


def test_broadcast_parameters():
    first, second = zip(*run(alike, 3))
    assert equal(first) and equal(second)
    assert torch.equal(second[0], weights(model(seed=0)))
    assert not torch.equal(first[0], second[0])
    network = model()
    thinwire.broadcast_parameters(network)      # one process
    assert torch.equal(weights(network), weights(model()))


if __name__ == "__main__":
    main([test_help_shows_what_the_manual_says, test_dir_and_help,
          test_type_checkers_see_the_same, test_unknown_options,
          test_timeout_error, test_summary_that_sends_more, test_defaults, test_figures, test_repr,
          test_mismatches, test_timeout_of_the_process_group,
          test_copies, test_broadcast_of_all_types, test_broadcast_parameters,
          test_one_process])      # last: Debian 13's torch forks no ranks after a backward pass
