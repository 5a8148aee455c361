"""thinwire.AdamW and thinwire.SGD train as torch's do at full density, and as their definitions say
at low density: plain models and DDP, groups, schedulers, accumulation, closures, one process."""
import copy
import functools
import sys
from unittest import mock

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Account, Known, balanced, gradient, residuals
from ranks import equal, loss, main, model, run, weights
from thinwire import decay
from test_bad import refused
from test_hook import Gate, Gated

STEPS = 12
FULL = {"density": 1.0, "wire": "raw"}      # sends all, and rounds nothing


def train(network, optimizer, rank=0, steps=STEPS, scheduler=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return weights(network)


def check_close(results, wanted):
    """All ranks have the same bits, which are those wanted up to rounding."""
    assert equal(results)
    error = (results[0] - wanted).abs().max()
    assert torch.allclose(results[0], wanted, rtol=1e-4, atol=1e-6), error
    assert (wanted - weights(model())).abs().max() > 0.01


def in_two(network, **options):
    """Groups as thinwire makes them of a module."""
    parameters = list(network.parameters())
    return [{"params": [one for one in parameters if one.dim() > 1], **options},
            {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0}]


def both_kinds():
    """A plain model, and one in DDP with several buckets."""
    return model(), DDP(model(), bucket_cap_mb=0.001)


# ---- against torch: all ranks have the same gradients, so the mean is that of one rank

def modules(rank, nranks):
    """[torch's weights, ours ...]"""
    network = model()
    results = [train(network, torch.optim.AdamW(in_two(network), lr=0.01, betas=(0.9, 0.99),
                                                weight_decay=0.1))]
    for whole_model in (False, True):
        for one in both_kinds():
            optimizer = thinwire.AdamW(one, lr=0.01, weight_decay=0.1, whole_model=whole_model,
                                       **FULL)
            results.append(train(one, optimizer))
            assert optimizer.stats()["last_density"] == 1.0
            assert optimizer.stats()["steps"] == STEPS and "topka" in optimizer.summary()
    return results


def groups(rank, nranks):
    """Rates and betas by group, and a scheduler that begins at rate 0."""
    def play(network, make, **options):
        optimizer = make(in_two(network, lr=0.03, betas=(0.8, 0.95), eps=1e-6), lr=0.01,
                         betas=(0.0, 0.0), **options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / STEPS)
        return train(network, optimizer, scheduler=scheduler)
    results = [play(model(), torch.optim.AdamW)]
    for whole_model in (False, True):
        for one in both_kinds():
            results.append(play(one, thinwire.AdamW, model=one, whole_model=whole_model, **FULL))
    return results


def accumulated(rank, nranks):
    """Two backward passes a step."""
    def play(network, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            if isinstance(network, DDP):
                with network.no_sync():
                    loss(network, 0, 2 * step).backward()
            else:
                loss(network, 0, 2 * step).backward()
            loss(network, 0, 2 * step + 1).backward()
            optimizer.step()
        return weights(network)
    network = model()
    results = [play(network, torch.optim.AdamW(in_two(network), lr=0.01, betas=(0.9, 0.99)))]
    for whole_model in (False, True):
        for one in both_kinds():
            results.append(play(one, thinwire.AdamW(one, lr=0.01, whole_model=whole_model,
                                                    backward_passes_per_step=2, **FULL)))
    return results


def closures(rank, nranks):
    def play(network, optimizer):
        def evaluate():
            optimizer.zero_grad()
            now = loss(network, 0, step)
            now.backward()
            return now
        for step in range(STEPS):
            assert optimizer.step(evaluate).item() > 0
        return weights(network)
    network = model()
    return [play(network, torch.optim.AdamW(in_two(network), lr=0.01, betas=(0.9, 0.99)))] + \
        [play(one, thinwire.AdamW(one, lr=0.01, **FULL)) for one in both_kinds()]


def sgd(rank, nranks):
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    network = model()
    results = [train(network, torch.optim.SGD(in_two(network), **options))]
    for whole_model in (False, True):
        for one in both_kinds():
            results.append(train(one, thinwire.SGD(one, whole_model=whole_model, **options,
                                                   **FULL)))
    return results


def all_against_torch(rank, nranks):
    return [play(rank, nranks) for play in (modules, groups, accumulated, closures, sgd)]


def test_full_density_is_torch():
    for nranks in (1, 3):
        for plays in zip(*run(all_against_torch, nranks)):
            wanted, *ours = zip(*plays)
            for results in ours:
                check_close(results, wanted[0])


# ---- low density

def simulate(nranks, steps, density, lr, betas, eps, weight_decay):
    """AdamW before selection from the whole model, of all ranks in one process."""
    network = model()
    parameters = list(reversed(list(network.parameters())))
    total = sum(one.numel() for one in parameters)
    m, v, residual = (torch.zeros(nranks, total) for _ in range(3))
    for step in range(steps):
        mean = torch.zeros(total)
        for rank in range(nranks):
            grads = torch.autograd.grad(loss(network, rank, step), parameters)
            g = torch.cat([one.flatten() for one in grads])
            m[rank].lerp_(g, 1 - betas[0])
            v[rank].mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
            first, second = (1 - beta ** (step + 1) for beta in betas)
            residual[rank] += lr / first * m[rank] / ((v[rank] / second).sqrt() + eps)
            top = residual[rank].abs().topk(round(density * total)).indices
            mean[top] += residual[rank][top] / nranks
            residual[rank][top] = 0
        with torch.no_grad():
            sizes = [one.numel() for one in parameters]
            for parameter, update in zip(parameters, mean.split(sizes)):
                parameter.mul_(1 - lr * weight_decay).sub_(update.view_as(parameter))
    return weights(network), residual


def simulated(rank, nranks):
    """With a large eps updates differ in size: otherwise those of the first step are all lr."""
    wanted, kept = simulate(nranks, STEPS, 0.1, 0.05, (0.9, 0.99), 0.01, 0.1)
    results = []
    for one in both_kinds():
        optimizer = thinwire.AdamW(one.parameters(), lr=0.05, eps=0.01, weight_decay=0.1,
                                   density=0.1, wire="raw", model=one)
        results.append(train(one, optimizer, rank))
        residual = torch.cat([part.flatten() for part in optimizer.thinwire.residuals()])
        assert torch.allclose(residual, kept[rank], rtol=1e-3, atol=1e-6)
        assert residual.any()
    return [wanted, *results]


def test_low_density_is_its_definition():
    wanted, *ours = zip(*run(simulated, 3))
    for results in ours:
        check_close(results, wanted[0])


def same_as_compress(rank, nranks):
    """SGD is compress() and torch's SGD, bit for bit; so is momentum before selection."""
    results = []
    for before in (False, True):
        by_hook, ours, plain = DDP(model()), DDP(model()), model()
        options = {"scheme": "gtopk", "density": 0.05, "whole_model": True, "wire": "bf16"}
        thinwire.compress(by_hook, **options, **({"momentum": 0.5} if before else {}))
        reference = torch.optim.SGD(by_hook.parameters(), lr=0.1, momentum=0.0 if before else 0.5,
                                    weight_decay=0.02 if before else 0.01)
        results.append(train(by_hook, reference, rank))
        for one in (ours, plain):
            optimizer = thinwire.SGD(one.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01,
                                     momentum_before=before, model=one, **options)
            results.append(train(one, optimizer, rank))
    return results


def test_sgd_is_compress_and_torchs():
    first, second = run(same_as_compress, 2)
    assert equal([*first[:3], *second[:3]]) and equal([*first[3:], *second[3:]])
    assert not torch.equal(first[0], first[3])


# ---- patterns

SIZES = {"a": 600, "b": 300, "c": 40}


def draw(rank, step, names=SIZES):
    return {name: gradient(SIZES[name], rank, 10 * step + i) for i, name in enumerate(SIZES)
            if name in names}


def uneven(rank, nranks):
    """Rank r has 5 + 2r inputs. Afterwards all go on."""
    network, account = DDP(Known(**SIZES), bucket_cap_mb=0.001), Account()
    optimizer = thinwire.SGD(network, 1.0, density=0.1, wire="raw")
    with Join([network]):
        for step in range(5 + 2 * rank):
            optimizer.zero_grad()
            network(account.give(draw(rank, step))).backward()
            optimizer.step()
    balanced_step(network, optimizer, account, rank)
    return account.close(network, optimizer.thinwire)


def balanced_step(network, optimizer, account, rank):
    optimizer.zero_grad()
    network(account.give(draw(rank, 20))).backward()
    optimizer.step()


def uneven_adamw(rank, nranks):
    """A rank without inputs takes part in updates too."""
    network = DDP(model())
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.1, warmup_steps=0)
    with Join([network]):
        train(network, optimizer, rank, 5 + 2 * rank)
    assert optimizer.stats()["steps"] == 5 + 2 * (nranks - 1)
    return train(network, optimizer, rank, 3)


def frozen(rank, nranks):
    bare = Known(**SIZES)
    bare.b.requires_grad_(False)
    network, account = DDP(bare), Account()
    optimizer = thinwire.SGD(network.parameters(), 1.0, density=0.1, wire="raw", model=network)
    for step in range(8):
        optimizer.zero_grad()
        network(account.give(draw(rank, step, "ac"))).backward()
        optimizer.step()
    assert sorted(residuals(optimizer.thinwire)) == ["a", "c"] and not bare.b.any()
    del bare.b
    return account.close(bare, optimizer.thinwire)


def unused(rank, nranks):
    """In every other step no rank uses b: its last update is not applied again."""
    network = DDP(Known(**SIZES), find_unused_parameters=True)
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.1, whole_model=False)
    for step in range(6):
        before = network.module.b.detach().clone()
        optimizer.zero_grad()
        network(draw(rank, step, "ac" if step % 2 else "abc")).backward()
        optimizer.step()
        assert torch.equal(before, network.module.b) == bool(step % 2), step
    return weights(network)


def overlapped(rank, nranks):
    """b's update is exchanged before any rank has computed a's gradient."""
    network = DDP(Gated(a=500, b=500), bucket_cap_mb=0.001)
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.1, whole_model=False)
    Gate.happened = lambda: step == 0 or optimizer.thinwire.costs.open["selected"] > 0
    for step in range(4):
        optimizer.zero_grad()
        network({"a": gradient(500, rank, step), "b": gradient(500, rank, 10 + step)}).backward()
        optimizer.step()
    return weights(network)


def half(rank, nranks):
    """Updates are float32, whatever the type of the parameters."""
    network = Known(torch.bfloat16, **SIZES)
    optimizer = thinwire.AdamW(network, lr=0.25, betas=(0.0, 0.0), weight_decay=0.0, **FULL)
    for _ in range(4):
        optimizer.zero_grad()
        network({name: torch.ones(size, dtype=torch.bfloat16)
                 for name, size in SIZES.items()}).backward()
        optimizer.step()
    return weights(network)


def patterns(rank, nranks):
    return [uneven(rank, nranks), frozen(rank, nranks)], \
        [play(rank, nranks) for play in (half, uneven_adamw, unused, overlapped)]


def test_patterns():
    accounts, adamw = zip(*run(patterns, 2))
    for one in zip(*accounts):
        balanced(one)
    for results in zip(*adamw):
        assert equal(results)
    assert torch.equal(adamw[0][0], torch.full((940,), -1.0, dtype=torch.bfloat16))


# ---- densities and limits

def densities(rank, nranks):
    """The density of each step: three shapes, a function, a fifth of the run."""
    def play(**options):
        network, found = model(), []
        optimizer = thinwire.AdamW(network.parameters(), **options)
        for step in range(7):
            train(network, optimizer, rank, 1)
            found.append(round(optimizer.stats()["last_density"], 3))
        return found
    assert play(density=0.01, steps=20)[:5] == [0.25, 0.112, 0.05, 0.022, 0.01]
    assert play(density=0.1, warmup_steps=3, warmup="linear")[:4] == [0.25, 0.2, 0.15, 0.1]
    assert play(density=0.1, warmup_steps=4, warmup="cosine", warmup_density=0.5)[:5] == \
        [0.5, 0.442, 0.3, 0.159, 0.1]
    asked = []
    assert play(density=lambda step: asked.append(step) or (0.1, 0.5, 0.2)[step % 3],
                warmup_density=0.5) == [0.1, 0.5, 0.2, 0.1, 0.5, 0.2, 0.1]
    assert asked == list(range(7))
    network = DDP(model(), bucket_cap_mb=0.001)
    state = thinwire.compress(network, density=lambda step: 0.2 / (1 + step), warmup_density=0.2)
    for step in range(3):
        network.zero_grad()
        loss(network, rank, step).backward()
        assert abs(state.stats()["last_density"] - 0.2 / (1 + step)) < 1e-3


def test_densities():
    run(densities, 2)


def limits(rank, nranks):
    """clip_update limits the mean update, clip_norm the gradient of a rank before that."""
    def play(steps=1, **options):
        network = model()
        optimizer = thinwire.AdamW(network.parameters(), lr=0.1, weight_decay=0.0, **FULL,
                                   **options)
        before = weights(network)
        return (train(network, optimizer, rank, steps) - before).norm().item()
    free = play()
    assert free > 2.0 and abs(play(clip_update=1.0) - 1.0) < 1e-4
    assert abs(play(clip_update=100.0) - free) < 1e-6
    assert abs(play(clip_norm=1e-9) - free) > 0.1       # gradients of the size of eps


def test_limits():
    run(limits, 2)


# ---- weight decay in parts

def decayed(steps, rates, weight_decay, parts, total):
    """The factor of each element after so many steps: its part's turns are every parts-th step."""
    factors = torch.ones(total, dtype=torch.float64)
    for part in range(parts):
        begin, end = part * total // parts, (part + 1) * total // parts
        turns = [step for step in range(steps) if step % parts == part]
        for step in range(turns[-1] + 1 if turns else 0):
            factors[begin:end] *= 1 - rates(step) * weight_decay
    return factors


def in_parts(rank, nranks):
    """Gradients of zero: weights decay and nothing else. In the middle a copy loads the state."""
    decay._LEAST = 64
    bare, rates = model(), lambda step: 0.01 * (step + 1)
    begin = torch.cat([one.detach().flatten() for one in bare.parameters() if one.dim() > 1])
    network, other = model(), model()
    optimizer, second = (thinwire.AdamW(one, lr=1.0, weight_decay=0.5, density=0.1, warmup_steps=0)
                         for one in (network, other))
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, rates) for one in (optimizer, second)]

    def step_once(one, schedule):
        for group in one.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        one.step()
        schedule.step()
    for step in range(37):
        if step == 21:
            other.load_state_dict(network.state_dict())
            second.load_state_dict(optimizer.state_dict())
            schedules[1].load_state_dict(schedules[0].state_dict())
        step_once(optimizer, schedules[0])
        if step >= 21:
            step_once(second, schedules[1])
            assert torch.equal(weights(network), weights(other)), step
        now = torch.cat([one.detach().flatten() for one in network.parameters() if one.dim() > 1])
        wanted = begin * decayed(step + 1, rates, 0.5, 16, len(begin))
        assert torch.allclose(now.double(), wanted.double(), rtol=1e-5), step
    assert all(torch.equal(one, two) for one, two in zip(network.parameters(), bare.parameters())
               if one.dim() <= 1)
    assert len(optimizer.param_groups[0]["pending_decay"]) == 16
    return weights(network)


def test_decay_in_parts():
    assert equal(run(in_parts, 2))


def refused_in_parts(rank, nranks):
    """A refused step decays nothing; then all goes on as if it had not been."""
    decay._LEAST = 64
    network, other = model(), model()
    optimizer, second = (thinwire.AdamW(one, lr=0.1, weight_decay=0.5, density=0.1, warmup_steps=0)
                         for one in (network, other))
    for step in range(9):
        train(other, second, rank, 1)
        before, pending = weights(network), optimizer.param_groups[0].get("pending_decay")
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, float("nan") if rank == 1 else 1.0)
        try:
            optimizer.step()
            raise AssertionError("a step with NaN")
        except thinwire.NumberError:
            pass
        assert torch.equal(weights(network), before), step
        assert optimizer.param_groups[0].get("pending_decay") == pending
        train(network, optimizer, rank, 1)
        assert torch.equal(weights(network), weights(other)), step
    assert any(one != 1.0 for one in pending)
    return weights(network)


def test_decay_of_a_refused_step():
    assert equal(run(refused_in_parts, 2))


# ---- parameters that lie otherwise in memory

def otherwise(rank, nranks):
    """Not contiguous, or moved between steps: the same weights."""
    def play(lies, parts):
        decay._LEAST = 100 if parts else 1 << 20
        torch.manual_seed(3)
        network = torch.nn.Module()
        network.a = torch.nn.Parameter(lies(torch.randn(6, 5, 3, 3)))
        network.b = torch.nn.Parameter(lies(torch.randn(4, 3, 2, 2)))
        network.c = torch.nn.Parameter(torch.randn(7))
        optimizer = thinwire.AdamW(network, lr=0.1, density=0.2, warmup_steps=0)
        for step in range(6):
            for number, one in enumerate(network.parameters()):
                grad = torch.empty_like(one)
                grad.copy_(torch.arange(one.numel()).view(one.shape).mul(7 + step).sin() + number)
                one.grad = grad
                if step == 3:
                    one.data = one.data.clone()
            optimizer.step()
        return weights(network)
    channels_last = functools.partial(torch.Tensor.contiguous, memory_format=torch.channels_last)
    plain = play(lambda one: one, False)
    assert torch.equal(plain, play(channels_last, False))
    assert play(channels_last, True).isfinite().all()
    return plain


def test_parameters_that_lie_otherwise():
    assert equal(run(otherwise, 2))


# ---- step()

def test_nothing_between_start_and_wait():
    """So that the caller runs the exchange of a whole model, and no thread need be woken."""
    network = torch.nn.ParameterList([torch.zeros(3) for _ in range(100)])
    optimizer = thinwire.AdamW(network, lr=0.01, **FULL)
    for one in network:
        one.grad = torch.ones(3)
    entered = []        # functions, generators each time that they are resumed

    def note(frame, event, _):
        if event == "call":
            entered.append(frame.f_code.co_name)
    sys.setprofile(note)
    optimizer.step()
    sys.setprofile(None)
    wait = entered.index("wait")
    between = entered[:wait][::-1].index("check")       # of what the library has returned
    assert "start_pieces" in entered[:wait] and between < 10, entered[wait - between:wait]
    assert "start_pieces" not in entered[wait:] and "subtract" in entered[wait:]


def test_hooks_of_torch():
    """Each is called once, also after torch has made an optimizer of the same rule."""
    def by_torch(network, **options):
        return thinwire.DistributedOptimizer(torch.optim.SGD(network.parameters(), **options))

    def loaded(network, **options):
        optimizer = by_torch(network, **options)
        torch.optim.SGD.load_state_dict(optimizer, optimizer.state_dict())
        return optimizer

    torch.optim.SGD(model().parameters(), lr=0.1)
    for make in (thinwire.AdamW, thinwire.SGD, by_torch, loaded):
        network, calls = model(), []
        optimizer = make(network, lr=0.1)
        if not hasattr(optimizer, "register_step_post_hook"):       # torch 1
            return
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        train(network, optimizer, steps=1)
        assert calls == ["before", "after"], (make, calls)


def test_error_after_the_update():
    """A warning that was made an error ends a step late; the next one is whole all the same."""
    network, alike = model(), model()
    optimizer = thinwire.AdamW(network, lr=0.01, **FULL)
    loss(network, 0, 0).backward()
    with mock.patch.object(optimizer.thinwire, "end_step", side_effect=UserWarning):
        refused(UserWarning, "", optimizer.step)
    optimizer.zero_grad()
    loss(network, 0, 1).backward()
    optimizer.synchronize()
    optimizer.step()
    assert torch.equal(weights(network), train(alike, thinwire.AdamW(alike, lr=0.01, **FULL),
                                               steps=2))


# ---- one process

def no_process_group(rank, nranks):
    dist.destroy_process_group()
    network, alone = model(), model()
    first = train(network, thinwire.AdamW(network, lr=0.01, **FULL))
    second = train(alone, torch.optim.AdamW(in_two(alone), lr=0.01, betas=(0.9, 0.99)))
    check_close([first], second)
    assert isinstance(thinwire.SGD(copy.deepcopy(network), 0.1), torch.optim.SGD)


def test_without_a_process_group():
    run(no_process_group, 1)


if __name__ == "__main__":
    main([test_full_density_is_torch, test_low_density_is_its_definition,
          test_sgd_is_compress_and_torchs, test_patterns, test_densities, test_limits,
          test_decay_in_parts, test_decay_of_a_refused_step, test_parameters_that_lie_otherwise,
          test_without_a_process_group, test_nothing_between_start_and_wait,
          # Debian 13's torch forks no ranks after a backward pass:
          test_hooks_of_torch, test_error_after_the_update])
