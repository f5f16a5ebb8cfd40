"""Small networks of four kinds, trained from thousands of seeds at once, for statistics over independent trainings.

Digits (scikit-learn's), CIFAR-10 shrunk to 8x8 and characters of a text are the tasks. All networks of a kind take the
same number of steps of Adam; each draws its own weights and batches.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

__all__ = ["KINDS", "Kind", "seeds", "trained"]

DATA = Path("data")  # cifar10/train.parquet and text/tinyshakespeare.txt lie here; --data says where else
_AT_ONCE = 128  # networks in one stack
LENGTH = 32  # characters of a text


class Residual(nn.Module):
    """Two residual blocks with batch norm."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        h = nn.functional.max_pool2d(self.norm(self.stem(x)).relu(), 2)
        for k in (0, 2):
            y = self.norms[k](self.convs[k](h)).relu()
            h = (h + self.norms[k + 1](self.convs[k + 1](y))).relu()
        return self.head(h.mean((-2, -1)))


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind an RMS norm."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after the block."""
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        found = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.o(found.transpose(-3, -2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, vocabulary: int = 65, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList(Block(width, heads, 2 * width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character at every place."""
        h = self.embed(x) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def mlp() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Three convolutions with batch norm."""
    widths, layers = (1, 8, 16, 16), [nn.Unflatten(1, (1, 8, 8))]
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, 1 + (before > 1), 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images of 8x8 and their labels."""
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(x) for x in load_digits(return_X_y=True))
    return (images / 16).float(), labels


@cache
def cifar() -> tuple[Tensor, Tensor]:
    """Some images of CIFAR-10, shrunk to 8x8, and their labels."""
    import io

    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    rows = next(pq.ParquetFile(DATA / "cifar10" / "test.parquet").iter_batches(5000)).to_pydict()
    opened = (Image.open(io.BytesIO(image["bytes"])).convert("RGB") for image in rows["img"])
    images = torch.tensor(np.stack([np.asarray(image) for image in opened])).permute(0, 3, 1, 2) / 255.0
    return (nn.functional.avg_pool2d(images, 4) - 0.47) / 0.25, torch.tensor(rows["label"])


@cache
def text() -> tuple[Tensor, Tensor]:
    """Pieces of a text and the characters that follow, the first nine tenths."""
    raw = (DATA / "text" / "tinyshakespeare.txt").read_text()
    table = {c: k for k, c in enumerate(sorted(set(raw)))}
    codes = torch.tensor([table[c] for c in raw])[: 9 * len(raw) // 10]
    pieces = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    return pieces[:, :-1], pieces[:, 1:]


@dataclass(frozen=True)
class Kind:
    """A kind of networks and how they are trained.

    Attributes:
        make: Builds one with weights of its own.
        data: Inputs and labels.
        steps: Steps of Adam from scratch; fine-tuning takes a tenth of them.
        batch: Examples of a step.
        rate: Of Adam.
    """

    make: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    steps: int
    batch: int
    rate: float = 3e-3

    @property
    def example(self) -> Tensor:
        """Inputs to find symmetries with."""
        return self.data()[0][:4]


KINDS = {
    "MLP on digits": Kind(mlp, digits, 200, 64),
    "CNN with batch norm on digits": Kind(cnn, digits, 100, 32),
    "residual network on CIFAR-10": Kind(Residual, cifar, 100, 16),
    "transformer on text": Kind(Transformer, text, 100, 4, 1e-2),
}


def trained(
    kind: Kind, models: Sequence[nn.Module], seed: int, steps: int, rate: float = 1.0, teacher: nn.Module | None = None
) -> list[nn.Module]:
    """Copies of networks after some more steps, each on batches of its own, all at once.

    Args:
        kind: Their kind.
        models: The networks.
        seed: Of the batches.
        steps: Number of steps.
        rate: Times that of the kind.
        teacher: A network whose probabilities stand for the labels.
    """
    inputs, labels = kind.data()
    g = torch.Generator().manual_seed(seed)
    base = copy.deepcopy(models[0]).train().to("meta")
    parameters, buffers = stack_module_state([*models])
    parameters = {n: p.detach().clone() for n, p in parameters.items()}
    buffers = {n: p.detach().clone() for n, p in buffers.items()}

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(base, (p, b), (x,))
        if teacher is not None:
            return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten(0, -2))
        return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    step = vmap(grad(loss))
    optimizer = torch.optim.Adam(parameters.values(), lr=rate * kind.rate, foreach=True)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (len(models), kind.batch), generator=g)
        x = inputs[rows]
        with torch.no_grad():
            y = labels[rows] if teacher is None else teacher(x.flatten(0, 1)).softmax(-1).unflatten(0, rows.shape)
        for name, gradient in step(parameters, buffers, x, y).items():
            parameters[name].grad = gradient
        optimizer.step()
    made = [copy.deepcopy(model) for model in models]
    for k, model in enumerate(made):
        model.load_state_dict({n: t[k] for n, t in (*parameters.items(), *buffers.items())})
        model.eval()
    return made


def seeds(name: str, count: int, cache: Path) -> list[nn.Module]:
    """Networks of one kind from seeds 0, 1, ..., trained where the cache does not hold them."""
    kind, found = KINDS[name], []
    cache.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, _AT_ONCE):
        models = []
        for seed in range(first, first + _AT_ONCE):
            torch.manual_seed(seed)
            models.append(kind.make())
        file = cache / f"{name.replace(' ', '-')}-{first}.pt"
        if file.is_file():
            for model, state in zip(models, torch.load(file, weights_only=True)):
                model.load_state_dict(state)
        else:
            models = trained(kind, models, first, kind.steps)
            torch.save([model.state_dict() for model in models], file)
        found += [model.eval() for model in models]
    return found[:count]
