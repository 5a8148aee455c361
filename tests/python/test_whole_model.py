"""whole_model=True: the k largest values of the model, whatever parameters they belong to."""
import functools

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch

import test_amp
import test_optimizer
import test_patterns
import thinwire
from known import balanced, residuals
from ranks import main, run
from test_patterns import SIZES, draw, setting, step_once

DENSITY = 0.05


def largest(given):
    """Masks of the k largest values of the model, {name: mask}; of equals the earlier one counts.
    The vector has the order in which the backward pass reaches parameters."""
    names = list(reversed(SIZES))
    vector = torch.cat([given[name] for name in names])
    k = round(DENSITY * len(vector))
    mask = torch.zeros(len(vector), dtype=torch.bool)
    mask[torch.sort(-vector.abs(), stable=True).indices[:k]] = True
    return dict(zip(names, mask.split([SIZES[name] for name in names])))


def selection(rank, nranks):
    """All of c is large, all of b small: selecting from each parameter would differ."""
    network, state, optimizer, account = setting("topka", DENSITY, whole_model=True)
    given = draw(rank, 0)
    given["c"] *= 10
    given["b"] *= 0.1
    step_once(network, optimizer, account, given)
    chosen, kept = largest(given), residuals(state)
    for name, mask in chosen.items():
        assert torch.equal(kept[name], given[name] * ~mask), name
    assert chosen["c"].all() and not chosen["b"].any() and chosen["a"].any()
    assert state.stats()["selected"] == sum(int(mask.sum()) for mask in chosen.values())
    return {name: (given[name] * mask, -getattr(network.module, name).detach())
            for name, mask in chosen.items()}


def test_selects_over_all_parameters():
    results = run(selection, 2)
    for name in SIZES:
        sent, applied = zip(*(result[name] for result in results))
        assert all(torch.equal(sum(sent) / 2, one) for one in applied), name


def by_optimizer(rank, nranks):
    """Rank 0 does not use b in every other step."""
    network = test_optimizer.Known(**SIZES)
    optimizer, account = test_optimizer.setting(network, whole_model=True)
    for step in range(12):
        optimizer.zero_grad()
        network(account.give(draw(rank, step, "abc" if step % 2 or rank else "ac"))).backward()
        optimizer.step()
    return account.close(network, optimizer.thinwire)


def other_default(rank, nranks):
    """The vector is float32 even if the script's default type is bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        return test_patterns.half(rank, nranks, whole_model=True)
    finally:
        torch.set_default_dtype(torch.float32)


def all_of_them(rank, nranks):
    accounts = {play.__name__: play(rank, nranks, whole_model=True)
                for play in (test_patterns.small_buckets, test_patterns.accumulation,
                             test_patterns.uneven, test_patterns.half, test_amp.scaled)}
    return {**accounts, "optimizer": by_optimizer(rank, nranks),
            "another default type": other_default(rank, nranks)}


def test_nothing_is_lost():
    results = run(all_of_them, 2)
    for name in results[0]:
        balanced([accounts[name] for accounts in results])
        print("  ", name, flush=True)


def unused(rank, nranks):
    """A step in which no rank uses b is refused on all ranks; the next one works."""
    network, state, optimizer, account = setting(ddp={"find_unused_parameters": True},
                                                 whole_model=True)
    for step in range(5):
        given, before = draw(rank, step, "ac" if step == 2 else "abc"), residuals(state)
        if step != 2:
            step_once(network, optimizer, account, given)
            continue
        optimizer.zero_grad()
        try:
            network(given).backward()
            assert False, "an unused parameter was not noticed"
        except thinwire.ParamError as error:
            assert "'b' got no gradient on any rank" in str(error), error
        assert all(torch.equal(before[name], now) for name, now in residuals(state).items())
    return account.close(network, state)


def test_unused_parameters_are_refused():
    balanced(run(unused, 2))


def zeros(rank, nranks, **ddp):
    """All ranks use b, and its gradient is zero in some steps: not refused."""
    network, state, optimizer, account = setting(ddp=ddp, whole_model=True)
    for step in range(6):
        given = draw(rank, step)
        given["b"] *= step % 2
        step_once(network, optimizer, account, given)
    return account.close(network, state)


def test_gradients_of_zero():
    for ddp in ({"find_unused_parameters": True}, {"static_graph": True}):
        balanced(run(functools.partial(zeros, **ddp), 2))


def not_finite(rank, nranks):
    """The text names the parameter and the element in it."""
    network, state, optimizer, account = setting(whole_model=True)
    for step in range(4):
        given, before = draw(rank, step), residuals(state)
        if step != 2:
            step_once(network, optimizer, account, given)
            continue
        given["a"][7] = float("nan") if rank == 1 else 0.0
        optimizer.zero_grad()
        try:
            network(given).backward()
            assert False, "NaN was not noticed"
        except thinwire.NumberError as error:
            assert "rank 1, parameter 'a': element 7 is NaN" in str(error), error
        assert all(torch.equal(before[name], now) for name, now in residuals(state).items())
    return account.close(network, state)


def test_nan_is_named():
    balanced(run(not_finite, 2))


def resumed(rank, nranks):
    """Saved after 4 of 8 steps and loaded by another state; a state without whole_model refuses."""
    first, second, other = setting(whole_model=True), setting(whole_model=True), setting()
    for step in range(4):
        step_once(first[0], first[2], first[3], draw(rank, step))
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    for step in range(4, 8):
        for network, _, optimizer, account in (first, second):
            step_once(network, optimizer, account, draw(rank, step))
    try:
        other[1].load_state_dict(first[1].state_dict())
        assert False, "a state of another kind was loaded"
    except thinwire.MismatchError:
        pass
    return [account.close(network, state) for network, state, _, account in (first, second)]


def test_resumed_is_bitwise_the_same():
    for first, second in run(resumed, 2):
        for part in ("weights", "residuals"):
            for name in SIZES:
                assert torch.equal(first[part][name], second[part][name]), (part, name)


def default(rank, nranks):
    """compress() selects from the whole model, but not where parameters may be unused, nor with
    bucket: of each parameter."""
    def is_whole(ddp=None, **options):
        network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3), **(ddp or {}))
        return thinwire.compress(network, **options).engine.whole_model
    assert is_whole()
    assert not is_whole(whole_model=False)
    assert not is_whole({"find_unused_parameters": True})
    assert not is_whole({"static_graph": True})
    assert not is_whole(bucket=7)
    assert is_whole({"find_unused_parameters": True}, whole_model=True)


def test_default():
    run(default, 2)


if __name__ == "__main__":
    main([test_default, test_selects_over_all_parameters, test_nothing_is_lost,
          test_unused_parameters_are_refused, test_gradients_of_zero, test_nan_is_named,
          test_resumed_is_bitwise_the_same])
