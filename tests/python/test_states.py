"""States of all ranks: gathered, in a folder, in torch.distributed.checkpoint. No form loses a
rank's residuals, and one rank's alone is refused."""
import contextlib
import inspect
import io
import os
import shutil
import tempfile

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals
from ranks import main, model, run
from test_bad import refused
from thinwire import integrations, states

SIZES = {"a": 500, "b": 60}


def setting():
    network = DDP(Known(**SIZES))
    return network, thinwire.compress(network, density=0.05)


def train(network, rank, first, last):
    for step in range(first, last):
        network.zero_grad()     # else gradients would be means, not integers
        network({name: gradient(size, rank, 50 * at + step)
                 for at, (name, size) in enumerate(SIZES.items())}).backward()


def saved(rank, nranks, save):
    network, state = setting()
    train(network, rank, 0, 5)
    return save(state), residuals(state)


def loaded(rank, nranks, given, load):
    network, state = setting()
    load(state, given)
    return residuals(state)


def check_mass(before, after, save, load):
    """The residuals of all ranks sum up to the same after loading, exactly. With as many ranks as
    before each has its own."""
    given, old = zip(*run(saved, before, save))
    new = run(loaded, after, given[0], load)
    for name in SIZES:
        assert torch.equal(sum(one[name] for one in old), sum(one[name] for one in new)), name
        assert all(one[name].any() for one in old)
        if before == after:
            assert all(torch.equal(a[name], b[name]) for a, b in zip(old, new))


# ---- one dict

def gather(state):
    everywhere, alone = state.gather_state_dict(), state.gather_state_dict(dst=1)
    assert (alone is None) == (state.engine.transport.rank != 1)
    assert alone is None or all(map(torch.equal, alone["states"], everywhere["states"]))
    assert everywhere["note"] == f"the states of all {dist.get_world_size()} ranks"
    return everywhere


def test_gathered():
    for before, after in ((3, 3), (3, 2), (2, 3), (2, 1)):
        check_mass(before, after, gather, thinwire.ddp.State.load_state_dict)


def gather_of_one(rank, nranks):
    network, state = setting()
    train(network, rank, 0, 3)
    then, before = state.gather_state_dict(), residuals(state)
    train(network, rank, 3, 5)
    state.load_state_dict(then)
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())


def test_gathered_from_one_rank():
    run(gather_of_one, 1)


def gather_of_optimizer(rank, nranks):
    network = DDP(model())
    optimizer = thinwire.AdamW(network, density=0.05, warmup_steps=0)
    ranks.loss(network, rank, 0).backward()
    optimizer.step()
    then, own = optimizer.gather_state_dict(), optimizer.state_dict()["thinwire"]["state"]
    ranks.loss(network, rank, 1).backward()
    optimizer.step()
    optimizer.load_state_dict(then)
    assert torch.equal(optimizer.state_dict()["thinwire"]["state"], own)
    assert (optimizer.gather_state_dict(dst=0) is None) == (rank == 1)


def test_optimizer_gathers():
    run(gather_of_optimizer, 2)


def no_room(rank, nranks):
    """Rank 1 cannot write its state: all ranks fail, and none waits."""
    _, state = setting()
    engine = state.engine
    if rank == 1:
        engine.state_dict = lambda: (_ for _ in ()).throw(thinwire.FileError("disk full"))
    try:
        state.gather_state_dict()
        assert False, "a state was gathered"
    except thinwire.FileError as error:
        assert ("disk full" if rank == 1 else "rank 1") in str(error), error


def test_no_room():
    run(no_room, 3)


def gather_to_nobody(rank, nranks):
    _, state = setting()
    for dst in (9, -1, 1.5):
        refused(thinwire.ParamError, f"dst: {dst}; accepted is a rank, 0 .. 1",
                lambda: state.gather_state_dict(dst=dst))


def test_gather_to_nobody():
    run(gather_to_nobody, 2)
    refused(thinwire.ParamError, "dst: 1; accepted is a rank, 0 .. 0",
            lambda: single().gather_state_dict(dst=1))


# ---- one process

def single(**options):
    return thinwire.compress(Known(**SIZES), density=0.05, **options)


def of_single(rank, nranks, forms):
    """It has no residuals, so none are there afterwards; after a step they would be lost."""
    for given in forms:
        network, state = setting()
        state.load_state_dict(given)
        assert not any(one.any() for one in residuals(state).values())
        train(network, rank, 0, 2)
        before = residuals(state)
        refused(thinwire.StateError, "before the first step", lambda: state.load_state_dict(given))
        assert all(torch.equal(before[name], now) for name, now in residuals(state).items())
    refused(thinwire.MismatchError, "no rank names a state", lambda: state.load_state_dict([]))


def through_memory(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_state_of_one_process():
    """It is one that several ranks can load, in each form."""
    state = single()
    forms = (state.state_dict(), state.gather_state_dict(), [state.state_dict()])
    run(of_single, 2, [through_memory(one) for one in forms])
    with folder() as path:
        integrations.save(state, path)
        run(loaded, 3, None, lambda state, _: integrations.load(state, path))
        integrations.load(state, path)
    refused(thinwire.MismatchError, "expected a dict", lambda: state.load_state_dict({"of": "8"}))
    refused(thinwire.MismatchError, "expected a dict", lambda: state.load_state_dict([{}]))


def per_parameter():
    network = DDP(Known(**SIZES), find_unused_parameters=True)
    return network, thinwire.compress(network, density=0.05)


def loaded_each(rank, nranks, forms):
    _, state = setting()
    found = []
    for given in forms:
        state.load_state_dict(given)
        found.append(residuals(state))
    return found


def test_residuals_wait_in_one_process():
    """From 3 ranks to one process to 2 ranks: nothing is lost, also if parameters may be unused,
    where each is a tensor of its own."""
    global setting
    usual = setting
    for setting, save in ((usual, gather), (per_parameter, thinwire.ddp.State.state_dict)):
        given, old = zip(*run(saved, 3, save))
        state = single()
        state.load_state_dict(given[0] if save is gather else list(given))
        forms = state.state_dict(), state.gather_state_dict()
        for new in zip(*run(loaded_each, 2, [through_memory(one) for one in forms])):
            for name in SIZES:
                total = sum(one[name] for one in old)
                assert total.any() and torch.equal(total, sum(one[name] for one in new)), name
    setting = usual


# ---- one rank's state

def of_one_rank(rank, nranks, given):
    """What accelerate's register_for_checkpointing() and Lightning's callbacks save: rank 0's."""
    _, state = setting()
    before = residuals(state)
    try:
        state.load_state_dict(given)
        assert False, "the residuals of rank 1 are lost"
    except thinwire.MismatchError as error:
        assert "every rank has a state of its own" in str(error), error
        assert "gather_state_dict() once" in str(error), error
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())


def test_state_of_one_rank_is_refused():
    given = run(saved, 2, thinwire.ddp.State.state_dict)[0][0]
    assert given["note"].startswith("the state of rank 0 of 2 alone"), given["note"]
    run(of_one_rank, 2, given)
    run(of_one_rank, 1, given)
    run(of_one_rank, 3, given)


def of_version_1(rank, nranks):
    network, state = setting()
    train(network, rank, 0, 3)
    then, before = state.state_dict(), residuals(state)
    del then["note"]
    then["version"] = 1
    train(network, rank, 3, 5)
    state.load_state_dict(then)
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())


def test_states_of_version_1():
    run(of_version_1, 2)


def pickled(rank, nranks):
    """torch.load needs no class of thinwire, so it may load weights only."""
    _, state = setting()
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    kind = type(torch.load(file)["state"])
    assert kind is torch.Tensor, kind
    assert "tensor([" in repr(state.state_dict())


def test_pickled_as_plain_tensors():
    run(pickled, 1)


# ---- files beside a checkpoint

@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp()       # a TemporaryDirectory would end with the first rank
    try:
        yield path
    finally:
        shutil.rmtree(path)


def test_files():
    for before, after in ((2, 2), (4, 2), (2, 3)):
        with folder() as path:
            check_mass(before, after, lambda state: integrations.save(state, path),
                       lambda state, _: integrations.load(state, path))
            assert len(os.listdir(path)) == before


def missing(rank, nranks, path):
    """Rank 1 alone finds no file: both fail."""
    _, state = setting()
    if rank == 0:
        integrations.save(state, path)
    dist.barrier()
    try:
        integrations.load(state, path if rank == 0 else path + "/nowhere")
        assert False, "a state was loaded from nowhere"
    except thinwire.FileError as error:
        assert ("no state of thinwire" if rank == 1 else "rank 1") in str(error), error


def test_missing_files():
    with folder() as path:
        run(missing, 2, path)


def test_files_of_an_earlier_job():
    """A folder that 4 ranks have saved in, then 2: those of the 4 are removed."""
    with folder() as path:
        run(saved, 4, lambda state: integrations.save(state, path))
        check_mass(2, 2, lambda state: integrations.save(state, path),
                   lambda state, _: integrations.load(state, path))
        assert sorted(os.listdir(path)) == ["thinwire-0-of-2.pt", "thinwire-1-of-2.pt"]


def test_files_of_two_jobs():
    with folder() as path:
        states.save(path, {"rank": 0, "nranks": 2})
        shutil.copy(f"{path}/thinwire-0-of-2.pt", f"{path}/thinwire-0-of-4.pt")
        try:
            states.load(path, 0, 2)
            assert False, "files of two jobs were mixed"
        except thinwire.MismatchError as error:
            assert "jobs of 2 and of 4 ranks" in str(error), error


def apart(rank, nranks, path):
    """A framework saves the optimizer's own part from rank 0, the integration the rest."""
    network = DDP(model())
    optimizer = thinwire.SGD(network, lr=0.1, momentum=0.9, density=0.05)
    state = integrations.attached(network, [optimizer])
    ranks.loss(network, rank, 0).backward()
    optimizer.step()
    then, before = optimizer.state_dict(), residuals(state)
    assert "thinwire" not in then and state is optimizer.thinwire
    integrations.save(state, path)
    ranks.loss(network, rank, 1).backward()
    optimizer.step()
    optimizer.load_state_dict(then)
    integrations.load(state, path)
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())
    names = set(integrations.metrics(state))
    assert names >= {f"thinwire/{name}" for name in
                     ("payload_sent", "density", "residual_norm", "exchange_seconds")}, names


def test_optimizer_in_a_framework():
    with folder() as path:
        run(apart, 2, path)


# ---- torch.distributed.checkpoint

def saved_later(rank, nranks, dcp, path):
    """Refused, or every rank's is saved, as by torch 2.6, which copies nothing on the CPU."""
    network, state = setting()
    train(network, rank, 0, 3)
    try:
        dcp.async_save({"thinwire": state}, checkpoint_id=path).result()
    except thinwire.StateError as error:
        assert "async_save() cannot take" in str(error), error
        return
    before = residuals(state)
    train(network, rank, 3, 5)
    dcp.load({"thinwire": state}, checkpoint_id=path)
    assert all(torch.equal(before[name], now) for name, now in residuals(state).items())


def test_distributed_checkpoint():
    """Under one key: saved by 4 ranks, loaded by 4, 2 and 6. async_save() would keep rank 0's."""
    try:
        import torch.distributed.checkpoint as dcp
        from torch.distributed._checkpointable import _Checkpointable  # noqa: F401
    except ImportError:
        print("SKIP: torch.distributed.checkpoint of torch 2.6 or newer is missing")
        return
    for after in (4, 2, 6):
        with folder() as path:
            check_mass(4, after, lambda state: dcp.save({"thinwire": state}, checkpoint_id=path)
                       and None,
                       lambda state, _: dcp.load({"thinwire": state}, checkpoint_id=path))
    with folder() as path:
        run(saved_later, 2, dcp, path)
    check_single(dcp)


def check_single(dcp):
    """Saved by one process, loaded by 2 and by one; saved by 2, taken by one, loaded by 3."""
    new = "no_dist" in inspect.signature(dcp.save).parameters   # torch 2.7; before, it finds out itself
    alone = {"no_dist": True} if new else {}
    with folder() as path:
        dcp.save({"thinwire": single()}, checkpoint_id=path, **alone)
        dcp.load({"thinwire": single()}, checkpoint_id=path, **alone)
        new = run(loaded, 2, None, lambda state, _: dcp.load({"thinwire": state},
                                                             checkpoint_id=path))
        assert not any(one.any() for some in new for one in some.values())
    with folder() as path:
        _, old = zip(*run(saved, 2, lambda state: dcp.save({"thinwire": state}, checkpoint_id=path)
                          and None))
        state = single()
        dcp.load({"thinwire": state}, checkpoint_id=path, **alone)
        dcp.save({"thinwire": state}, checkpoint_id=path + "/next", **alone)
        new = run(loaded, 3, None, lambda state, _: dcp.load({"thinwire": state},
                                                             checkpoint_id=path + "/next"))
        for name in SIZES:
            assert torch.equal(sum(one[name] for one in old), sum(one[name] for one in new)), name


if __name__ == "__main__":
    main([test_gathered, test_gathered_from_one_rank, test_optimizer_gathers, test_no_room,
          test_gather_to_nobody, test_state_of_one_process, test_residuals_wait_in_one_process,
          test_state_of_one_rank_is_refused, test_states_of_version_1,
          test_pickled_as_plain_tensors, test_files, test_missing_files,
          test_files_of_an_earlier_job, test_files_of_two_jobs, test_optimizer_in_a_framework,
          test_distributed_checkpoint])
