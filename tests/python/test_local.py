"""LocalSteps: rounds against a model of them, what is sent, state, refusals."""
import inspect
import itertools
import os
import pathlib
import sys
import time
from unittest import mock

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist

import thinwire
from known import Known, gradient
from ranks import equal, loss, main, model, run, weights
from test_bad import refused

EVERY = 3


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)


def adamw(network):
    return torch.optim.AdamW(network.parameters(), lr=0.01)


def train(network, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()


# ---- rounds

def alone(rank, steps, start):
    """Weights after steps of one worker from given weights."""
    network = model()
    torch.nn.utils.vector_to_parameters(start.clone(), network.parameters())
    train(network, sgd(network), rank, steps)
    return weights(network)


def alone_elsewhere(*arguments):
    """In a process of its own: torch forks no ranks after a backward pass."""
    return run(lambda _rank, _nranks: alone(*arguments), 1)[0]


def by_hand(nranks, rounds, rate, momentum, nesterov):
    """Dense rounds, all workers one after the other."""
    base, velocity = weights(model()), None
    for number in range(rounds):
        steps = range(number * EVERY, (number + 1) * EVERY)
        mean = sum(base - alone(rank, steps, base) for rank in range(nranks)) / nranks
        velocity = mean.clone() if velocity is None else momentum * velocity + mean
        update = mean + momentum * velocity if nesterov else velocity
        base = base - rate * update
    return base


def dense_rounds(rank, nranks, momentum, nesterov):
    network = model()
    optimizer = sgd(network)
    thinwire.LocalSteps(network, optimizer, EVERY, scheme="dense", wire=None, outer_lr=0.7,
                        outer_momentum=momentum, nesterov=nesterov)
    train(network, optimizer, rank, range(4 * EVERY))
    return weights(network), by_hand(nranks, 4, 0.7, momentum, nesterov)


def test_dense_rounds_are_diloco():
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
        results, wanted = zip(*run(dense_rounds, 2, momentum, nesterov))
        assert equal(results)
        assert torch.allclose(results[0], wanted[0], rtol=1e-5, atol=1e-7), (momentum, nesterov)


def sparse_rounds(rank, nranks, options):
    network = model()
    optimizer = adamw(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, outer_momentum=0.0, nesterov=False,
                                **options)
    start = float(loss(network, rank, 0))
    train(network, optimizer, rank, [step % 2 for step in range(20 * EVERY)])
    local.synchronize()
    return {"weights": weights(network), "stats": local.stats(), "start": start,
            "end": float(loss(network, rank, 0)), "text": local.summary()}


def test_sparse_rounds_end_alike():
    for options in ({}, {"scheme": "oktopk", "wire": "bf16"}, {"delayed": True}, {"host": True},
                    {"result": "mean", "decay": 1.0}):
        results = run(sparse_rounds, 4, {"density": 0.1, **options})
        assert equal([one["weights"] for one in results]), options
        assert sum(one["end"] for one in results) < sum(one["start"] for one in results), options
        stats = results[0]["stats"]
        assert stats["rounds"] == 21 and stats["inner_steps"] == 60, stats
        assert "20 rounds" not in results[0]["text"] and "21 rounds of 3" in results[0]["text"]
    bits = run(sparse_rounds, 2, {"density": 0.1})[0]["stats"]["bits_per_entry"]
    assert 6 < bits < 12, bits      # 4.8 + 2.25, and headers of a few entries


def test_default_result():
    """The mean of the senders, where the exchange tells who they are; but not delayed."""
    for options, result in (({}, "mean_of_senders"), ({"scheme": "oktopk"}, "mean"),
                            ({"exchange": "oktopk"}, "mean"), ({"delayed": True}, "mean")):
        by_default, asked = (
            run(sparse_rounds, 3, {"density": 0.1, **options, **more})[0]["weights"]
            for more in ({}, {"result": result}))
        assert torch.equal(by_default, asked), options
    other = run(sparse_rounds, 3, {"density": 0.1, "result": "mean"})[0]["weights"]
    default = run(sparse_rounds, 3, {"density": 0.1})[0]["weights"]
    assert not torch.equal(default, other)


def test_default_of_all_schemes():
    """As the library says of their exchanges. It refuses the mean of the senders with others."""
    for scheme, parts in thinwire.schemes().items():
        dense = {"wire": None, "decay": 0.0} if scheme in ("dense", "auto") else {}
        for options in ({}, {"exchange": "allgather"}, {"delayed": True}):
            gathers = options.get("exchange", parts["exchange"]) == "allgather"
            local = opened(model(), scheme=scheme, **dense, **options)
            of_senders = gathers and scheme != "auto" and not local.delayed
            assert local.state_dict()["result"] == \
                ("mean_of_senders" if of_senders else "mean"), (scheme, options)
            local.close()


def residual_decays(rank, nranks):
    """The residual after a round that sends next to nothing is decay * difference."""
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, 1, density=1e-9, wire="raw", decay=0.5,
                                outer_momentum=0.0, nesterov=False)
    start = weights(network)
    train(network, optimizer, rank, [0])
    return start, torch.cat(local.engine.residuals())


def test_residual_decays():
    for rank, (start, kept) in enumerate(run(residual_decays, 2)):
        difference = start - alone_elsewhere(rank, [0], start)
        sent = difference.abs().argmax()
        want = difference * 0.5
        want[sent] = 0
        assert torch.equal(kept, want)


def weighted(rank, nranks):
    """Rank 1 counts three times as much."""
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=1.0, wire="f32", outer_lr=1.0,
                                outer_momentum=0.0, nesterov=False)
    local.weight = 1 + 2 * rank
    train(network, optimizer, rank, range(EVERY))
    return weights(network)


def test_weights():
    results, start = run(weighted, 2), weights(model())
    ends = [alone_elsewhere(rank, range(EVERY), start) for rank in range(2)]
    assert equal(results)
    assert torch.allclose(results[0], (ends[0] + 3 * ends[1]) / 4, rtol=1e-5, atol=1e-6)


def half_precision(rank, nranks):
    """base keeps what bfloat16 weights cannot."""
    network = model().to(torch.bfloat16)
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.5)
    for step in range(4 * EVERY):
        optimizer.zero_grad()
        inputs, targets = ranks.batch(rank, step)
        torch.nn.functional.cross_entropy(network(inputs.to(torch.bfloat16)).float(),
                                          targets).backward()
        optimizer.step()
    return weights(network), torch.cat([one.flatten() for one in local.base])


def test_half_precision():
    results = run(half_precision, 2)
    assert equal([one[0] for one in results]) and equal([one[1] for one in results])
    low, base = results[0]
    assert torch.equal(low, base.to(torch.bfloat16)) and not torch.equal(low.float(), base)


# ---- several ranks in a worker

def workers_of_two(rank, nranks):
    """Ranks 0, 1 and 2, 3 are workers; 0 and 2 exchange."""
    inner = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    outer = dist.new_group([0, 2])
    network = model()
    wrapped = torch.nn.parallel.DistributedDataParallel(network, process_group=inner)
    optimizer = sgd(network)
    local = thinwire.LocalSteps(wrapped, optimizer, EVERY, density=0.2, process_group=outer,
                                inner_group=inner)
    train(wrapped, optimizer, rank, range(4 * EVERY))
    return weights(network), local.stats()


def test_workers_of_two():
    results = run(workers_of_two, 4)
    assert equal([one[0] for one in results])
    assert results[0][1]["payload_sent"] > 0 and "payload_sent" not in results[1][1]


# ---- state

def resumed(rank, nranks, delayed, host):
    """Saves within a round, goes on, and repeats that from the saved state."""
    options = {"density": 0.1, "delayed": delayed, "host": host}
    network = model()
    optimizer = adamw(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, **options)
    train(network, optimizer, rank, range(3 * EVERY + 1))
    saved = {"model": {name: one.clone() for name, one in network.state_dict().items()},
             "optimizer": optimizer.state_dict(), "local": local.state_dict()}
    first_time, second_time = torch_copy(saved), torch_copy(saved)  # optimizers keep what they load
    train(network, optimizer, rank, range(3 * EVERY + 1, 6 * EVERY))
    local.synchronize()
    want = weights(network)
    network.load_state_dict(first_time["model"])
    optimizer.load_state_dict(first_time["optimizer"])
    local.load_state_dict(first_time["local"])
    train(network, optimizer, rank, range(3 * EVERY + 1, 6 * EVERY))
    local.synchronize()
    first = weights(network)
    other = model(seed=2)
    other.load_state_dict(model().state_dict())
    again = adamw(other)
    fresh = thinwire.LocalSteps(other, again, EVERY, **options)
    other.load_state_dict(second_time["model"])
    again.load_state_dict(second_time["optimizer"])
    fresh.load_state_dict(second_time["local"])
    train(other, again, rank, range(3 * EVERY + 1, 6 * EVERY))
    fresh.synchronize()
    return want, first, weights(other)


def other_result(rank, nranks):
    """A run does not go on with another mean in silence. Earlier versions did not save which."""
    states = {}
    for result in (None, "mean"):
        local = opened(model(), density=0.1, result=result)
        states[result or "mean_of_senders"] = local.state_dict()
        local.close()
    older = {name: value for name, value in states["mean"].items() if name != "result"}
    for result in (None, "mean_of_senders"):
        local = opened(model(), density=0.1, result=result)
        for state in (states["mean"], [states["mean"]] * nranks):
            refused(thinwire.MismatchError, "result: the state was saved with 'mean', here it is "
                    "'mean_of_senders'", lambda: local.load_state_dict(state))
        if result is None:
            refused(thinwire.MismatchError, "result: the state is of an earlier version, whose "
                    "default was 'mean', here it is 'mean_of_senders'",
                    lambda: local.load_state_dict(older))
        else:
            local.load_state_dict(older)
        local.load_state_dict(states["mean_of_senders"])
        local.close()
    local = opened(model(), density=0.1, delayed=True)
    local.load_state_dict(older)
    local.close()


def test_other_result_is_refused():
    run(other_result, 2)


def refused_by_one(rank, nranks):
    """Rank 1 alone has another result, while a delayed exchange is under way."""
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, delayed=True, timeout=20)
    train(network, optimizer, rank, range(EVERY))
    good = local.state_dict()
    train(network, optimizer, rank, range(EVERY, 2 * EVERY))
    assert local.pending and not local.arrived
    begin = time.monotonic()
    if rank == 1:
        refused(thinwire.MismatchError, "result: the state was saved with 'mean_of_senders'",
                lambda: local.load_state_dict({**good, "result": "mean_of_senders"}))
    else:
        refused(thinwire.FileError, "rank 1: ", lambda: local.load_state_dict(good))
    assert time.monotonic() - begin < 10
    local.synchronize()
    return weights(network)


def test_state_that_one_worker_refuses():
    assert equal(run(refused_by_one, 2))


def torch_copy(state):
    import io
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_resume_is_exact():
    for delayed, host in itertools.product((False, True), (False, True)):
        for want, same, other in run(resumed, 2, delayed, host):
            assert torch.equal(want, same) and torch.equal(want, other), (delayed, host)


# ---- lost workers

def loses(rank, nranks, how):
    """Worker 1 dies in its second round, or does not come to its end."""
    network = model()
    optimizer = sgd(network)
    thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, timeout=2.0)
    train(network, optimizer, rank, range(2 * EVERY - 1))
    if rank == 1 and how == "dies":
        os._exit(3)
    if rank == 1:
        time.sleep(5)
        return
    for _ in range(3):
        begin = time.monotonic()
        refused((thinwire.TransportError, thinwire.TimeoutError), "rank 1",
                lambda: train(network, optimizer, rank, range(EVERY)))
        assert time.monotonic() - begin < 3.5, time.monotonic() - begin


def test_lost_worker_is_named():
    run(loses, 3, "dies", may_die=(1,))
    run(loses, 3, "stays away")


# ---- schedulers

def scheduled(network, optimizer, schedulers, steps):
    for step in range(steps):
        train(network, optimizer, 0, [step])
        for scheduler in schedulers:
            scheduler.step()


def test_schedulers():
    """Two before LocalSteps and two after it; and what close() leaves behind."""
    for before, after in ((2, 0), (0, 2), (1, 1)):
        network = model()
        optimizer, other = sgd(network), sgd(model())
        schedulers, others = ([torch.optim.lr_scheduler.StepLR(one, 2, 0.5)
                               for _ in range(before)] for one in (optimizer, other))
        own = vars(optimizer).get("step")
        takes_closure = "closure" in inspect.signature(optimizer.step).parameters   # not in torch 1
        local = thinwire.LocalSteps(network, optimizer, EVERY)
        assert ("closure" in inspect.signature(optimizer.step).parameters) == takes_closure
        schedulers += [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for _ in range(after)]
        others += [torch.optim.lr_scheduler.StepLR(other, 2, 0.5) for _ in range(after)]
        scheduled(network, optimizer, schedulers, 2 * EVERY)
        scheduled(model(), other, others, 2 * EVERY)
        assert (local.rounds, local.inner_steps) == (2, 2 * EVERY)
        assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"] < 0.1
        local.close()
        local.close()
        assert after or vars(optimizer).get("step") is own
        scheduled(network, optimizer, schedulers, 1)
        assert local.inner_steps == 2 * EVERY


def test_closed():
    """The optimizer is as it was: another exchange can have it."""
    network = model()
    optimizer = sgd(network)
    thinwire.LocalSteps(network, optimizer, EVERY).close()
    assert "step" not in vars(optimizer)
    train(network, thinwire.DistributedOptimizer(optimizer), 0, range(2))


# ---- the example

def test_options_of_the_example():
    """What the run log says is what the run does."""
    examples = pathlib.Path(__file__).resolve().parents[2] / "examples"
    with mock.patch.object(sys, "path", [str(examples), *sys.path]):
        import torch_gpt
        import torch_local_steps
    given = ["x.py", "--data", "text", "--per-rank", "--density-schedule", "cosine", "--seed", "3",
             "--density-warmup", "60"]
    with mock.patch.object(sys, "argv", given), mock.patch.object(torch_gpt, "train") as train_:
        torch_local_steps.main()
    with mock.patch.object(thinwire, "LocalSteps") as made:
        torch_local_steps.Rounds(train_.call_args[0][0], None, None)
    options = made.call_args[1]
    assert options["count"] == "per_rank" and options["warmup"] == "cosine", options
    assert options["seed"] == 3 and options["warmup_steps"] == 2, options
    for example, more in ((torch_local_steps, ["--per-rank"]),
                          (torch_local_steps, ["--density-schedule", "linear"]),
                          (torch_gpt, ["--per-rank"])):
        given = ["x.py", "--data", "text", "--scheme", "dense", *more]
        with mock.patch.object(sys, "argv", given):
            refused(SystemExit, f"{more[0]}: not with --scheme dense", example.main)


# ---- refusals

def opened(network, **options):
    return thinwire.LocalSteps(network, sgd(network), **options)


def test_refusals_of_one_process():
    network = model()
    for options, field in (({"every": 0}, "every"), ({"every": 2.5}, "every"),
                           ({"outer_lr": float("nan")}, "outer_lr"),
                           ({"outer_lr": "1"}, "outer_lr"),
                           ({"outer_momentum": 1.0}, "outer_momentum"),
                           ({"outer_momentum": 0.0, "nesterov": True}, "nesterov"),
                           ({"decay": 1.5}, "decay")):
        refused(thinwire.ParamError, field, lambda: opened(network, **options))
    for result in ("means", "", 0, False):
        refused(ValueError, f"result: {result!r}; accepted is 'mean'",
                lambda: opened(network, result=result))
    refused(thinwire.ParamError, "'0.weight' is torch.float64; accepted are torch.float32",
            lambda: opened(model().double()))
    refused(thinwire.KError, "k or density, not both", lambda: opened(network, k=50, density=0.1))
    local = opened(network)
    for weight in (0, float("nan"), "many"):
        refused(thinwire.ParamError, "weight", lambda: setattr(local, "weight", weight))
    local.close()


def test_k_in_place_of_density():
    for options, k in (({}, 2283 // 64), ({"k": 50}, 50), ({"density": 0.1}, 228)):
        network = model()
        optimizer = sgd(network)
        local = thinwire.LocalSteps(network, optimizer, EVERY, **options)
        train(network, optimizer, 0, range(EVERY))
        assert abs(local.stats()["last_k"] - k) <= 1, (options, local.stats()["last_k"])
        local.close()


def mismatch(rank, nranks):
    network = model()
    refused(thinwire.MismatchError, "every: rank 1 has 4", lambda: opened(network, every=3 + rank))
    refused(thinwire.MismatchError, "outer_lr: rank 1 has 1.5",
            lambda: opened(network, every=3, outer_lr=0.5 + rank))
    refused(thinwire.MismatchError, "delayed: rank 1 has 1",
            lambda: opened(network, every=3, delayed=rank == 1))
    refused(thinwire.MismatchError, "weights: rank 1", lambda: opened(model(seed=rank), every=3))


def test_workers_that_differ():
    run(mismatch, 2)


def trained_alone(rank, nranks):
    """What the optimizer would train and no round exchange: refused on all workers."""
    network, spare = model(), torch.nn.Parameter(torch.zeros(7, 3))
    text = "a parameter of shape (7, 3) is the optimizer's, but not the model's"
    refused(thinwire.ParamError, text, lambda: thinwire.LocalSteps(
        network, torch.optim.SGD([*network.parameters(), spare], lr=0.1)))
    network[2].weight.requires_grad_(False)
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1)
    train(network, optimizer, rank, range(EVERY + 1))
    network[2].weight.requires_grad_(True)
    refused(thinwire.ParamError, "'2.weight' did not require a gradient when LocalSteps was made",
            lambda: train(network, optimizer, rank, [EVERY + 1]))
    network[2].weight.requires_grad_(False)
    optimizer.add_param_group({"params": [spare]})
    refused(thinwire.ParamError, text, lambda: train(network, optimizer, rank, [EVERY + 1]))
    spare.requires_grad_(False)
    local.synchronize()
    return weights(network)


def test_parameters_that_no_round_exchanges():
    assert equal(run(trained_alone, 2))


def changed(rank, nranks):
    """Somebody loads other weights after a round: on all ranks, or into the base of one."""
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1)
    train(network, optimizer, rank, range(EVERY))
    before = {name: one.clone() for name, one in network.state_dict().items()}
    with torch.no_grad():
        network[2].weight[0, 0] += 1
    refused(thinwire.StateError, "'2.weight'", lambda: train(network, optimizer, rank, [EVERY]))
    network.load_state_dict(before)
    train(network, optimizer, rank, range(EVERY, 2 * EVERY))
    local.base[0][0, 0] += rank
    refused(thinwire.MismatchError, "weights: rank 1",
            lambda: train(network, optimizer, rank, range(2 * EVERY, 3 * EVERY)))


def test_changed_weights():
    run(changed, 2)


def other_outer_rate(rank, nranks, field, value, delayed):
    """A scheduler of one worker changes the outer step after the first round."""
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1, outer_momentum=0.5,
                                delayed=delayed)
    train(network, optimizer, rank, range(EVERY))
    group, before = local.outer.param_groups[0], torch.cat([one.flatten() for one in local.base])
    usual = group[field]
    group[field] = value if rank == 1 else usual
    refused(thinwire.MismatchError, f"outer_{field}: rank 1 has {value}, rank 0 has {usual:g}; ",
            lambda: train(network, optimizer, rank, range(EVERY, 2 * EVERY)))
    assert torch.equal(before, torch.cat([one.flatten() for one in local.base]))
    group[field] = usual
    local.synchronize()
    return weights(network)


def test_other_outer_rates():
    for delayed in (False, True):
        for field, value in (("lr", 0.25), ("momentum", 0.75)):
            assert equal(run(other_outer_rate, 2, field, value, delayed))


class Skipping(torch.optim.AdamW):
    def step(self, closure=None):
        """Skips the second of three."""
        self.calls = getattr(self, "calls", 0) + 1
        return None if self.calls % 3 == 2 and self.skips else super().step(closure)


def skipping(rank, nranks, both):
    network = model()
    optimizer = Skipping(network.parameters(), lr=0.01)
    optimizer.skips = both or rank == 1
    thinwire.LocalSteps(network, optimizer, EVERY, density=0.1)
    kind, text = (thinwire.StateError, "Skipping has made 2 steps in 3 calls") if both else \
        (thinwire.MismatchError, "steps that the optimizer has made of them: rank 1 has 2")
    refused(kind, text, lambda: train(network, optimizer, rank, range(EVERY)))


def test_skipped_steps():
    run(skipping, 2, True)
    run(skipping, 2, False)


def sparsely_used(rank, nranks):
    """The first parameters have no gradient in some steps, and others in other rounds."""
    network = Known(a=20, b=30, c=10)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.5)
    for step, names in enumerate(("bc", "abc", "bc") + ("c",) * EVERY + ("a",) * EVERY):
        optimizer.zero_grad(set_to_none=True)
        network({name: gradient(getattr(network, name).numel(), rank, step)
                 for name in names}).backward()
        optimizer.step()
        for state in list(optimizer.state.values())[:1]:    # as some optimizers and states have it
            state["step"] = torch.as_tensor(state["step"]).reshape(1)
    return local.rounds


def test_parameters_without_gradients():
    assert run(sparsely_used, 2) == [3, 3]


def bad_numbers(rank, nranks):
    network = model()
    optimizer = sgd(network)
    local = thinwire.LocalSteps(network, optimizer, EVERY, density=0.1)
    train(network, optimizer, rank, range(EVERY + 2))
    if rank == 1:
        with torch.no_grad():
            network[0].bias[3] = float("nan")
    refused(thinwire.NumberError, "rank 1, parameter '0.",
            lambda: train(network, optimizer, rank, [EVERY + 2]))
    return local.rounds


def test_bad_numbers():
    assert run(bad_numbers, 2) == [1, 1]


if __name__ == "__main__":
    main([test_dense_rounds_are_diloco, test_sparse_rounds_end_alike, test_default_result,
          test_default_of_all_schemes, test_residual_decays,
          test_weights, test_half_precision, test_workers_of_two, test_resume_is_exact,
          test_other_result_is_refused, test_state_that_one_worker_refuses,
          test_lost_worker_is_named, test_options_of_the_example,
          test_refusals_of_one_process, test_workers_that_differ,
          test_parameters_that_no_round_exchanges, test_changed_weights,
          test_other_outer_rates, test_skipped_steps,
          test_parameters_without_gradients, test_bad_numbers,
          # Debian 13's torch forks no ranks after a backward pass:
          test_schedulers, test_closed, test_k_in_place_of_density])
