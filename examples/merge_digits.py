"""Train two small networks on digits, merge them into one, and look at the path between them.

python examples/merge_digits.py
"""

import torch
from torch import nn

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.lab import data


def network(width: int = 64) -> nn.Module:
    """A two-layer ReLU network."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def train(seed: int, batches: data.Batches, epochs: int = 10) -> nn.Module:
    """A short training run."""
    torch.manual_seed(seed)
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for x, y in batches:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model.eval()


def main() -> None:
    """Print accuracies, the alignment and the barrier."""
    digits = data.load("digits")
    train_batches, test = digits.loader("train", batch_size=64), digits.loader("test")
    a, b = (train(seed, train_batches) for seed in (0, 1))
    alignment = iw.align(a, b, torch.zeros(2, 1, 8, 8))
    print(alignment, "\n")
    networks = {
        "a": a,
        "b": b,
        "mean of both": iw.merge(a, b, None, repair=False),
        "merged": iw.merge(a, b, alignment, repair=False),
        "merged and repaired": iw.merge(a, b, alignment, loader=train_batches),
    }
    for name, model in networks.items():
        print(f"{name:20} {evaluate(model, test).accuracy:.1%}")
    print()
    print(iw.barrier(a, b, test, points=11, alignment=alignment))


if __name__ == "__main__":
    main()
