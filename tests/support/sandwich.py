"""A function between linear maps: which group its hidden space has, and whether the function is kept."""

import torch
from torch import Tensor, nn

from intertwine.symmetry import symmetries
from intertwine.symmetry.spaces import Leaf
from intertwine.testing import function_error

P, S, M, G, O, NZ = "permutation", "signed", "positive", "general", "orthogonal", "monomial"
PLAIN = {(0, 0): P, (0, 1): S, (1, 0): M, (1, 1): NZ}


class Sandwich(nn.Module):
    """``b(function(a(x), c(x), w))`` of ``(N, 5, 4)`` inputs, with ``width`` hidden units last and ``out`` read."""

    def __init__(self, function, out: int = 6, width: int = 6) -> None:
        super().__init__()
        self.a, self.c, self.b = nn.Linear(4, width), nn.Linear(4, width), nn.Linear(out, 3)
        self.w, self.function = nn.Parameter(torch.rand(width) + 0.5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x), self.c(x), self.w))


def example(seed: int, batch: int = 4) -> Tensor:
    return torch.randn(batch, 5, 4, generator=torch.Generator().manual_seed(seed)).double()


def group(function, out: int = 6, width: int = 6) -> str:
    """The group of the first map's units, ``"held"`` where they do not move; every element keeps the function."""
    torch.manual_seed(0)
    model = Sandwich(function, out, width).double()
    sym = symmetries(model, example(0))
    assert not sym.unknown_ops
    for kind in ("permutation", "scale", "sign", "linear"):
        for seed in range(3):
            twin = sym.act(sym.random(seed, kinds={kind}), model)
            assert function_error(model, twin, (example(seed + 1),)) < 1e-11, kind
    moving = sym.layouts["a.weight"].axes[0]
    if not isinstance(moving, Leaf):
        return "held"
    space = sym.space(moving.space)
    if space.group.mixes:
        return "general" if space.group.is_general else "orthogonal"
    return PLAIN[min(space.group.scales, 1), min(space.group.signs, 1)] if space.group.permutes else "held"
