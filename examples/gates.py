"""Take a digits network apart into gates and weights.

Train a small network, freeze its gates, train fresh weights behind them; compare with gates of an untrained network.

Run: python examples/gates.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import intertwine as iw
from intertwine.lab import data


def train(network, x, y, steps=150):
    """A few full-batch steps of Adam."""
    optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(network(x), y).backward()
        optimiser.step()
    return network.eval()


def main():
    """Print test accuracies and a few kernels."""
    torch.manual_seed(0)
    digits = data.load("digits")
    (x, y), (x_test, y_test) = (next(iter(digits.loader(part, batch_size=10_000))) for part in ("train", "test"))
    x, x_test = x.flatten(1), x_test.flatten(1)
    layers = [nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    model = train(nn.Sequential(*layers), x, y)
    networks = {
        "network itself": model,
        "its gates, fresh weights": train(iw.gates.dgn(model, regime="fixed_learnt"), x, y),
        "random gates, fresh weights": train(iw.gates.dgn(model, regime="fixed_random", seed=1), x, y),
        "DLGN(x, 1): linear gates": train(iw.gates.dlgn(model, input="ones"), x, y),
    }
    for name, network in networks.items():
        with torch.no_grad():
            accuracy = (network(x_test).argmax(1) == y_test).float().mean()
        print(f"{name:28s} test accuracy {accuracy:.1%}")

    log, _ = iw.gates.neural_path_kernel(model, x_test[:200], input="ones", log=True)
    same = y_test[:200, None] == y_test[None, :200]
    off_diagonal = ~torch.eye(200, dtype=torch.bool)
    print(
        f"log overlap of active sub-networks: same digit {log[same & off_diagonal].mean():.2f}, "
        f"other digits {log[~same].mean():.2f}"
    )


if __name__ == "__main__":
    main()
