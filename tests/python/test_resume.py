"""Killed and resumed: the curve continues bit for bit; with other numbers of ranks nothing is
lost."""
import copy
import os
import shutil
import tempfile

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals
from ranks import loss, main, model, run, weights

SCHEMES = ("oktopk", "gaussiank", "gtopk")


def train(rank, scheme, folder, first, last, save_at):
    """Steps first .. last-1; saves before `save_at` and goes on from there when first is it."""
    network = DDP(model())
    state = thinwire.compress(network, scheme=scheme, density=0.05, warmup_steps=6, momentum=0.5,
                              seed=3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    path = os.path.join(folder, f"{scheme}.{rank}")
    if first > 0:
        saved = torch.load(path)
        network.load_state_dict(saved["model"])
        state.load_state_dict(saved["thinwire"])
    curve = []
    for step in range(first, last):
        if step == save_at and first == 0:
            torch.save({"model": network.state_dict(), "thinwire": state.state_dict()}, path)
        optimizer.zero_grad()
        now = loss(network, rank, step)
        now.backward()
        optimizer.step()
        curve.append(now.item())
    return curve, weights(network)


def killed(rank, nranks, folder):
    """The whole run, and one that dies without a word some steps after it has saved."""
    whole = {scheme: train(rank, scheme, folder, 0, 24, 10) for scheme in SCHEMES}
    torch.save(whole, os.path.join(folder, f"whole.{rank}"))
    for scheme in SCHEMES:
        train(rank, scheme, folder, 0, 13, 10)
    os._exit(9)


def resumed(rank, nranks, folder):
    return {scheme: train(rank, scheme, folder, 10, 24, 10) for scheme in SCHEMES}


def test_resumed_is_bitwise_the_same():
    folder = tempfile.mkdtemp()
    run(killed, 2, folder, may_die=(0, 1))
    results = run(resumed, 2, folder)
    for rank, result in enumerate(results):
        whole = torch.load(os.path.join(folder, f"whole.{rank}"))
        for scheme in SCHEMES:
            assert result[scheme][0] == whole[scheme][0][10:], (rank, scheme)
            assert torch.equal(result[scheme][1], whole[scheme][1]), (rank, scheme)
    shutil.rmtree(folder)


# ---- another number of ranks

def setting():
    network = DDP(Known(a=500, b=60))
    return network, thinwire.compress(network, density=0.05)


def save(rank, nranks):
    network, state = setting()
    for step in range(5):
        network({"a": gradient(500, rank, step), "b": gradient(60, rank, 50 + step)}).backward()
    network._comm_hooks = [state]       # as in torch 2
    copied = copy.deepcopy(network)._comm_hooks[0]
    saved = state.state_dict()
    assert torch.equal(copied.pop("state"), saved["state"])
    assert copied == {name: value for name, value in saved.items() if name != "state"}
    return saved, residuals(state)


def load(rank, nranks, saved):
    network, state = setting()
    state.load_state_dict(saved)
    try:
        state.load_state_dict(saved[:1])        # the others are taken by nobody
        assert len(saved) == 1
    except thinwire.MismatchError as error:
        assert "rank" in str(error), error
    return residuals(state)


def check_ranks(before, after):
    saved, old = zip(*run(save, before))
    new = run(load, after, list(saved))
    for name in ("a", "b"):
        assert torch.equal(sum(one[name] for one in old), sum(one[name] for one in new)), name
        assert old[0][name].any()


def test_other_world_sizes():
    check_ranks(4, 2)
    check_ranks(2, 3)
    check_ranks(2, 1)


if __name__ == "__main__":
    main([test_resumed_is_bitwise_the_same, test_other_world_sizes])
