"""DistributedOptimizer: nothing is lost, results equal the DDP hook's, it behaves as Horovod's."""
import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Account, Known, balanced, gradient, residuals
from ranks import equal, loss, main, model, run, weights
from test_amp import BAD, STEPS, Scaler

SIZES = {"a": 600, "b": 300, "c": 40}


def draw(rank, step, names=SIZES):
    return {name: gradient(SIZES[name], rank, 10 * step + i) for i, name in enumerate(SIZES)
            if name in names}


def setting(network, passes=1, **options):
    optimizer = thinwire.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), network.named_parameters(),
        compression=thinwire.Compression("oktopk", 0.1, **options),
        backward_passes_per_step=passes)
    return optimizer, Account()


def plain(rank, nranks):
    network = Known(**SIZES)
    optimizer, account = setting(network, bucket=500)
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(12):
        optimizer.zero_grad()
        network(account.give(draw(rank, step, "abc" if step % 2 or rank else "ac"))).backward()
        if step == 5:
            optimizer.synchronize()     # as for clipping; step() does not do it again
        optimizer.step()
    assert optimizer.thinwire.stats()["steps"] == 12
    return account.close(network, optimizer.thinwire)


def passes(rank, nranks):
    network = Known(**SIZES)
    optimizer, account = setting(network, passes=3)
    for step in range(6):
        optimizer.zero_grad()
        for part in range(3):
            network(account.give(draw(rank, 3 * step + part))).backward()
        optimizer.step()
    return account.close(network, optimizer.thinwire)


def closure(rank, nranks):
    """step() calls it; its gradients are summed before they are applied."""
    network = Known(**SIZES)
    optimizer, account = setting(network)

    def evaluate():
        optimizer.zero_grad()
        loss = network(account.give(draw(rank, step)))
        loss.backward()
        return loss
    for step in range(6):
        assert optimizer.step(evaluate).requires_grad
    assert optimizer.thinwire.stats()["steps"] == 6
    return account.close(network, optimizer.thinwire)


def bfloat16(rank, nranks):
    network = Known(torch.bfloat16, **SIZES)
    optimizer, account = setting(network)
    for step in range(6):
        optimizer.zero_grad()
        given = account.give(draw(rank, step))
        network({name: value.bfloat16() for name, value in given.items()}).backward()
        optimizer.step()
    account = account.close(network, optimizer.thinwire)
    account["weights"] = {name: value.float() for name, value in account["weights"].items()}
    return account


def scaled(rank, nranks):
    network, scaler = Known(**SIZES), Scaler()
    optimizer, account = setting(network, grad_scaler=scaler)
    for step in range(STEPS):
        given = draw(rank, step)
        if step in BAD and rank == BAD[step]:
            given["c"][3] = float("inf")
        optimizer.zero_grad()
        (network(given) * scaler.get_scale()).backward()
        before = residuals(optimizer.thinwire)
        optimizer.synchronize()
        assert scaler.step(network, optimizer) == (step not in BAD)
        if step in BAD:
            now = residuals(optimizer.thinwire)
            assert all(torch.equal(before[name], now[name]) for name in before)
        else:
            account.give(given)
    return account.close(network, optimizer.thinwire)


def refusals(rank, nranks):
    network = Known(**SIZES)
    optimizer, account = setting(network)
    scheduled = torch.optim.SGD(network.parameters(), lr=1.0)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    network(draw(rank, 0)).backward()
    for wrong in (optimizer.zero_grad, network(draw(rank, 1)).backward,
                  lambda: optimizer.add_param_group({"params": []}),
                  lambda: thinwire.DistributedOptimizer(optimizer),
                  lambda: thinwire.DistributedOptimizer(scheduled)):
        try:
            wrong()
            assert False, wrong
        except thinwire.StateError:
            pass


def unfrozen(rank, nranks):
    """A parameter that is unfrozen later would be trained by each rank separately."""
    network = Known(**SIZES)
    network.b.requires_grad_(False)
    optimizer, account = setting(network)
    network.b.requires_grad_(True)
    network(draw(rank, 0)).backward()
    try:
        optimizer.step()
        assert False, "b was trained by each rank separately"
    except thinwire.ParamError as error:
        assert "shape (300,)" in str(error), error
    assert not network.b.any()


def without_gradients(rank, nranks):
    """As in scripts that set everything up under no_grad()."""
    network = Known(**SIZES)
    with torch.no_grad():
        optimizer, account = setting(network)
    for step in range(6):
        optimizer.zero_grad()
        network(account.give(draw(rank, step))).backward()
        optimizer.step()
    return account.close(network, optimizer.thinwire)


def clipped(rank, nranks):
    """Gradients that change while they are exchanged are noticed, not half applied."""
    network = Known(**SIZES)
    optimizer, account = setting(network)
    network(draw(rank, 0)).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1e-3)
    try:
        optimizer.step()
        assert False, "gradients were clipped while they were exchanged"
    except thinwire.StateError as error:
        assert "clip_norm" in str(error), error


def all_of_them(rank, nranks):
    refusals(rank, nranks)
    unfrozen(rank, nranks)
    clipped(rank, nranks)
    return [play(rank, nranks) for play in (plain, passes, closure, bfloat16, scaled,
                                               without_gradients)]


def test_nothing_is_lost():
    for accounts in zip(*run(all_of_them, 2)):
        balanced(accounts)


def train(network, optimizer, rank):
    for step in range(10):
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
    return weights(network)


def hook_and_optimizer(rank, nranks):
    hooked = DDP(model())
    thinwire.compress(hooked, "gtopk", 0.05, whole_model=False)
    first = train(hooked, torch.optim.Adam(hooked.parameters(), lr=0.01), rank)
    alone = model()
    optimizer = thinwire.DistributedOptimizer(
        torch.optim.Adam(alone.parameters(), lr=0.01), alone.named_parameters(),
        compression=thinwire.Compression("gtopk", 0.05))
    return first, train(alone, optimizer, rank)


def test_same_as_the_hook():
    results = run(hook_and_optimizer, 2)
    assert equal([one for pair in results for one in pair])


if __name__ == "__main__":
    main([test_nothing_is_lost, test_same_as_the_hook])
