"""Uses of DDP: accumulation, unused and frozen parameters, uneven inputs, rebuilt buckets, 16-bit
gradients, several models. None of them may lose anything, bit for bit."""
import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Account, Known, balanced, gradient, residuals
from ranks import main, run

SIZES = {"a": 600, "b": 300, "c": 40}


def setting(scheme="oktopk", density=0.1, sizes=None, ddp=None, **options):
    network = DDP(Known(**(sizes or SIZES)), **(ddp or {}))
    options.setdefault("whole_model", False)
    state = thinwire.compress(network, scheme=scheme, density=density, **options)
    return network, state, torch.optim.SGD(network.parameters(), lr=1.0), Account()


def draw(rank, step, names=SIZES):
    return {name: gradient(SIZES[name], rank, 10 * step + i) for i, name in enumerate(SIZES)
            if name in names}


def step_once(network, optimizer, account, given):
    optimizer.zero_grad()
    network(account.give(given)).backward()
    optimizer.step()


# ---- one use each; returns the rank's account

def schemes(rank, nranks, scheme):
    network, state, optimizer, account = setting(scheme)
    for step in range(8):
        step_once(network, optimizer, account, draw(rank, step))
    assert state.stats()["steps"] == 8 and scheme in state.summary()
    return account.close(network, state)


def small_buckets(rank, nranks, **options):
    """Many buckets, rebuilt by DDP after the first step."""
    network, state, optimizer, account = setting(ddp={"bucket_cap_mb": 0.001}, **options)
    for step in range(8):
        step_once(network, optimizer, account, draw(rank, step))
    assert len(network.reducer._get_zeros_like_grad_buckets()) > 1
    return account.close(network, state)


def large(rank, nranks):
    """Messages of 640 kB, which are sent in two pieces."""
    network, state, optimizer, account = setting("topka", 0.2, {"a": 400000})
    for step in range(3):
        step_once(network, optimizer, account, {"a": gradient(400000, rank, step)})
    return account.close(network, state)


def accumulation(rank, nranks, **options):
    network, state, optimizer, account = setting(**options)
    for step in range(9):
        optimizer.zero_grad()
        with network.no_sync():
            network(account.give(draw(rank, 2 * step))).backward()
        network(account.give(draw(rank, 2 * step + 1))).backward()
        optimizer.step()
    assert state.stats()["steps"] == 9
    return account.close(network, state)


def unused(rank, nranks):
    """b is used by some ranks, by all, or in every third step by none."""
    network, state, optimizer, account = setting(ddp={"find_unused_parameters": True})
    for step in range(8):
        names = "abc" if step % 3 == 1 or (step % 3 == 2 and rank == 1) else "ac"
        before = residuals(state)["b"]
        step_once(network, optimizer, account, draw(rank, step, names))
        if step % 3 == 0:
            assert torch.equal(before, residuals(state)["b"])
    return account.close(network, state)


def uneven(rank, nranks, **options):
    """Rank r has 5 + 2r inputs."""
    network, state, optimizer, account = setting(ddp={"bucket_cap_mb": 0.001}, **options)
    with Join([network]):
        for step in range(5 + 2 * rank):
            step_once(network, optimizer, account, draw(rank, step))
    return account.close(network, state)


def frozen(rank, nranks):
    bare = Known(**SIZES)
    bare.b.requires_grad_(False)
    network = DDP(bare)
    state = thinwire.compress(network, density=0.1)
    optimizer, account = torch.optim.SGD(network.parameters(), lr=1.0), Account()
    for step in range(8):
        step_once(network, optimizer, account, draw(rank, step, "ac"))
        network({"b": torch.ones(SIZES["b"])})
    assert sorted(residuals(state)) == ["a", "c"] and not bare.b.any()
    del bare.b
    return account.close(bare, state)


def two_models(rank, nranks):
    """In turns, and both in one backward pass."""
    first, second = setting(), setting("topka", 0.05)
    for step in range(8):
        step_once(first[0], first[2], first[3], draw(rank, step))
        for _, _, optimizer, _ in (first, second):
            optimizer.zero_grad()
        loss = first[0](first[3].give(draw(rank, 20 + step)))
        (loss + second[0](second[3].give(draw(rank, 40 + step)))).backward()
        first[2].step()
        second[2].step()
    return [account.close(network, state) for network, state, _, account in (first, second)]


def half(rank, nranks, dtype=torch.float16, **options):
    """bfloat16 is in test_optimizer.py: torch 1.13's gloo cannot broadcast it for DDP."""
    network = DDP(Known(dtype, **SIZES))
    state = thinwire.compress(network, density=0.1, **options)
    optimizer, account = torch.optim.SGD(network.parameters(), lr=1.0), Account()
    for step in range(8):
        optimizer.zero_grad()
        given = account.give(draw(rank, step))
        network({name: value.to(dtype) for name, value in given.items()}).backward()
        optimizer.step()
    account = account.close(network, state)
    account["weights"] = {name: value.float() for name, value in account["weights"].items()}
    return account


def all_of_them(rank, nranks):
    """All in one set of processes: starting takes longer than training."""
    accounts = {f"scheme {scheme}": schemes(rank, nranks, scheme)
                for scheme in thinwire.schemes() if scheme not in ("dense", "randomk")}
    for play in (large, accumulation, unused, uneven, frozen, half):
        accounts[play.__name__] = play(rank, nranks)
    accounts["small buckets"] = small_buckets(rank, nranks, bucket=400)     # the library's own too
    accounts["first model"], accounts["second model"] = two_models(rank, nranks)
    return accounts


def check_patterns(nranks):
    results = run(all_of_them, nranks)
    for name in results[0]:
        balanced([accounts[name] for accounts in results])
        print("  ", name, flush=True)


def test_patterns_2_ranks():
    check_patterns(2)


def test_patterns_4_ranks():
    check_patterns(4)


if __name__ == "__main__":
    main([test_patterns_2_ranks, test_patterns_4_ranks])
