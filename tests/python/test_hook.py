"""The DDP hook: compared with plain DDP, over subgroups, overlapped with the backward pass."""
import time

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Account, Known, balanced, gradient
from ranks import equal, loss, main, model, run, weights
from thinwire.process_group import transport_of


def train(network, rank, steps):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
    return weights(network)


def dense_and_hook(rank, nranks, steps):
    plain, full, dense = DDP(model()), DDP(model()), DDP(model())
    thinwire.compress(full, scheme="oktopk", density=1.0)
    thinwire.compress(dense, scheme="dense")
    return [train(network, rank, steps) for network in (plain, full, dense)]


def test_full_density_is_plain_ddp():
    """The same weights up to the order of summation; all ranks bitwise equal."""
    plain, full, dense = zip(*run(dense_and_hook, 4, 50))
    assert equal(plain) and equal(full) and equal(dense)
    assert torch.allclose(plain[0], full[0], rtol=1e-5, atol=1e-6)
    assert torch.allclose(plain[0], dense[0], rtol=1e-5, atol=1e-6)
    assert (plain[0] - weights(model())).abs().max() > 0.01


def play_known(rank, group, **options):
    network, account = DDP(Known(a=500), process_group=group), Account()
    state = thinwire.compress(network, **options)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(6):
        optimizer.zero_grad()
        network(account.give({"a": gradient(500, rank, step)})).backward()
        optimizer.step()
    assert state.engine.transport.nranks == dist.get_world_size(group)
    return account.close(network, state)


def subgroups(rank, nranks):
    """Ranks 0 and 2, 1 and 3; then again with a store that thinwire makes, as with mpi."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    try:
        transport_of(groups[1 - rank % 2], 5.0)
        assert False, "a rank that is not in the group was accepted"
    except thinwire.ParamError as error:
        assert f"rank {rank} is not in it" in str(error), error
    first = play_known(rank, groups[rank % 2], density=0.05, wire="bf16")
    dist.distributed_c10d._get_default_store = lambda: None
    return first, play_known(rank, groups[rank % 2], k=25)


def test_subgroups():
    results = run(subgroups, 4)
    for accounts in zip(*results):
        balanced(accounts[0::2])
        balanced(accounts[1::2])
        assert not torch.equal(accounts[0]["weights"]["a"], accounts[1]["weights"]["a"])


class Gate(torch.autograd.Function):
    """Blocks the backward pass until happened() is true."""

    happened = None

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        deadline = time.monotonic() + 60
        while not Gate.happened():
            assert time.monotonic() < deadline, "nothing happens during the backward pass"
            time.sleep(0.001)
        return grad


class Gated(Known):
    def forward(self, given):
        first = Gate.apply((self.a * given["a"]).sum())
        return first + (self.b * given["b"]).sum()


def overlapped(rank, nranks):
    """b's gradient is summed over all ranks before any rank has computed a's. Not in the first
    step, where DDP has one bucket."""
    network, account = DDP(Gated(a=500, b=500), bucket_cap_mb=0.001), Account()
    state = thinwire.compress(network, density=0.05, whole_model=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    Gate.happened = lambda: step == 0 or state.engine.costs.open["selected"] > 0
    for step in range(4):
        optimizer.zero_grad()
        network(account.give({"a": gradient(500, rank, step),
                              "b": gradient(500, rank, 10 + step)})).backward()
        optimizer.step()
    return account.close(network, state)


def test_exchange_overlaps_backward():
    balanced(run(overlapped, 2))


if __name__ == "__main__":
    main([test_full_density_is_plain_ddp, test_subgroups, test_exchange_overlaps_backward])
