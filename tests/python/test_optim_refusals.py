"""thinwire.AdamW and thinwire.SGD when something is wrong: infinities, NaN, other rates, wrong
arguments and wrong order; and resumed runs. A refused step changes nothing on any rank, bit for
bit."""
import gc
import os
import tempfile
import threading
import time
import warnings
import weakref
from unittest import mock

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.cuda.amp.grad_scaler import OptState
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals
from ranks import equal, loss, main, model, run, weights
from test_amp import Scaler
from test_bad import refused
from thinwire import schedule

SIZES = {"a": 600, "b": 300}
STEPS, BAD = 12, {3: 1, 4: 0, 9: 1}      # step: the rank that overflows
OPTIONS = {"density": 0.1, "lr": 0.01}


def draw(rank, step):
    return {name: gradient(size, rank, 10 * step + i)
            for i, (name, size) in enumerate(SIZES.items())}


def setting(wrapped, **options):
    network = Known(**SIZES)
    network = DDP(network, bucket_cap_mb=0.001) if wrapped else network
    return network, thinwire.AdamW(network, **{**OPTIONS, **options})


def everything(network, optimizer):
    """Weights, residuals, moments, counters: of a rank, as bytes. Without the head of the state, which
    has the number of the run, and its checksum."""
    return torch.cat([weights(network).view(torch.uint8), optimizer.thinwire.state_dict()
                      ["state"][40:-8]])


# ---- loss scaling

def scaled(rank, wrapped, **options):
    scaler = Scaler()
    network, optimizer = setting(wrapped, grad_scaler=scaler, **options)
    for step in range(STEPS):
        given = draw(rank, step)
        if step in BAD and rank == BAD[step]:
            given["a"][17] = float("inf")
        optimizer.zero_grad()
        before = everything(network, optimizer)
        (network(given) * scaler.get_scale()).backward()
        if not wrapped:
            refused(thinwire.StateError, "synchronize()", optimizer.step)
            optimizer.synchronize()
        assert scaler.step(network, optimizer) == (step not in BAD)
        assert torch.equal(before, everything(network, optimizer)) == (step in BAD), step
    assert optimizer.stats()["steps"] == STEPS - len(BAD)
    assert optimizer.stats()["skipped"] == len(BAD)
    return everything(network, optimizer)


def unscaled(rank, wrapped, **options):
    network, optimizer = setting(wrapped, **options)
    for step in range(STEPS):
        if step not in BAD:
            optimizer.zero_grad()
            network(draw(rank, step)).backward()
            optimizer.step()
    return everything(network, optimizer)


def scaled_and_not(rank, nranks):
    for wrapped in (False, True):
        for whole_model in (False, True):
            assert torch.equal(scaled(rank, wrapped, whole_model=whole_model),
                               unscaled(rank, wrapped, whole_model=whole_model))


def test_skipped_steps_leave_no_trace():
    run(scaled_and_not, 2)


# ---- NaN, and another rate on one rank

def step_once(network, optimizer, rank, step, spoil=lambda given: None):
    given = draw(rank, step)
    spoil(given)
    optimizer.zero_grad()
    network(given).backward()
    optimizer.step()


def spoil_on_rank_1(rank):
    def spoil(given):
        given["a"][7] = float("nan") if rank == 1 else 1.0
    return spoil


def not_finite(rank, nranks, wrapped):
    network, optimizer = setting(wrapped)
    for step in range(5):
        before = everything(network, optimizer)
        if step != 2:
            step_once(network, optimizer, rank, step)
            assert not torch.equal(before, everything(network, optimizer))
            continue
        refused(thinwire.NumberError, "rank 1, parameter 'a': element 7 is NaN",
                lambda: step_once(network, optimizer, rank, step, spoil_on_rank_1(rank)))
        if wrapped:
            refused(thinwire.StateError, "step() without gradients", optimizer.step)
        assert torch.equal(before, everything(network, optimizer))
    return weights(network)


def other_rate(rank, nranks, wrapped):
    """Rank 1 alone halves its rate, then its density."""
    network, optimizer = setting(wrapped, density=lambda step: density[0], warmup_density=0.2)
    for step in range(6):
        before, density = everything(network, optimizer), [0.1]
        if step in (2, 4) and rank == 1:
            optimizer.param_groups[0]["lr"] = 0.005 if step == 2 else 0.01
            density[0] = 0.1 if step == 2 else 0.05
        if step in (2, 4):
            refused(thinwire.MismatchError, "rate: rank 1" if step == 2 else "density: rank 1",
                    lambda: step_once(network, optimizer, rank, step))
            assert torch.equal(before, everything(network, optimizer))
            optimizer.param_groups[0]["lr"] = 0.01
        else:
            step_once(network, optimizer, rank, step)
    return weights(network)


def made(kind, network):
    if kind == "DistributedOptimizer":
        return thinwire.DistributedOptimizer(
            torch.optim.Adam(network.parameters(), 0.25),
            compression=thinwire.Compression(density=0.1, warmup_steps=0))
    if kind == "AdamW":
        return thinwire.AdamW(network, density=0.1, warmup_steps=0)
    bare = getattr(network, "module", network)
    parameters = bare.parameters() if "one group" in kind else [
        {"params": [bare.a]}, {"params": [bare.b], "weight_decay": 0.5}]
    return thinwire.SGD(parameters, 0.25, 0.5, model=network, density=0.1,
                        scheme="dense" if "dense" in kind else "oktopk",
                        whole_model="parameters" not in kind)


def gradients(network):
    return torch.cat([one.grad.flatten() for one in network.parameters()])


# The parameter group, its field, what rank 1 alone sets, and how the error begins.
CHANGES = {
    "SGD, one group": [(0, "lr", 0.125, "lr: rank 1 has set 0.125, rank 0 0.25; set it alike on all ranks"),
                       (0, "weight_decay", 1.0, "weight_decay: rank 1 has set 1, rank 0 0; "),
                       (0, "nesterov", True, "nesterov: rank 1 has set 1, rank 0 0; ")],
    "SGD": [(1, "lr", 0.125, "lr of parameter group 1: rank 1 has set 0.125, rank 0 0.25; "),
            (0, "momentum", 0.75, "momentum of parameter group 0: rank 1 has set 0.75, rank 0 0.5; ")],
    "SGD, parameters": [(1, "weight_decay", 0.25, "weight_decay of parameter group 1: rank 1")],
    "SGD, dense": [(0, "lr", 0.125, "lr of parameter group 0: rank 1")],
    "AdamW": [(0, "weight_decay", 0.5, "weight_decay: rank 1 has set 0.5, rank 0 0; ")],
    "DistributedOptimizer": [(0, "lr", 0.125, "lr: rank 1 has set 0.125, rank 0 0.25; "),
                             (0, "betas", (0.5, 0.999), "betas[0]: rank 1 has set 0.5")],
}


def other_setting(rank, nranks, kind, wrapped):
    """What the receiver applies: rank 1 alone changes it. The step that is repeated is that of a run
    in which nobody did."""
    network, spared = (DDP(Known(**SIZES), bucket_cap_mb=0.001) if wrapped else Known(**SIZES)
                       for _ in range(2))
    optimizer, other = made(kind, network), made(kind, spared)
    for step, (number, field, value, text) in enumerate(CHANGES[kind]):
        group = optimizer.param_groups[number]
        usual = group[field]
        step_once(network, optimizer, rank, 2 * step)
        step_once(spared, other, rank, 2 * step)
        given = draw(rank, 2 * step + 1)
        optimizer.zero_grad()
        before = everything(network, optimizer)
        group[field] = value if rank == 1 else usual

        def run_step():
            network(given).backward()
            optimizer.step()
        refused(thinwire.MismatchError, text, run_step)
        assert torch.equal(before, everything(network, optimizer))
        assert torch.equal(gradients(network), torch.cat([given["a"], given["b"]])), kind
        group[field] = usual
        optimizer.zero_grad()
        run_step()
        step_once(spared, other, rank, 2 * step + 1)
        assert torch.equal(everything(network, optimizer), everything(spared, other)), kind
    return weights(network)


def other_settings(rank, nranks):
    return [other_setting(rank, nranks, kind, wrapped) for wrapped in (False, True)
            for kind in CHANGES if not wrapped or kind != "DistributedOptimizer"]


def test_other_settings_are_refused():
    for results in zip(*run(other_settings, 2)):
        assert equal(results) and results[0].any()


def other_clips(rank, nranks):
    """The receiver clips mean updates: ranks that clip at different norms would diverge."""
    for wrapped in (False, True):
        for clips in ((0.5, 0.25), (0.5, 0.0)):
            network, optimizer = setting(wrapped, clip_update=clips[rank])
            before = everything(network, optimizer)
            refused(thinwire.MismatchError,
                    f"clip_update: rank 1 has set {clips[1]:g}, rank 0 0.5; ",
                    lambda: step_once(network, optimizer, rank, 0))
            assert torch.equal(before, everything(network, optimizer))


def test_other_clips_are_refused():
    run(other_clips, 2)


def joined(rank, nranks):
    """In Join a rank without inputs makes no scheduler step: its rate is not compared."""
    network = DDP(model())
    optimizer = thinwire.SGD(network, 0.5, density=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with Join([network]):
        train(network, optimizer, scheduler, rank, 0, 3 + 2 * rank)
    return weights(network)


def test_rates_in_join():
    assert equal(run(joined, 2))


def large(rank, nranks):
    """Two groups, of more elements than a message of the library has by default: NaN in the second
    refuses the first too."""
    network = Known(a=5 << 20, b=300)
    optimizer = thinwire.AdamW([{"params": [network.a]}, {"params": [network.b]}], model=network,
                               density=0.001, warmup_steps=0)
    given = {"a": torch.ones(5 << 20), "b": gradient(300, rank, 0)}
    given["b"][3] = float("nan")
    before = everything(network, optimizer)
    network(given).backward()
    refused(thinwire.NumberError, "'b': element 3", optimizer.step)
    assert torch.equal(before, everything(network, optimizer))


def both_refused(rank, nranks):
    large(rank, nranks)
    return [play(rank, nranks, wrapped) for play in (not_finite, other_rate)
            for wrapped in (False, True)]


def test_refused_steps_change_nothing():
    for results in zip(*run(both_refused, 2)):
        assert equal(results) and results[0].any()


# ---- interrupted runs

def fresh_run(wrapped, kind, **options):
    network = DDP(model()) if wrapped else model()
    if kind is thinwire.AdamW:
        optimizer = kind(network, lr=0.01, density=lambda step: 0.3 / (1 + step), **options)
    else:
        optimizer = kind(network, 0.1, 0.9, density=0.02, steps=30, weight_decay=0.01, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return network, optimizer, scheduler


def train(network, optimizer, scheduler, rank, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
        scheduler.step()


def resumed(rank, nranks):
    """Saved after 5 of 10 steps, and loaded by another optimizer."""
    for wrapped in (False, True):
        for kind, options in ((thinwire.AdamW, {"warmup_density": 0.3}), (thinwire.SGD, {}),
                              (thinwire.SGD, {"momentum_before": True})):
            whole, again = (fresh_run(wrapped, kind, **options) for _ in range(2))
            train(*whole, rank, 0, 5)
            path = f"{os.environ['TMPDIR']}/{rank}"
            torch.save([part.state_dict() for part in whole], path)
            for part, saved in zip(again, torch.load(path)):
                part.load_state_dict(saved)
            for one in (whole, again):
                train(*one, rank, 5, 10)
            assert torch.equal(everything(*whole[:2]), everything(*again[:2])), (wrapped, kind)


def save(rank, nranks):
    network, optimizer, scheduler = fresh_run(False, thinwire.AdamW, warmup_density=0.3)
    train(network, optimizer, scheduler, rank, 0, 4)
    return optimizer.state_dict(), residuals(optimizer.thinwire)


def load(rank, nranks, saved):
    """By fewer ranks, and with DDP."""
    network, optimizer, scheduler = fresh_run(True, thinwire.AdamW, warmup_density=0.3)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] < 0.0099
    kept = residuals(optimizer.thinwire)
    train(network, optimizer, scheduler, rank, 4, 6)
    return kept


def test_resumed_is_bitwise_the_same():
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, TMPDIR=folder):
            run(resumed, 2)
    states, old = zip(*run(save, 3))
    new = run(load, 2, list(states))
    for name in old[0]:
        assert torch.allclose(sum(one[name] for one in old), sum(one[name] for one in new))


def wrong_states(rank, nranks):
    """Refused on all ranks, if only one rank has a wrong one too. All go on."""
    network, optimizer = setting(False)
    step_once(network, optimizer, rank, 0)
    before, lr = everything(network, optimizer), optimizer.param_groups[0]["lr"]
    sgd = thinwire.SGD(Known(**SIZES).parameters(), 0.5, density=0.1)
    step_once(network, optimizer, rank, 1)
    good = optimizer.state_dict()
    now = everything(network, optimizer)
    assert not torch.equal(before, now)
    faster = [dict(group, lr=0.5) for group in good["param_groups"]]
    without = dict(sgd.state_dict()["thinwire"], names=good["thinwire"]["names"])
    refused(thinwire.MismatchError, "moments", lambda: optimizer.load_state_dict(
        dict(good, param_groups=faster, thinwire=without)))
    refused(thinwire.MismatchError, "state_dict() of an optimizer of thinwire",
            lambda: optimizer.load_state_dict(torch.optim.AdamW(network.parameters()).state_dict()))
    other = [dict(group, betas=(0.5, 0.5)) for group in good["param_groups"]]
    refused(thinwire.ParamError, "betas, eps", lambda: optimizer.load_state_dict(
        dict(good, param_groups=other)))
    begin = time.monotonic()
    if rank == 1:
        refused(ValueError, "param", lambda: optimizer.load_state_dict(
            dict(good, param_groups=good["param_groups"] * 2)))
    else:
        refused(thinwire.FileError, "rank 1: ", lambda: optimizer.load_state_dict(good))
    assert time.monotonic() - begin < 30
    assert optimizer.param_groups[0]["lr"] == lr == 0.01
    assert torch.equal(now, everything(network, optimizer))
    optimizer.load_state_dict(good)
    step_once(network, optimizer, rank, 2)
    return weights(network)


def test_wrong_states():
    assert equal(run(wrong_states, 2))


# ---- wrong arguments and wrong order

def bad_arguments(rank, nranks):
    def adamw(**options):
        return lambda: thinwire.AdamW(model(), **options)
    for betas in ((0.9, 1.0), (-0.1, 0.9), (0.9, float("nan")), 0.9, (0.9,)):
        refused(thinwire.ParamError, "betas: ", adamw(betas=betas))
    for field in ("lr", "eps", "weight_decay", "clip_update"):
        for wrong in (-1.0, float("nan"), float("inf"), "1"):
            refused(thinwire.ParamError, f"{field}: {wrong!r}", adamw(**{field: wrong}))
    refused(thinwire.ParamError, "eps: 0", adamw(eps=0.0))
    refused(thinwire.ParamError, "eps: -1", lambda: thinwire.AdamW(
        [{"params": model().parameters(), "eps": -1.0}]))
    refused(thinwire.ParamError, "lr: nan", lambda: thinwire.SGD(model(), float("nan")))
    refused(thinwire.ParamError, "steps: 0", adamw(steps=0))
    refused(thinwire.ParamError, "steps: 2.5", adamw(steps=2.5))
    refused(thinwire.ParamError, "steps", adamw(steps=9, density=lambda step: 0.1))
    refused(ValueError, "warmup: 'caller'", adamw(warmup="caller"))
    refused(TypeError, "'fluff'; accepted are", adamw(fluff=1))
    refused(TypeError, "'before'", lambda: thinwire.compress(DDP(model()), before="adamw"))
    refused(thinwire.ParamError, "before", adamw(scheme="dense"))
    refused(thinwire.DensityError, "density", adamw(density=2.0))
    refused(thinwire.ParamError, "nesterov", lambda: thinwire.SGD(
        model(), 0.1, 0.9, nesterov=True, momentum_before=True))
    refused(thinwire.ParamError, "momentum: 1.5", lambda: thinwire.SGD(
        model(), 0.1, 1.5, momentum_before=True))
    refused(thinwire.MismatchError, "beta2", adamw(betas=(0.9, 0.9 + 0.01 * rank)))
    wrapped = DDP(model())
    refused(thinwire.ParamError, "'0.weight' of the model is in no parameter group",
            lambda: thinwire.AdamW(list(wrapped.parameters())[1:], model=wrapped))
    refused(thinwire.ParamError, "1 parameters are not the model's", lambda: thinwire.AdamW(
        [*wrapped.parameters(), torch.nn.Parameter(torch.zeros(3))], model=wrapped))
    refused(thinwire.ParamError, "as model=", lambda: thinwire.AdamW(wrapped.parameters()))
    derived = type("Derived", (type("Middle", (DDP,), {}),), {})(model())
    refused(thinwire.ParamError, "as model=", lambda: thinwire.AdamW(derived.module))
    refused(thinwire.ParamError, "process_group", lambda: thinwire.AdamW(
        wrapped, process_group=dist.new_group()))
    refused(TypeError, "model: ", lambda: thinwire.AdamW(wrapped.parameters(), model=5))
    network = model()
    optimizer = thinwire.AdamW(network, density=lambda step: 0.5)
    loss(network, rank, 0).backward()
    refused(thinwire.DensityError, "warmup_density", optimizer.step)
    optimizer = thinwire.AdamW(wrapped)
    refused(thinwire.StateError, "already", lambda: thinwire.compress(wrapped))
    refused(thinwire.StateError, "cannot be added", lambda: optimizer.add_param_group(
        {"params": [torch.nn.Parameter(torch.zeros(3))]}))
    optimizer.close()
    refused(RuntimeError, "closed", lambda: loss(wrapped, rank, 0).backward())


def test_bad_arguments():
    run(bad_arguments, 2)


def wrong_order(rank, nranks):
    """step() without backward(), backward() twice; and a step that is dropped."""
    for wrapped in (False, True):
        network, optimizer = setting(wrapped)
        if wrapped:
            refused(thinwire.StateError, "step() without gradients", optimizer.step)
        with network.no_sync() if wrapped else warnings.catch_warnings():
            network(draw(rank, 0)).backward()
        if wrapped:
            refused(thinwire.StateError, "no_sync()", optimizer.step)
            network(draw(rank, 1)).backward()
        else:
            optimizer.synchronize()
        refused(thinwire.StateError, "drop under it too", network(draw(rank, 1)).backward)
        optimizer.zero_grad()
        step_once(network, optimizer, rank, 2)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9,
                                                    cycle_momentum=False)
        step_once(network, optimizer, rank, 3)
        cycle.step()
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)
        refused(thinwire.ParamError, "cycle_momentum=False",
                lambda: step_once(network, optimizer, rank, 4))


def test_wrong_order():
    run(wrong_order, 2)


def cycled(rank, nranks):
    """With momentum before selection torch's part would have a second one."""
    for wrapped in (False, True):
        network = DDP(Known(**SIZES)) if wrapped else Known(**SIZES)
        optimizer = thinwire.SGD(network, 0.1, 0.9, momentum_before=True, density=0.1)
        good = optimizer.state_dict()
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, cycle_momentum=False)
        step_once(network, optimizer, rank, 0)
        before = weights(network)
        faster = [dict(group, momentum=0.9) for group in good["param_groups"]]
        for optimizer.saved_apart in (True, False):
            wrong = {name: value for name, value in dict(good, param_groups=faster).items()
                     if name != "thinwire" or not optimizer.saved_apart}
            refused(thinwire.ParamError, "momentum: 0.9; with momentum_before",
                    lambda: optimizer.load_state_dict(wrong))
            assert optimizer.param_groups[0]["momentum"] == 0
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, max_momentum=0.9)
        refused(thinwire.ParamError, "cycle_momentum=False",
                lambda: step_once(network, optimizer, rank, 1))
        assert torch.equal(before, weights(network)), wrapped


def test_cycled_momentum():
    run(cycled, 2)


def unfrozen(rank, nranks):
    """After the optimizer was made: each rank would train it alone."""
    for wrapped in (False, True):
        for kind in (thinwire.AdamW, thinwire.SGD):
            network = Known(**SIZES)
            network.b.requires_grad_(False)
            network = DDP(network) if wrapped else network
            bare = getattr(network, "module", network)
            optimizer = kind(bare.parameters(), lr=0.01, model=network, density=0.1)
            step_once(network, optimizer, rank, 0)
            bare.b.requires_grad_(True)
            before = weights(network)
            refused(thinwire.ParamError, "shape (300,) did not require a gradient",
                    lambda: step_once(network, optimizer, rank, 1))
            assert torch.equal(before, weights(network)), (wrapped, kind)
            bare.b.requires_grad_(False)
            step_once(network, optimizer, rank, 2)


def test_unfrozen_later():
    run(unfrozen, 2)


class Noting(Scaler):
    """Notes what it has unscaled, as torch's, which is disabled without a GPU."""

    def __init__(self):
        super().__init__()
        self._per_optimizer_states = {}

    def unscale_(self, network, optimizer):
        for parameter in network.parameters():
            parameter.grad.div_(self.scale_now)
        self._per_optimizer_states[id(optimizer)] = {"stage": OptState.UNSCALED}


def unscaled_first(rank, nranks):
    """The exchange would divide gradients by the scale once more."""
    for kind in ("AdamW", "SGD", "DistributedOptimizer"):
        network, scaler = Known(**SIZES), Noting()
        if kind == "DistributedOptimizer":
            optimizer = thinwire.DistributedOptimizer(
                torch.optim.SGD(network.parameters(), 0.25),
                compression=thinwire.Compression(density=0.1, grad_scaler=scaler))
        else:
            optimizer = getattr(thinwire, kind)(network, 0.25, density=0.1, warmup_steps=0,
                                                grad_scaler=scaler)
        (network(draw(rank, 0)) * scaler.get_scale()).backward()
        scaler.unscale_(network, optimizer)
        refused(thinwire.StateError, "synchronize() before scaler.unscale_(optimizer)",
                optimizer.synchronize)
        scaler._per_optimizer_states.clear()        # as update() does
        optimizer.zero_grad()
        (network(draw(rank, 0)) * scaler.get_scale()).backward()
        optimizer.synchronize()
        scaler.unscale_(network, optimizer)
        optimizer.step()
    return weights(network)


def test_unscaled_before_the_exchange():
    assert equal(run(unscaled_first, 2))


def wrapped_later(rank, nranks):
    """As frameworks do that are given model and optimizer at once."""
    from thinwire.integrations import attached
    network = model()
    optimizer = thinwire.AdamW(network, density=0.1)
    network = DDP(network)
    refused(thinwire.ParamError, "made before the model was wrapped",
            lambda: attached(network, [optimizer]))
    wrapped = DDP(model())
    right = thinwire.AdamW(wrapped, density=0.1)
    assert attached(wrapped, [right]) is right.thinwire


def test_wrapped_later():
    run(wrapped_later, 2)


def no_process_group(rank, nranks):
    dist.destroy_process_group()
    with mock.patch.dict(os.environ, WORLD_SIZE="2"):
        refused(thinwire.StateError, "init_process_group", lambda: thinwire.AdamW(model()))


def test_forgotten_process_group():
    run(no_process_group, 1)


def freed(rank, nranks):
    """Nothing keeps the optimizer or its threads alive."""
    for wrapped in (False, True):
        network, optimizer = setting(wrapped)
        step_once(network, optimizer, rank, 0)
        reference = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert reference() is None, wrapped
        del network
        gc.collect()
        assert all(thread.name != "thinwire" for thread in threading.enumerate()), wrapped


def test_freed():
    run(freed, 1)


# ---- the warning about low densities

def warned(play):
    """How often the warning came."""
    schedule._warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        play()
    return sum("pass steps=" in str(one.message) for one in caught)


def by_hook(kind, times=1, **options):
    def play():
        for _ in range(times):
            network = DDP(model())
            thinwire.compress(network, **options)
            optimizer = kind(network.parameters(), lr=0.01)
            for step in range(2):
                loss(network, 0, step).backward()
                optimizer.step()
    return play


def by_optimizer(kind, **options):
    return lambda: thinwire.DistributedOptimizer(kind(model().parameters(), lr=0.01),
                                                 compression=thinwire.Compression(**options))


def low_densities(rank, nranks):
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    return [warned(play) for play in (
        lambda: [thinwire.AdamW(model()) for _ in range(2)], by_hook(adam, 2), by_optimizer(adam),
        lambda: thinwire.AdamW(model(), steps=100), lambda: thinwire.AdamW(model(), density=0.05),
        lambda: thinwire.AdamW(model(), warmup_steps=0),
        lambda: thinwire.AdamW(model(), density=lambda step: 0.01),
        lambda: thinwire.SGD(model(), 0.1), by_hook(sgd), by_hook(adam, warmup_steps=5),
        by_hook(adam, density=0.1), by_optimizer(sgd))]


def test_low_densities_are_warned_of_once():
    first, second = run(low_densities, 2)
    assert first == [1, 1, 1] + [0] * 9, first
    assert second == [0] * 12, second


if __name__ == "__main__":
    main([test_skipped_steps_leave_no_trace, test_refused_steps_change_nothing,
          test_other_settings_are_refused, test_other_clips_are_refused, test_rates_in_join,
          test_resumed_is_bitwise_the_same, test_wrong_states, test_bad_arguments,
          test_wrong_order, test_cycled_momentum, test_unfrozen_later,
          test_unscaled_before_the_exchange, test_wrapped_later, test_forgotten_process_group,
          test_freed, test_low_densities_are_warned_of_once])
