"""Mixed precision: a skipped step changes nothing, and results do not depend on the loss scale.

A run with a scaler, overflows on single ranks and a changing scale must end bit for bit as a run of
the good steps without a scaler: scales are powers of two."""
import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Account, Known, balanced, gradient, residuals
from ranks import main, run

SIZES = {"a": 600, "b": 300}
STEPS, BAD = 14, {3: 1, 4: 0, 9: 1}      # step: the rank that overflows


class Scaler:
    """GradScaler for the CPU."""

    def __init__(self):
        self.scale_now, self.good = 2.0**16, 0

    def get_scale(self):
        return self.scale_now

    def step(self, network, optimizer):
        finite = all(bool(torch.isfinite(p.grad).all()) for p in network.parameters())
        if finite:
            for parameter in network.parameters():
                parameter.grad.div_(self.scale_now)
            optimizer.step()
        self.good = self.good + 1 if finite else 0
        self.scale_now *= 0.5 if not finite else 2.0 if self.good % 4 == 0 else 1.0
        return finite


def draw(rank, step):
    return {name: gradient(size, rank, 10 * step + i)
            for i, (name, size) in enumerate(SIZES.items())}


def scaled(rank, nranks, **options):
    network, scaler, account = DDP(Known(**SIZES), bucket_cap_mb=0.001), Scaler(), Account()
    state = thinwire.compress(network, density=0.1, grad_scaler=scaler, **options)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(STEPS):
        given = draw(rank, step)
        if step in BAD and rank == BAD[step]:
            given["a"][17] = float("inf")       # the bucket that is filled last
        before = residuals(state)
        optimizer.zero_grad()
        (network(given) * scaler.get_scale()).backward()
        assert scaler.step(network, optimizer) == (step not in BAD)
        if step in BAD:
            after = residuals(state)
            assert all(torch.equal(before[name], after[name]) for name in before)
        else:
            account.give(given)
    assert state.stats()["steps"] == STEPS - len(BAD) and state.stats()["skipped"] == len(BAD)
    return account.close(network, state)


def unscaled(rank, nranks):
    network, account = DDP(Known(**SIZES)), Account()
    state = thinwire.compress(network, density=0.1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(STEPS):
        if step not in BAD:
            optimizer.zero_grad()
            network(account.give(draw(rank, step))).backward()
            optimizer.step()
    return account.close(network, state)


def both(rank, nranks):
    return scaled(rank, nranks), unscaled(rank, nranks)


def test_skipped_steps_leave_no_trace():
    results = run(both, 2)
    with_scaler, without = zip(*results)
    balanced(with_scaler)
    for one, other in zip(with_scaler, without):
        for part in ("weights", "residuals"):
            for name in SIZES:
                assert torch.equal(one[part][name], other[part][name]), (part, name)


def no_scaler(rank, nranks, scaler=None):
    """Without a scaler backward() raises on all ranks, and training continues."""
    network, account = DDP(Known(**SIZES)), Account()
    state = thinwire.compress(network, density=0.1, grad_scaler=scaler)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(6):
        given = draw(rank, step)
        if step == 2 and rank == 1:
            given["b"][5] = float("nan")
        optimizer.zero_grad()
        before = residuals(state)
        try:
            network(given).backward()
            assert step != 2
        except thinwire.NumberError as error:
            assert "rank 1, parameter 'b': element 5" in str(error), error
            assert "grad_scaler" in str(error), error
            assert all(torch.equal(before[name], now) for name, now in residuals(state).items())
            continue
        account.give(given)
        optimizer.step()
    return account.close(network, state)


def test_nan_without_scaler_is_raised():
    balanced(run(no_scaler, 2))
    balanced(run(no_scaler, 2, torch.cuda.amp.GradScaler(enabled=False)))   # checks nothing


def counted(rank, nranks):
    """In step 2 the bucket of b succeeds, that of a is refused: the step does not count."""
    network = DDP(Known(**SIZES), bucket_cap_mb=0.001)
    state, k = thinwire.compress(network, density=0.1), []
    for step in range(4):
        given = draw(rank, step)
        if step == 2:
            given["a"][5] = float("nan")
        network.zero_grad()
        try:
            network(given).backward()
            assert step != 2
        except thinwire.NumberError:
            continue
        k.append(state.stats()["last_k"])
    assert k == [90, 90, 90] and state.stats()["k"] == 270, (k, state.stats())


def test_refused_steps_are_not_counted():
    run(counted, 2)


if __name__ == "__main__":
    main([test_skipped_steps_leave_no_trace, test_nan_without_scaler_is_raised,
          test_refused_steps_are_not_counted])
