"""SmoothQuant for a model without a recipe: scales of the symmetry group move outliers from activations into weights.

A small transformer is trained on digits; its weights and activations are rounded to integers, one grid for each tensor,
before and after an element of its group equalised both.
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import intertwine as iw
from intertwine.symmetry import Leaf
from intertwine.symmetry.transformation import with_parts


class Block(nn.Module):
    """Attention and a gated MLP, each after an RMS norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(N, T, C)`` to tokens."""
        n, t, width = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Reader(nn.Module):
    """A transformer that reads the rows of an image."""

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, 8, 8)`` to logits."""
        return self.head(self.norm(self.blocks(self.embed(x) + self.place)).mean(1))


def trained(x: Tensor, y: Tensor, steps: int) -> Reader:
    """A reader that has seen so many batches."""
    torch.manual_seed(0)
    model = Reader()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (64,))
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval()


def activations(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Largest size of every channel that a linear layer reads, by the name of its weight."""
    found: dict[str, Tensor] = {}

    def note(name: str):
        return lambda _, inputs: found.__setitem__(name, inputs[0].flatten(0, -2).abs().amax(0))

    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    hooks = [module.register_forward_pre_hook(note(f"{name}.weight")) for name, module in linear.items()]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def smoothing(model: nn.Module, sym: iw.Symmetry, x: Tensor, alpha: float):
    """The element after which the channels of activations and weights have sizes of like spread.

    A channel whose activations are at most ``a`` and whose weights are at most ``w`` is divided by
    ``a^alpha / w^(1 - alpha)`` in the activations, for all layers that a generator of scales moves alike.
    """
    state, sizes, g = dict(model.named_parameters()), activations(model, x), sym.identity()
    for space in sym.spaces:
        readers: dict[tuple[float, ...], list[str]] = {}
        for name, layout in sym.layouts.items():
            leaf = layout.axes[-1]
            if name in sizes and isinstance(leaf, Leaf) and leaf.space == space.name and not space.parents:
                readers.setdefault(tuple(map(float, leaf.scale)), []).append(name)
        readers = {scale: names for scale, names in readers.items() if any(scale)}
        if readers:
            a = torch.stack([torch.stack([sizes[n] for n in names]).amax(0) for names in readers.values()])
            w = torch.stack(
                [torch.stack([state[n].abs().amax(0) for n in names]).amax(0) for names in readers.values()]
            )
            wanted = (alpha * a.log() - (1 - alpha) * w.log()).detach().double()
            exponents = torch.tensor(list(readers), dtype=torch.float64)
            g = with_parts(g, space.name, scales=torch.linalg.pinv(exponents) @ wanted)
    return g


def rounded(t: Tensor, bits: int) -> Tensor:
    """Numbers on a symmetric grid that fits the largest."""
    top = 2 ** (bits - 1) - 1
    step = t.abs().amax() / top
    return (t / step).round() * step


def quantised(model: nn.Module, bits: int) -> nn.Module:
    """A copy that rounds the weights and inputs of every linear layer to the nearest of ``2^bits`` numbers."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = rounded(module.weight.data, bits)
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], bits),))
    return twin


def main() -> None:
    """Train, smooth, round, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16).float(), torch.tensor(digits.target)
    model = trained(x[:1500], y[:1500], steps)
    test = x[1500:]
    sym = iw.symmetries(model, x[:4])
    smooth = sym.act(smoothing(model, sym, x[:1000], alpha=0.5), model)
    iw.testing.assert_same_function(model, smooth, test)
    print(f"accuracy {float((model(test).argmax(1) == y[1500:]).float().mean()):.1%}")
    with torch.no_grad():
        logits = model(test)
        for bits in (8, 6, 4):
            errors = [float((quantised(m, bits)(test) - logits).norm() / logits.norm()) for m in (model, smooth)]
            print(f"{bits} bits: error of the logits {errors[0]:.2%}, smoothed {errors[1]:.2%}")


if __name__ == "__main__":
    main()
