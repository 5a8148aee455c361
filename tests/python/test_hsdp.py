"""HSDP: fully_shard() over 2 replicas of 2 shards. Sums inside a shard group stay dense, those
between replicas are sparse. Without replicas compress() refuses."""
import shutil
import sys
import tempfile

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
import torch.distributed as dist

import thinwire
from thinwire import integrations
from ranks import loss, main, model, run
from test_bad import refused

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    FSDPModule.set_all_reduce_hook
except (ImportError, AttributeError):
    print("SKIP: fully_shard() of this torch is missing, or has no all-reduce hook")
    sys.exit(77)

SHARDS = 2
# What fully_shard() calls, by its name since torch 2.15 or before.
SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") \
    else "reduce_scatter_tensor"
GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


def mesh_of(shards=SHARDS):
    return init_device_mesh("cpu", (dist.get_world_size() // shards, shards),
                            mesh_dim_names=("replicate", "shard"))


def sharded(width=40, **options):
    mesh, network = mesh_of(), model(width=width)
    for layer in network:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(network, mesh=mesh, **options)


def train(network, rank, steps, first=0, lr=0.1, batches=100):
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        now = loss(network, rank, step % batches)
        now.backward()
        optimizer.step()
        losses.append(now.item())
    return losses


def weights(network):
    return torch.cat([one.full_tensor().detach().flatten() for one in network.parameters()])


def own(network):
    return torch.cat([one.to_local().detach().flatten() for one in network.parameters()])


def dense_and_sparse(rank, nranks):
    plain, full = sharded(), sharded()
    state = thinwire.compress(full, density=1.0)
    train(plain, rank, 20)
    train(full, rank, 20)
    return weights(plain), weights(full), state.stats(), own(full)


def test_full_density_is_dense():
    """The same weights up to the order of summation. A shard's bytes and residuals are those of
    half of the model."""
    results = run(dense_and_sparse, 4)
    for plain, full, stats, _ in results:
        assert torch.allclose(plain, full, rtol=1e-5, atol=1e-6)
        assert torch.equal(full, results[0][1])
        assert stats["steps"] == 20
        assert abs(stats["elements"] - plain.numel() / SHARDS) < plain.numel() / 20
    assert torch.equal(results[0][3], results[2][3]) and torch.equal(results[1][3], results[3][3])


class Counted:
    """Counts the bytes that a function of torch.distributed is given, while it is in its place."""

    def __init__(self, name):
        self.name, self.function, self.bytes = name, getattr(dist, name), 0

    def __enter__(self):
        setattr(dist, self.name, self)
        return self

    def __exit__(self, *_):
        setattr(dist, self.name, self.function)

    def __call__(self, *tensors, **options):
        every = [*tensors, *options.values()]
        self.bytes += sum(one.nbytes for one in every if isinstance(one, torch.Tensor))
        return self.function(*tensors, **options)


def counted(rank, nranks):
    results = []
    for density in (None, 0.01):
        network = sharded(width=200)
        if density is not None:
            thinwire.compress(network, density=density)
        with Counted(SCATTER) as scatter, Counted(GATHER) as gather, Counted("all_reduce") as reduce:
            train(network, rank, 5)
        results.append((scatter.bytes, gather.bytes, reduce.bytes))
    return results


def test_bytes_inside_a_shard_group_stay():
    """Sums inside a shard group are torch's, as before; those between replicas are not."""
    for dense, compressed in run(counted, 4):
        print(f"inside {dense[:2]} and {compressed[:2]} bytes, all_reduce {dense[2]} and "
              f"{compressed[2]}")
        assert dense[:2] == compressed[:2] and dense[0] > 0 and dense[1] > 0
        assert 1000 * compressed[2] < dense[2]      # a number a step says that all shards agree


def sparse(rank, nranks):
    network = sharded(width=200)
    state = thinwire.compress(network, density=0.01)
    losses = train(network, rank, 200, lr=0.5, batches=2)
    return losses, own(network), state.stats(), repr(state), state.residual_norm()


def test_low_density_trains():
    results = run(sparse, 4)
    for rank, (losses, mine, stats, text, norm) in enumerate(results):
        assert sum(losses[-2:]) < 0.5 * sum(losses[:2]), losses
        assert 0 < stats["payload_sent"] < 0.1 * stats["steps"] * stats["dense_bytes"], stats
        assert f"shard {rank % 2} of 2" in text and norm > 0
        assert torch.equal(mine, results[(rank + 2) % 4][1])


def resumed(rank, nranks):
    whole, network = sharded(), sharded()
    state = thinwire.compress(whole, density=0.05)
    train(whole, rank, 10)
    then, gathered = state.state_dict(), state.gather_state_dict()
    before = {name: value.detach().clone() for name, value in whole.state_dict().items()}
    train(whole, rank, 10, first=10)
    state = thinwire.compress(network, density=0.05)
    for given in (then, gathered):
        network.load_state_dict(before)
        state.load_state_dict(given)
        train(network, rank, 10, first=10)
        assert torch.equal(own(network), own(whole))
    refused(thinwire.ParamError, f"expected a state of shard {rank % 2} of 2",
            lambda: state.load_state_dict({"shard 0 of 4": {}}))


def test_resumed_is_bitwise_the_same():
    run(resumed, 4)


def distributed_checkpoint(rank, nranks, folder):
    import torch.distributed.checkpoint as dcp
    network = sharded()
    state = thinwire.compress(network, density=0.05)
    train(network, rank, 10)
    before, norm = state.state_dict(), state.residual_norm()
    dcp.save({"thinwire": state}, checkpoint_id=folder)
    integrations.save(state, folder)
    for load in (lambda: dcp.load({"thinwire": state}, checkpoint_id=folder),
                 lambda: integrations.load(state, folder)):
        train(network, rank, 3)
        dist.barrier()      # all files are there
        load()
        for name, one in state.state_dict().items():
            assert torch.equal(one["state"], before[name]["state"])
        assert state.residual_norm() == norm > 0


def test_checkpoints_of_all_shards():
    folder = tempfile.mkdtemp()
    run(distributed_checkpoint, 4, folder)
    shutil.rmtree(folder)


def nan(rank, nranks):
    """Rank 2 brings NaN, in all layers, then in the rows of the last that are shard 1's. All ranks
    raise, and all can go on."""
    network = sharded()
    state = thinwire.compress(network, density=0.05)
    train(network, rank, 2)
    factor = float("nan") if rank == 2 else 1.0
    refused(thinwire.NumberError, "'4'", lambda: (factor * loss(network, rank, 2)).backward())
    hook = network[4].register_forward_pre_hook(lambda _, inputs: inputs[0].detach())
    outputs = network(torch.ones(8, 12))
    factors = torch.tensor([1.0, 1.0, factor])
    refused(thinwire.NumberError, "another shard" if rank % 2 == 0 else "'4'",
            lambda: (outputs * factors).sum().backward())
    hook.remove()
    train(network, rank, 2)
    return state.stats()["steps"], own(network)


def test_nan():
    for steps, weights_of_rank in run(nan, 4):
        assert steps == 4 and weights_of_rank.isfinite().all()


def mixed_precision(rank, nranks):
    """Gradients are reduced in bfloat16, by either field of the policy, or in float32. At density 1
    weights are those of dense HSDP up to rounding."""
    found = []
    for policy in ({"param_dtype": torch.bfloat16},
                   {"reduce_dtype": torch.bfloat16},
                   {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}):
        plain, full = (sharded(mp_policy=MixedPrecisionPolicy(**policy)) for _ in range(2))
        state, before = thinwire.compress(full, density=1.0), own(full)
        train(plain, rank, 10, lr=0.5)
        train(full, rank, 10, lr=0.5)
        assert torch.allclose(own(plain), own(full), atol=0.01), policy
        moved = (own(full) - before).abs().max()
        assert moved > 0.02 and state.stats()["steps"] == 10, (moved, state.stats())
        found.append(own(full))
    return found


def test_mixed_precision():
    results = run(mixed_precision, 4)
    for first, second in ((0, 2), (1, 3)):      # replicas of a shard
        assert all(map(torch.equal, results[first], results[second]))


def refusals(rank, nranks):
    network = model()
    fully_shard(network, mesh=init_device_mesh("cpu", (nranks,)))
    refused(thinwire.ParamError, "without replicas there is nothing to exchange",
            lambda: thinwire.compress(network))
    refused(thinwire.ParamError, "is sharded (FSDP, DTensor)", lambda: thinwire.AdamW(network))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    refused(thinwire.ParamError, "is sharded (FSDP, DTensor)",
            lambda: thinwire.DistributedOptimizer(optimizer, network.named_parameters()))
    refused(thinwire.ParamError, "is sharded (FSDP, DTensor)",
            lambda: thinwire.LocalSteps(network, optimizer))
    refused(thinwire.ParamError, "is sharded (FSDP, DTensor)",
            lambda: thinwire.broadcast_parameters(network))
    from torch.distributed.fsdp import FullyShardedDataParallel
    for original in (False, True):
        old = FullyShardedDataParallel(model(), device_id=torch.device("cpu"),
                                       use_orig_params=original)
        refused(thinwire.ParamError, "FSDP1", lambda: thinwire.compress(old))
        for call in (lambda: thinwire.AdamW(old), lambda: thinwire.SGD(old.parameters(), lr=0.1),
                     lambda: thinwire.LocalSteps(old, torch.optim.SGD(old.parameters(), lr=0.1))):
            refused(thinwire.ParamError, "is sharded (FSDP, DTensor)", call)


def refusals_of_hsdp(rank, nranks):
    network = sharded()
    refused(thinwire.ParamError, "whole_model",
            lambda: thinwire.compress(network, whole_model=True))
    several = model()
    fully_shard(several[0], mesh=mesh_of(shards=1))
    for layer in several[1:]:
        fully_shard(layer, mesh=mesh_of())
    refused(thinwire.ParamError, "module '2' is sharded over another mesh than module '0'",
            lambda: thinwire.compress(several))
    thinwire.compress(network, density=0.05)
    refused(thinwire.StateError, "hook already", lambda: thinwire.compress(network))
    network.set_requires_all_reduce(False)
    refused(thinwire.StateError, "set_requires_gradient_sync", lambda: train(network, rank, 1))
    network = sharded()
    network[4].set_gradient_divide_factor(2.0)
    thinwire.compress(network, density=0.05)
    refused(thinwire.StateError, "pass result='sum'", lambda: train(network, rank, 1))


def test_refusals():
    run(refusals, 2)
    run(refusals_of_hsdp, 4)


if __name__ == "__main__":
    main([test_full_density_is_dense, test_bytes_inside_a_shard_group_stay,
          test_low_density_trains, test_resumed_is_bitwise_the_same, test_checkpoints_of_all_shards,
          test_nan, test_mixed_precision, test_refusals])
