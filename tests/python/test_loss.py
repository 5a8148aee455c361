"""Ranks that are killed and stopped: the others go on, alike, and nothing but the residual of the dead
is lost. States of ranks that died may be missing."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals, weights as known_weights
from ranks import equal, loss, main, model, run, weights
from test_bad import refused
from thinwire import integrations, states

SIZES = {"a": 500, "b": 60}
DEAD, DIES, STEPS = 2, 70, 100      # after step 65 all ranks have told the norm of their residual


@contextlib.contextmanager
def temporary():
    """A folder that ranks do not remove when they end, as they would with TemporaryDirectory."""
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# ---- optimizers of plain models

def sgd(network, **options):
    return thinwire.SGD(network, lr=1.0, density=0.05, wire="raw", **options)


def wrapped(network, **options):
    return thinwire.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), network.named_parameters(),
        thinwire.Compression(density=0.05, **options))


def known_step(network, optimizer, rank, step):
    given = {name: gradient(size, rank, 50 * at + step)
             for at, (name, size) in enumerate(SIZES.items())}
    optimizer.zero_grad()
    network(given).backward()
    optimizer.step()
    return given


def books(rank, nranks, make, options, folder):
    """Trains on known gradients. Every rank writes down what it has after each step of the time about
    a death, for the ledger of the test."""
    network = Known(**SIZES)
    optimizer = make(network, on_loss="shrink", timeout=20, **options)
    given = {name: torch.zeros(size) for name, size in SIZES.items()}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(STEPS):
            if rank == DEAD and step == DIES:
                torch.save((given, residuals(optimizer.thinwire)), f"{folder}/dead")
                die()
            applied = known_weights(network)
            for name, value in known_step(network, optimizer, rank, step).items():
                given[name] += value
            if step == DIES - 1:
                at_death = known_weights(network)
    assert not torch.equal(applied["a"], known_weights(network)["a"])
    return {"given": given, "weights": known_weights(network), "at_death": at_death,
            "residuals": residuals(optimizer.thinwire), "stats": optimizer.thinwire.stats(),
            "told": [str(one.message) for one in told if "is lost" in str(one.message)]}


def check_books(results, folder):
    """Means are over 4 ranks until the death and over 3 after it: 4 x applied before + 3 x applied after +
    residuals of all, those of the dead too, are the gradients of all."""
    alive = [one for rank, one in enumerate(results) if rank != DEAD]
    assert results[DEAD] is None and all(one is not None for one in alive)
    given, kept = torch.load(f"{folder}/dead")
    for name in SIZES:
        assert equal([one["weights"][name] for one in alive]), name
        before = -alive[0]["at_death"][name].double()
        after = -alive[0]["weights"][name].double() - before
        left = sum(one["residuals"][name].double() for one in alive) + kept[name].double()
        put = sum(one["given"][name].double() for one in alive) + given[name].double()
        assert (4 * before + 3 * after + left - put).abs().max() < 1e-3, name
        assert kept[name].any() and after.any() and before.any()
    norm = float(torch.cat([kept[name] for name in SIZES]).norm())
    return alive, norm


def check_loss(make, options, told=65):
    with temporary() as folder:
        alive, norm = check_books(run(books, 4, make, options, folder, may_die=[DEAD]), folder)
    for one in alive:
        stats = one["stats"]
        assert (stats["ranks"], stats["lost_ranks"], stats["steps"]) == (3, 1, STEPS), stats
        assert 0.5 * norm < stats["lost_norm"] < 2 * norm, (stats["lost_norm"], norm)
        assert stats["dense_bytes"] == 2 * 2 * 4 * 560 // 3
    assert not alive[1]["told"] and not alive[2]["told"]
    text, = alive[0]["told"]
    norm = alive[0]["stats"]["lost_norm"]
    assert f"rank {DEAD} is lost" in text and f"{norm:.4g} after {told} exchanges" in text, text
    assert "3 of 4 ranks go on" in text, text


def test_sgd_goes_on():
    check_loss(sgd, {"momentum": 0.0})


def test_optimizer_goes_on_in_the_backward_pass():
    """Some parameters are under way when the connection breaks, others are not started."""
    check_loss(wrapped, {"whole_model": False, "bucket": 100}, 129)     # two buckets a step


def test_dense_goes_on():
    """A dense sum must not overwrite gradients that may have to be sent again."""
    for whole in (True, False):
        with temporary() as folder:
            check_books_of_dense(run(books, 4, wrapped, {"scheme": "dense", "whole_model": whole},
                                     folder, may_die=[DEAD]))


def check_books_of_dense(results):
    alive = [one for rank, one in enumerate(results) if rank != DEAD]
    for at, (name, size) in enumerate(SIZES.items()):
        assert equal([one["weights"][name] for one in alive])
        want = torch.zeros(size)
        for step in range(STEPS):
            those = [rank for rank in range(4) if step < DIES or rank != DEAD]
            want -= sum(gradient(size, rank, 50 * at + step) for rank in those) / len(those)
        assert torch.allclose(alive[0]["weights"][name], want, atol=1e-3), name


# ---- one after another

def train_adamw(rank, nranks, deaths, steps):
    """deaths: {rank: step}."""
    network = model()
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.1, warmup_steps=0, on_loss="shrink",
                               timeout=20)
    for step in range(steps):
        if deaths.get(rank) == step:
            die()
        optimizer.zero_grad()
        loss(network, rank, step % 4).backward()
        optimizer.step()
    end = sum(float(loss(network, rank, step)) for step in range(4)) / 4
    return weights(network), end, optimizer.thinwire.members.lost


def test_one_after_another():
    """Five ranks become two; then rank 0 dies too, and one of two without rank 0 may not go on."""
    start = model()
    first = sum(float(loss(start, 1, step)) for step in range(4)) / 4
    results = run(train_adamw, 5, {4: 10, 2: 20, 0: 30}, 60, may_die=[0, 2, 4])
    alive = [results[1], results[3]]
    assert results[0] is results[2] is results[4] is None
    assert equal([one[0] for one in alive]) and alive[0][1] < 0.8 * first, (first, alive[0][1])
    for _, _, lost in alive:        # by the numbers that they had at the start
        assert [one["rank"] for one in lost] == [4, 2, 0], lost


def too_few(rank, nranks):
    network = model()
    optimizer = sgd(network, on_loss="shrink", timeout=20)
    try:
        for step in range(20):
            if rank == 0 and step == 5:
                die()
            loss(network, rank, step).backward()
            optimizer.step()
    except thinwire.QuorumError as error:
        return str(error)


def test_too_few_are_left():
    text = run(too_few, 2, may_die=[0])[1]
    assert "rank 0" in text and "half" in text and "allow_missing=True" in text, text


def killed_within(rank, nranks, make, delay):
    """Rank 1 is killed at some time, mostly within an exchange."""
    network = model()
    optimizer = make(network)
    for step in range(150):
        if rank == 1 and step == 50:
            threading.Timer(delay, die).start()
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
        if rank == 1:
            time.sleep(0.001 * (step > 50))     # it must not end before it is killed
    while rank == 1:
        time.sleep(1)
    return weights(network), [one["rank"] for one in optimizer.thinwire.members.lost]


def in_buckets(network):
    return wrapped(network, whole_model=False, bucket=200, on_loss="shrink", timeout=20)


def as_a_whole(network):
    return thinwire.AdamW(network, density=0.1, warmup_steps=0, on_loss="shrink", timeout=20)


def test_killed_within_a_step():
    for at, make in enumerate((in_buckets, as_a_whole) * 2):
        results = run(killed_within, 3, make, 0.01 + 0.0073 * at, may_die=[1])
        assert results[1] is None and equal([results[0][0], results[2][0]])
        assert results[0][1] == results[2][1] == [1], results[0][1]


# ---- refusals

def refusals(rank, nranks):
    for call in (thinwire.compress, thinwire.AdamW, lambda *given, **options: thinwire.SGD(
            *given, lr=0.1, **options)):
        refused(thinwire.ParamError, "DistributedDataParallel, whose process group dies with a rank. "
                "Let torchrun restart", lambda: call(DDP(model()), on_loss="shrink"))
        refused(thinwire.ParamError, "on_loss: 'grow'; accepted is 'raise', 'shrink'",
                lambda: call(DDP(model()), on_loss="grow"))
    network = DDP(model())
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    refused(thinwire.ParamError, "over all workers, whose process group dies",
            lambda: thinwire.LocalSteps(network, inner, on_loss="shrink"))
    refused(thinwire.ParamError, "on_loss: None", lambda: sgd(model(), on_loss=None))
    optimizer = sgd(model(), on_loss="shrink")
    refused(thinwire.StateError, "save state_dict() on every rank", optimizer.gather_state_dict)
    refused(thinwire.MismatchError, "on_loss: rank 1 has 'shrink'",
            lambda: sgd(model(), on_loss="shrink" if rank else "raise"))


def test_refusals():
    run(refusals, 2)


def alone(rank, nranks):
    network = model()
    optimizer = sgd(network, on_loss="shrink")
    loss(network, rank, 0).backward()
    optimizer.step()
    return optimizer.stats().get("lost_ranks", 0)


def test_one_rank():
    assert run(alone, 1) == [0]


# ---- local steps

EVERY = 5


def local_rounds(rank, nranks, options, death=None, stop=None, folder=None):
    """death, stop: (rank, inner step) at which it is killed, or stopped until the others have gone on."""
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, on_loss="shrink", **options)
    for step in range(20 * EVERY):
        if death == (rank, step):
            die()
        if stop == (rank, step):
            stopped_for(folder)
        optimizer.zero_grad()
        loss(network, rank, step % 4).backward()
        try:
            optimizer.step()
        except thinwire.ExcludedError as error:
            return {"excluded": str(error)}
    local.synchronize()
    if folder is not None and rank == 0:
        open(f"{folder}/ended", "w").close()
    end = sum(float(loss(network, rank, step)) for step in range(4)) / 4
    return {"weights": weights(network), "stats": local.stats(), "end": end,
            "lost": local.engine.members.lost}


def stopped_for(folder):
    """Stops this process until rank 0 has ended."""
    waker = os.fork()
    if waker == 0:
        deadline = time.monotonic() + 60
        while not os.path.exists(f"{folder}/ended") and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(waker, 0)


def test_killed_worker():
    for options in ({"timeout": 20}, {"timeout": 20, "delayed": True},
                    {"timeout": 20, "scheme": "dense", "wire": None, "outer_momentum": 0.5}):
        results = run(local_rounds, 4, options, (1, 8 * EVERY + 2), may_die=[1])
        alive = [one for rank, one in enumerate(results) if rank != 1]
        assert results[1] is None and equal([one["weights"] for one in alive]), options
        for one in alive:
            assert one["stats"]["rounds"] == 21 and one["stats"]["ranks"] == 3, one["stats"]
            assert [lost["rank"] for lost in one["lost"]] == [1]
            assert one["end"] < 1.0, one["end"]


def test_late_worker():
    """One that is stopped for longer than the timeout is left out, and hears it when it comes back."""
    with temporary() as folder:
        results = run(local_rounds, 4, {"timeout": 3}, None, (3, 8 * EVERY + 2), folder)
    assert equal([one["weights"] for one in results[:3]])
    assert results[0]["stats"]["ranks"] == 3 and results[0]["lost"][0]["rank"] == 3
    assert "go on without this one" in results[3]["excluded"], results[3]
    assert "longer than the timeout of 3 s" in results[3]["excluded"], results[3]


def different(rank, nranks, change):
    """Rank 1 changes something in a round: it is out, and the others go on."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, on_loss="shrink", timeout=20)
    for step in range(6 * EVERY):
        if rank == 1 and step == 3 * EVERY + 1:
            change(local)
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        try:
            optimizer.step()
        except thinwire.MismatchError as error:
            return str(error)
    return weights(network), local.stats()["ranks"]


def change_base(local):
    local.base[0][0, 0] += 1.0


def change_outer_rate(local):
    local.outer.param_groups[0]["lr"] = 0.125


def test_worker_that_differs():
    for change, text in ((change_base, "weights: "), (change_outer_rate, "outer_lr: 0.125, ")):
        results = run(different, 3, change)
        assert "this worker is out" in results[1] and text in results[1], results[1]
        assert equal([results[0][0], results[2][0]]) and results[0][1] == results[2][1] == 2


# ---- local steps without torch's process group

def address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


SECRET = b"sixteen or more bytes"


def over_tcp(rank, nranks, meet, options, plan):
    """plan: what a rank does. {"die": round}, {"stop": round}, {"join": True}, or nothing."""
    plan = plan.get(rank, {})
    network = model(seed=rank)      # all get the weights of rank 0
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    options = {"density": 0.1, "timeout": 10, **options}
    if "join" in plan:
        time.sleep(0.3)
        local = thinwire.LocalSteps(network, optimizer, EVERY, meet=meet, secret=SECRET, join=True,
                                    on_loss="shrink", **options)
    else:
        local = thinwire.LocalSteps(network, optimizer, EVERY, meet=meet, secret=SECRET, rank=rank,
                                    workers=plan.get("workers", 3), on_loss="shrink", **options)
    first, step = local.rounds, 0
    while local.rounds < 60:
        if step == 4 * EVERY + 2 and "die" in plan:
            die()
        if step == 4 * EVERY + 2 and "stop" in plan:
            waker = subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
            waker.wait()
        optimizer.zero_grad()
        loss(network, rank, step % 4).backward()
        time.sleep(0.01)
        optimizer.step()
        step += 1
    return {"weights": weights(network), "first": first, "members": local.engine.members.stats(),
            "momentum": torch.cat([one.flatten() for one in local._velocities()])
            if "outer_momentum" in options else None}


def test_killed_and_joined_over_tcp():
    results = run(over_tcp, 4, address(), {"outer_momentum": 0.5, "nesterov": True},
                  {1: {"die": 4}, 3: {"join": True}}, may_die=[1])
    alive = [one for rank, one in enumerate(results) if rank != 1]
    assert results[1] is None and equal([one["weights"] for one in alive])
    assert equal([one["momentum"] for one in alive]) and alive[0]["momentum"].any()
    assert 0 < results[3]["first"] < 60, results[3]["first"]
    assert results[0]["members"]["joined_ranks"] == 1, results[0]["members"]
    assert all(one["members"]["ranks"] == 3 for one in alive)


def test_late_worker_joins_anew():
    results = run(over_tcp, 3, address(), {"timeout": 3}, {2: {"stop": 4}})
    assert equal([one["weights"] for one in results])
    members = results[0]["members"]
    assert (members["ranks"], members["lost_ranks"], members["joined_ranks"]) == (3, 1, 1), members


def stranger(rank, nranks, meet):
    """Rank 2 knows another secret, rank 3 has an outer momentum: they are refused, the job goes on."""
    def local(**options):
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        return network, optimizer, thinwire.LocalSteps(
            network, optimizer, meet=meet, on_loss="shrink", density=0.1, **options)
    if rank == 2:
        time.sleep(0.3)
        refused(thinwire.MismatchError, "has another secret",
                lambda: local(secret=b"not these sixteen bytes", join=True, timeout=5))
        return None
    if rank == 3:
        time.sleep(0.3)
        refused(thinwire.MismatchError, "this worker is out", lambda: local(
            every=EVERY, outer_momentum=0.5, secret=SECRET, join=True, timeout=5))
        return None
    network, optimizer, steps = local(every=EVERY, secret=SECRET, rank=rank, workers=2, timeout=10)
    while steps.rounds < 40:
        optimizer.zero_grad()
        loss(network, rank, 0).backward()
        time.sleep(0.01)
        optimizer.step()
    return weights(network), steps.stats()["ranks"]


def test_strangers():
    results = run(stranger, 4, address())
    assert equal([results[0][0], results[1][0]]) and results[0][1] == results[1][1] == 2


def differently_delayed(rank, nranks, meet):
    """The group compares result first, whose default depends on delayed: the text names both."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    refused(thinwire.MismatchError, "result: rank 1 has 'mean_of_senders', rank 0 has 'mean'; give "
            "all ranks the same. Where result= is left out it depends on delayed, which is "
            f"{rank == 0} here",
            lambda: thinwire.LocalSteps(network, optimizer, meet=meet, rank=rank, workers=nranks,
                                        secret=SECRET, on_loss="shrink", delayed=rank == 0))


def test_workers_that_differ_in_delayed():
    run(differently_delayed, 2, address())


def bad_meetings(rank, nranks):
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for words, options in (("on_loss: None; with meet=", {"meet": "h:1", "workers": 2}),
                           ("workers: 0; with meet=", {"meet": "h:1", "on_loss": "shrink"}),
                           ("workers, join: they need meet=", {"join": True}),
                           ("join: not with delayed", {"meet": "h:1", "join": True, "delayed": True,
                                                       "on_loss": "shrink"}),
                           ("meet: 'nowhere'", {"meet": "nowhere", "workers": 2,
                                                "on_loss": "shrink"})):
        refused(thinwire.ParamError, words,
                lambda: thinwire.LocalSteps(network, optimizer, **options))
    refused(TypeError, "secret: str", lambda: thinwire.tcp("h:1", 0, 2, secret="text"))


def test_bad_meetings():
    run(bad_meetings, 1)


# ---- elastic restarts

def saved_by(rank, nranks, folder):
    network = DDP(Known(**SIZES))
    state = thinwire.compress(network, density=0.05)
    for step in range(5):
        network.zero_grad()
        network({name: gradient(size, rank, 50 * at + step)
                 for at, (name, size) in enumerate(SIZES.items())}).backward()
    torch.save(state.state_dict(), f"{folder}/{rank}")
    integrations.save(state, f"{folder}/files")
    return residuals(state)


def restarted(rank, nranks, folder, there, form):
    network = DDP(Known(**SIZES))
    state = thinwire.compress(network, density=0.05)
    every = [torch.load(f"{folder}/{one}") for one in there]
    if form == "list":
        def load(**options):
            state.load_state_dict(every, **options)
    elif form == "own":
        def load(**options):
            state.load_state_dict(every[rank] if rank < len(every) else [], **options)
    else:
        def load(**options):
            integrations.load(state, f"{folder}/files", **options)
    refused(thinwire.MismatchError, "pass allow_missing=True", load)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load(allow_missing=True)
    return residuals(state), state.stats(), [str(one.message) for one in told]


def test_elastic_restart():
    with temporary() as folder:
        old = run(saved_by, 4, folder)
        os.remove(f"{folder}/files/" + states._FILE.format(2, 4))
        there = [0, 1, 3]
        for nranks, form in ((2, "list"), (4, "own"), (3, "folder"), (4, "folder")):
            results = run(restarted, nranks, folder, there, form)
            for name in SIZES:
                want = sum(old[rank][name] for rank in there)
                assert torch.equal(sum(one[0][name] for one in results), want), (form, name)
                assert old[2][name].any()
            for rank, (_, stats, told) in enumerate(results):
                assert (stats["missing_states"], stats["missing_share"]) == (1, 0.25), stats
                told = [text for text in told if "is missing" in text]
                assert len(told) == (rank == 0), told
                assert not told or "rank 2 is missing" in told[0] and "1 (25%)" in told[0], told


def optimizer_restarts(rank, nranks, folder, steps):
    """A job of four, without the dead one's state; then alike."""
    network = model()
    optimizer = thinwire.AdamW(network, lr=0.01, density=0.1, warmup_steps=0, on_loss="shrink")
    paths = [f"{folder}/{one}.pt" for one in (0, 1, 3)]
    if os.path.exists(paths[0]):
        every = [torch.load(path) for path in paths]
        network.load_state_dict(every[0]["model"])
        optimizer.load_state_dict([one["optimizer"] for one in every], allow_missing=True)
    for step in range(steps):
        optimizer.zero_grad()
        loss(network, rank, step % 4).backward()
        optimizer.step()
    dist.barrier()
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()},
               f"{folder}/{rank}.pt")
    end = sum(float(loss(network, rank, step)) for step in range(4)) / 4
    return weights(network), end, optimizer.thinwire.step


def test_optimizer_restarts():
    with temporary() as folder:
        before = run(optimizer_restarts, 4, folder, 20)
        after = run(optimizer_restarts, 3, folder, 20)
    assert equal([one[0] for one in after])
    assert [one[2] for one in after] == [40] * 3
    assert sum(one[1] for one in after) / 3 < sum(one[1] for one in before) / 4


def local_restarts(rank, nranks, folder):
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, outer_momentum=0.5)
    paths = [f"{folder}/{one}.pt" for one in (0, 1, 3)]
    if os.path.exists(paths[0]):
        every = [torch.load(path) for path in paths]
        network.load_state_dict(every[0]["model"])
        refused(thinwire.MismatchError, "allow_missing=True",
                lambda: local.load_state_dict([one["local"] for one in every]))
        local.load_state_dict([one["local"] for one in every], allow_missing=True)
    kept = sum(float(one.double().sum()) for one in local.engine.residuals())
    for step in range(4 * EVERY):
        optimizer.zero_grad()
        loss(network, rank, step % 4).backward()
        optimizer.step()
    left = sum(float(one.double().sum()) for one in local.engine.residuals())
    torch.save({"model": network.state_dict(), "local": local.state_dict()}, f"{folder}/{rank}.pt")
    return weights(network), kept, left, local.rounds


def test_local_restarts():
    with temporary() as folder:
        before = run(local_restarts, 4, folder)
        after = run(local_restarts, 2, folder)
    assert equal([one[0] for one in after]) and after[0][3] == 8
    want = sum(before[rank][2] for rank in (0, 1, 3))
    assert abs(sum(one[1] for one in after) - want) < 1e-4 and abs(before[2][2]) > 1e-4


if __name__ == "__main__":
    main([one for name, one in list(globals().items()) if name.startswith("test_")])
