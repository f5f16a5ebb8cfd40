"""Compare two small networks on digits, layer by layer, and find a relabelled copy among strangers.

python examples/compare.py
"""

import torch
from torch import nn

import intertwine as iw
from intertwine.lab import data


def network(seed: int, width: int = 32) -> nn.Module:
    """A two-layer ReLU network."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 10)
    )


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int = 200) -> nn.Module:
    """A short training run."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model


def relabelled(model: nn.Module) -> nn.Module:
    """The same function with its first hidden units in another order and at other scales."""
    copy = network(0)
    copy.load_state_dict(model.state_dict())
    first, second = copy[1], copy[3]
    order, scale = torch.randperm(len(first.bias)), torch.rand(len(first.bias)) + 0.5
    with torch.no_grad():
        first.weight.copy_(first.weight[order] * scale[:, None])
        first.bias.copy_(first.bias[order] * scale)
        second.weight.copy_(second.weight[:, order] / scale)
    return copy


def main() -> None:
    """Print both comparisons."""
    digits = data.load("digits")
    images, labels = digits.train.inputs.float(), digits.train.labels
    a, b = (train(network(seed), images, labels) for seed in (0, 1))
    batches = digits.test.inputs.float().split(100)
    print(iw.compare(a, b, batches))
    print("\n--- and with a relabelled copy of itself ---\n")
    print(iw.compare(a, relabelled(a), batches))


if __name__ == "__main__":
    main()
