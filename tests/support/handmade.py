"""Models with their symmetry written down by hand, so that the action is tested without the engine that finds it."""

from fractions import Fraction

import torch
from made import Made
from torch import Tensor, nn
from torch.nn import functional as F

from intertwine.groups import (
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    Representation,
    Semidirect,
    SignedPermutation,
)
from intertwine.symmetry.spaces import BatchNormTensors, Fixed, Layout, Leaf, Part, Product, Space, Sum
from intertwine.symmetry.symmetry import Symmetry

ONE = Fraction(1)


def leaf(space: str, size: int, *scale: int, sign: tuple[int, ...] = (), variance: int = 0) -> Leaf:
    return Leaf(space, size, scale=tuple(Fraction(e) for e in scale), sign=sign, variance=variance)


def fixed(size: int) -> Fixed:
    return Fixed(size, "input or output")


def tensor(*axes) -> Layout:
    return Layout(tuple(axes))


def mlp():
    """ReLU, two hidden layers: positive monomial at both."""
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    layouts = {
        "0.weight": tensor(leaf("a", 6, 1), fixed(3)),
        "0.bias": tensor(leaf("a", 6, 1)),
        "2.weight": tensor(leaf("b", 5, 1), leaf("a", 6, -1)),
        "2.bias": tensor(leaf("b", 5, 1)),
        "4.weight": tensor(fixed(2), leaf("b", 5, -1)),
        "4.bias": tensor(fixed(2)),
    }
    return (
        model,
        Symmetry((Space("a", PositiveMonomial(6)), Space("b", PositiveMonomial(5))), layouts),
        torch.randn(7, 3),
    )


def conv_bn():
    """Convolution, batch norm, ReLU, pooling: the scale before and after the norm, a sign before it."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(24, 2),
    )  # fmt: skip
    c, stats = ("c", 6), (1, 0)
    layouts = {
        "0.weight": tensor(leaf(*c, *stats, sign=(1,)), fixed(3), fixed(3), fixed(3)),
        "1.running_mean": tensor(leaf(*c, *stats, sign=(1,))),
        "1.running_var": tensor(leaf(*c, 2, 0, sign=(0,))),
        "1.weight": tensor(leaf(*c, 0, 1, sign=(1,))),
        "1.bias": tensor(leaf(*c, 0, 1, sign=(0,))),
        "5.weight": tensor(fixed(2), Product((leaf(*c, 0, -1, sign=(0,)), fixed(4)))),
        "5.bias": tensor(fixed(2)),
    }
    norm = BatchNormTensors("1.running_mean", "1.running_var", "1.weight", "1.bias", 1e-5)
    sym = Symmetry((Space("c", Monomial(6, scales=2)),), layouts, batch_norms=(norm,))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 1.5)
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    return model.eval(), sym, torch.randn(4, 3, 6, 6)


def grouped():
    """Grouped convolutions with a pointwise product in between: units inside groups, a wreath product."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )  # fmt: skip
    outer, inner, out = leaf("g", 2), leaf("i", 3, 1), leaf("o", 3, 1)
    layouts = {
        "0.weight": tensor(Product((outer, inner)), fixed(3), fixed(1), fixed(1)),
        "0.bias": tensor(Product((outer, inner))),
        "2.weight": tensor(Product((outer, out)), leaf("i", 3, -1), fixed(3), fixed(3)),
        "2.bias": tensor(Product((outer, out))),
        "4.weight": tensor(fixed(2), Product((outer, leaf("o", 3, -1))), fixed(1), fixed(1)),
        "4.bias": tensor(fixed(2)),
    }
    spaces = (
        Space("i", PositiveMonomial(3), ("g",)),
        Space("g", Permutation(2)),
        Space("o", PositiveMonomial(3), ("g",)),
    )
    return model, Symmetry(spaces, layouts), torch.randn(4, 3, 5, 5)


def joined_branches():
    """Two branches concatenated around a passed-through input, and one hidden space whose units are not adjacent."""

    def run(m, x):
        h = F.relu(m.packed(x))
        return m.read(torch.cat([h, x], -1))

    # of packed, rows 0:2 and 6:8 are branch a, rows 2:6 branch b
    return Made(run, packed=nn.Linear(3, 8), read=nn.Linear(11, 2))


def branches():
    part_a, part_b = ((0, 2), (6, 8)), ((2, 6),)
    wrote = Sum((Part(part_a, leaf("a", 4, 1)), Part(part_b, leaf("b", 4, 1))))
    read = Sum((Part(part_a, leaf("a", 4, -1)), Part(part_b, leaf("b", 4, -1)), Part(((8, 11),), fixed(3))))
    layouts = {
        "packed.weight": tensor(wrote, fixed(3)),
        "packed.bias": tensor(wrote),
        "read.weight": tensor(fixed(2), read),
        "read.bias": tensor(fixed(2)),
    }
    return (
        joined_branches(),
        Symmetry((Space("a", PositiveMonomial(4)), Space("b", PositiveMonomial(4))), layouts),
        torch.randn(7, 3),
    )


class Heads(nn.Module):
    """Attention written by hand with two heads of dimension three."""

    def __init__(self, width: int = 4, heads: int = 2, size: int = 3) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.v = (nn.Linear(width, heads * size) for _ in range(3))
        self.o = nn.Linear(heads * size, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, self.size)).transpose(-3, -2) for f in (self.q, self.k, self.v))
        mixed = F.softmax(q @ k.mT / self.size**0.5, -1) @ v
        return self.o(mixed.transpose(-3, -2).flatten(-2))


def attention():
    """Per-head GL on queries and keys and on values and outputs, heads permuted."""

    def both(space: str, variance: int) -> Product:
        return Product((leaf("h", 2), leaf(space, 3, variance, sign=(1,), variance=variance)))

    layouts = {}
    for name, axis in {"q": both("qk", 1), "k": both("qk", -1), "v": both("vo", 1)}.items():
        layouts[f"{name}.weight"] = tensor(axis, fixed(4))
        layouts[f"{name}.bias"] = tensor(axis)
    layouts["o.weight"] = tensor(fixed(4), both("vo", -1))
    layouts["o.bias"] = tensor(fixed(4))
    mixed = Semidirect(GeneralLinear(3), Monomial(3), Representation(scale=(Fraction(1),), sign=(1,)))
    return (
        Heads(),
        Symmetry((Space("h", Permutation(2)), Space("qk", mixed, ("h",)), Space("vo", mixed, ("h",))), layouts),
        torch.randn(2, 5, 4),
    )


def tied_stream():
    """A residual stream whose embedding is tied to the readout; tanh leaves signs, the stream leaves O(n) or less."""

    def run(m, x):
        h = m.embed(x)
        h = h + m.down(torch.tanh(m.up(h)))
        return h @ m.embed.weight

    return Made(run, embed=nn.Linear(3, 6, bias=False), up=nn.Linear(6, 5), down=nn.Linear(5, 6))


def residual():
    layouts = {
        "embed.weight": tensor(leaf("r", 6, variance=1), fixed(3)),
        "up.weight": tensor(leaf("u", 5, sign=(1,)), leaf("r", 6, variance=-1)),
        "up.bias": tensor(leaf("u", 5, sign=(1,))),
        "down.weight": tensor(leaf("r", 6, variance=1), leaf("u", 5, sign=(1,))),
        "down.bias": tensor(leaf("r", 6, variance=1)),
    }
    spaces = (Space("r", Semidirect(Orthogonal(6))), Space("u", SignedPermutation(5)))
    return tied_stream(), Symmetry(spaces, layouts), torch.randn(7, 3)


MAKERS = {f.__name__: f for f in (mlp, conv_bn, grouped, branches, attention, residual)}


def make(name: str):
    """Model in float64, its symmetry and inputs, the same on every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, sym, x = MAKERS[name]()
    return model.double().eval(), sym, x.double()
