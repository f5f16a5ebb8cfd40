"""A function between linear maps: which group its hidden space has, and whether the function is kept."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from intertwine.symmetry import Space, Symmetry, symmetries
from intertwine.symmetry.spaces import Leaf
from intertwine.testing import function_error

P, S, M, G, O, NZ = "permutation", "signed", "positive", "general", "orthogonal", "monomial"
KINDS = ("permutation", "scale", "sign", "linear")
PLAIN = {(0, 0): P, (0, 1): S, (1, 0): M, (1, 1): NZ}


def prove(
    model: nn.Module,
    x: Any,
    seeds: Iterable[int] = (3,),
    bound: float = 1e-12,
    unseen: Callable[[int], Any] | None = None,
    sym: Symmetry | None = None,
) -> Symmetry:
    """The symmetry found on ``x``; elements of every kind keep the function there, or on ``unseen`` by seed."""
    sym = symmetries(model, x) if sym is None else sym
    for kind in KINDS:
        for seed in seeds:
            twin = sym.act(sym.random(seed, kinds={kind}), model)
            assert function_error(model, twin, x if unseen is None else unseen(seed + 1)) < bound, (kind, seed)
    return sym


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
    """The group of the first map's units, ``"held"`` if they cannot move; checks that elements keep the function."""
    torch.manual_seed(0)
    model = Sandwich(function, out, width).double()
    sym = prove(model, example(0), range(3), 1e-11, example)
    assert not sym.unknown_ops
    return moving(sym)


def moving(sym: Symmetry) -> str:
    """The group of the units of ``a``, ``"held"`` if they cannot move."""
    axis = sym.layouts["a.weight"].axes[0]
    return group_of(sym.space(axis.space)) if isinstance(axis, Leaf) else "held"


def group_of(space: Space) -> str:
    """The name of a space's group on one generator of each kind."""
    if space.group.mixes:
        return "general" if space.group.is_general else "orthogonal"
    return PLAIN[min(space.group.scales, 1), min(space.group.signs, 1)] if space.group.permutes else "held"
