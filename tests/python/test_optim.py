"""thinwire.AdamW and thinwire.SGD, against torch's and against their promises."""
import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from ranks import equal, loss, main, model, run, weights

STEPS = 12
FULL = {"density": 1.0, "wire": "raw"}      # sends all, and rounds nothing


def train(network, optimizer, rank=0, steps=STEPS, scheduler=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss(network, rank, step).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return weights(network)


def close(results, wanted):
    """All ranks have the same bits, which are those wanted up to rounding."""
    assert equal(results)
    assert torch.allclose(results[0], wanted, rtol=1e-4, atol=1e-6), \
        (results[0] - wanted).abs().max()
    assert (wanted - weights(model())).abs().max() > 0.01


def split(network):
    """Groups as thinwire makes them of a module, for torch."""
    parameters = list(network.parameters())
    return [{"params": [one for one in parameters if one.dim() > 1]},
            {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0}]


# ---- AdamW

def torch_adamw(**options):
    network = model()
    return train(network, torch.optim.AdamW(split(network), lr=0.01, betas=(0.9, 0.99), **options))


def full_density(rank, nranks):
    """All ranks have the same gradients: the mean update is that of one rank."""
    results = []
    for whole_model in (False, True):
        network, wrapped = model(), DDP(model(), bucket_cap_mb=0.001)
        for one in (network, wrapped):
            optimizer = thinwire.AdamW(one, lr=0.01, whole_model=whole_model, weight_decay=0.1,
                                       **FULL)
            results.append(train(one, optimizer))
            assert optimizer.stats()["last"]["density"] == 1.0
    return results


def test_full_density_is_torchs_adamw():
    wanted = torch_adamw(weight_decay=0.1)
    for nranks in (1, 3):
        for results in zip(*run(full_density, nranks)):
            close(results, wanted)


if __name__ == "__main__":
    main([test_full_density_is_torchs_adamw])
