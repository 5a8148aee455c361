"""A killed run resumes: the loss curve continues bit for bit. With another number of ranks nothing
is lost."""
import copy
import os
import shutil
import tempfile
import time
from unittest import mock

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals
from ranks import loss, main, model, run, weights
from thinwire import saved

SCHEMES = ("oktopk", "gaussiank", "gtopk")


def train(rank, scheme, folder, first, last, save_at):
    """Steps first .. last-1. Saves before step save_at; loads what was saved if first > 0."""
    network = DDP(model())
    state = thinwire.compress(network, scheme=scheme, density=0.05, warmup_steps=6, momentum=0.5,
                              seed=3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    path = os.path.join(folder, f"{scheme}.{rank}")
    if first > 0:
        then = torch.load(path)
        network.load_state_dict(then["model"])
        state.load_state_dict(then["thinwire"])
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
    """The whole run, and one that is killed some steps after it has saved."""
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
    now = state.state_dict()
    assert torch.equal(copied.pop("state"), now["state"])
    assert copied == {name: value for name, value in now.items() if name != "state"}
    return now, residuals(state)


def load(rank, nranks, dicts):
    network, state = setting()
    state.load_state_dict(dicts)
    try:
        state.load_state_dict(dicts[:1])        # no rank would load the others
        assert len(dicts) == 1
    except thinwire.MismatchError as error:
        assert "rank" in str(error), error
    return residuals(state)


def check_ranks(before, after):
    dicts, old = zip(*run(save, before))
    new = run(load, after, list(dicts))
    for name in ("a", "b"):
        assert torch.equal(sum(one[name] for one in old), sum(one[name] for one in new)), name
        assert old[0][name].any()


def test_other_world_sizes():
    check_ranks(4, 2)
    check_ranks(2, 3)
    check_ranks(2, 1)


# ---- folders of temporary files

NOWHERE = "/proc"       # not even for root


def no_room(rank, nranks):
    """Rank 1 has no folder for files: rank 0 fails at once. With a second folder both continue,
    bit for bit."""
    network, state = setting()
    network({"a": gradient(500, rank, 0), "b": gradient(60, rank, 1)}).backward()
    then, before = state.state_dict(), residuals(state)
    network({"a": gradient(500, rank, 2), "b": gradient(60, rank, 3)}).backward()
    begin, parents = time.monotonic(), [NOWHERE] if rank == 1 else [NOWHERE, None]
    with mock.patch("thinwire.saved._parents", lambda size, nranks: parents):
        try:
            state.load_state_dict(then)
            assert False, "a state was loaded from nowhere"
        except thinwire.FileError as error:
            assert ("TMPDIR" if rank == 1 else "rank 1: ") in str(error), error
        assert time.monotonic() - begin < 30
        parents[1:] = [None]
        state.load_state_dict(then)
        assert torch.equal(state.state_dict()["state"], then["state"])
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())


def test_no_room():
    run(no_room, 2)


class Full:
    """A group whose first folder is full when half of the file is written."""

    def __init__(self):
        self.transport = thinwire.alone()
        self.tried = []

    def memory(self):
        return {"residual": 4, "moments": 0}

    def save(self, path):
        self.tried.append(path)
        with open(path, "wb") as file:
            file.write(b"half")
        if len(self.tried) == 1:
            raise thinwire.FileError("no space left")


def test_second_folder():
    group, folder = Full(), tempfile.mkdtemp()
    with mock.patch("thinwire.saved._MEMORY", folder):
        assert bytes(saved.bytes_of(group).tolist()) == b"half"
        assert group.tried[0].startswith(folder) and not group.tried[1].startswith(folder)
        assert os.listdir(folder) == [] and not os.path.exists(group.tried[1])
        assert list(saved._parents(1 << 60, 2)) == [None]     # /dev/shm is too small
    os.rmdir(folder)
    assert list(saved._parents(0, 2))[-1] is None


def test_large_states():
    """2 GiB and more; the pages are never touched."""
    state = torch.empty(2**31 + 5, dtype=torch.uint8)
    assert memoryview(saved.view(state)).nbytes == 2**31 + 5


if __name__ == "__main__":
    main([test_resumed_is_bitwise_the_same, test_other_world_sizes, test_no_room,
          test_second_folder, test_large_states])
