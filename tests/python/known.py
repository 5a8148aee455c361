"""A model with known gradients, and accounts of where each gradient went.

The loss is the sum of weight x coefficient, so gradients are the coefficients: small integers,
whose sums are exact. With SGD at rate 1 the weights are minus the sum of all applied means:

    ranks x (-weights) + sum of all residuals = sum of all gradients, bit for bit
"""
import torch


class Known(torch.nn.Module):
    """Weights of zero, by name: Known(a=100, b=30)."""

    def __init__(self, dtype=torch.float32, **sizes):
        super().__init__()
        for name, size in sizes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(size, dtype=dtype)))

    def forward(self, given):
        """given: {name: coefficients}. Parameters without coefficients are not used."""
        return sum((getattr(self, name) * value).sum() for name, value in given.items())


def gradient(size, rank, step, dtype=torch.float32):
    """Integers from -8 to 8 without 0: ties and cancellations happen."""
    random = torch.Generator().manual_seed(97 * step + rank)
    values = torch.randint(1, 9, (size,), generator=random)
    signs = 2 * torch.randint(0, 2, (size,), generator=random) - 1
    return (values * signs).to(dtype)


def residuals(state):
    """{name: residual} of this rank."""
    engine = getattr(state, "engine", state)
    return {name: part.clone() for name, part in zip(engine.names, engine.residuals())}


def weights(network):
    network = getattr(network, "module", network)
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


class Account:
    """One rank's sum of gradients, and at the end its weights and residuals."""

    def __init__(self):
        self.given = {}

    def give(self, given):
        for name, value in given.items():
            self.given[name] = self.given.get(name, 0) + value
        return given

    def close(self, network, state):
        return {"given": self.given, "weights": weights(network), "residuals": residuals(state)}


def balanced(accounts):
    """All ranks have the same weights, and nothing is lost."""
    for name, weight in accounts[0]["weights"].items():
        assert all(torch.equal(weight, one["weights"][name]) for one in accounts), name
        given = sum(one["given"].get(name, torch.zeros_like(weight)) for one in accounts)
        kept = sum(one["residuals"][name] for one in accounts)
        assert torch.equal(-weight * len(accounts) + kept, given), f"{name} is not conserved"
        assert weight.any(), f"{name} was never applied"
    assert any(one["residuals"][name].any() for one in accounts for name in one["residuals"])
