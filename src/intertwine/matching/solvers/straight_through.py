"""The straight-through estimator: permutations that lower the task loss of the merged network itself.

Ainsworth, Hayase and Srinivasa (2023), algorithm 2 ("STE matching"): the loss of ``(a + g b) / 2`` is computed with a
hard element ``g``, and its gradient is passed straight through the rounding to a latent one.

Differs from the paper: latent are the matrices of ``g`` rather than weights ``w`` that are matched to ``b``; they start
at the costs ``<a, b>`` of a weight matching, which is where latent weights ``w = a`` start, too. Batch norms use the
statistics of the batch, as they will after recalibration. Scales and bases stay those of the weight matching.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..._random import mixed
from ...features.batches import Repeatable, check_repeatable, repeatable
from ...features.evaluate import Loss
from ...symmetry.action import tensors_of
from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from .coordinate_descent import default
from .mixture import Mixture, cross_entropy, transformed
from .soft_elements import Soft, gradient, moved_softly, of_element, vertex
from .solver import Findings, Solver


@dataclass(frozen=True)
class StraightThrough(Solver):
    """Minimises the loss of the network half-way between ``a`` and ``g b`` on labelled batches.

    Attributes:
        epochs: Passes over the loader.
        rate: Learning rate of Adam for the latent matrices, whose largest entry starts at 1.
        loss: ``loss(output, batch)`` of a batch; cross-entropy of ``(inputs, labels)`` by default.
        fast: Whether to use the assignment of the extra ``[fast]``.
    """

    name: ClassVar[str] = "straight-through"
    by_weights: ClassVar[bool] = False

    epochs: int = 5
    rate: float = 0.01
    loss: Loss | None = None
    fast: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        if self.epochs < 1:
            raise ValueError(f"epochs must be positive. Got {self.epochs}.")

    def search(self, networks: Networks) -> Findings:
        """The element of the lowest loss.

        Raises:
            ValueError: If there is no loader.
        """
        if networks.loader is None:
            raise ValueError("loader must yield labelled batches for method 'straight-through'. Got None.")
        check_repeatable(networks.loader)
        stated, start = networks.stated, default(networks.stated, networks.seed, self.fast)
        loader, middle = repeatable(networks.loader, networks.seed), _Middle(networks, networks.stated)
        g, history = _descend_loss(middle, stated, start, loader, self)
        mixture = middle.mixture
        raw = {name: _wide(tensor) for name, tensor in tensors_of(networks.b).items() if name in mixture.names}

        def value(g: Transformation) -> float:  # of elements that move b as it came, not as it is balanced
            with torch.no_grad():
                return -mixture.above(transformed(networks.sym, g, raw), loader, self.loss or cross_entropy)

        found = (stated.lift(g), stated.lift(start))
        return Findings(networks.sym, value, found, lambda g: g, tuple(-value for value in history))


def _descend_loss(
    middle: _Middle, stated: Problem, start: Transformation, loader: Repeatable, options: StraightThrough
) -> tuple[Transformation, list[float]]:
    """The element with the lowest mean loss of any pass, and the loss at the start and after every pass."""
    loss = options.loss or cross_entropy
    _, costs = gradient(stated, of_element(stated, start))
    latent = {key: (c / c.abs().max().clamp_min(1e-30)).requires_grad_() for key, c in costs.items()}
    adam = torch.optim.Adam(list(latent.values()), lr=options.rate)
    best, history = start, [middle.loss(start, loader, loss)]
    for epoch in range(options.epochs):
        for batch in middle.mixture.usable(repeatable(loader, mixed(loader.seed, "order", epoch))):
            hard = of_element(stated, vertex(stated, latent, options.fast))
            through = {key: hard[key] + x - x.detach() for key, x in latent.items()}
            with torch.enable_grad():
                value = loss(middle.mixture(middle(through), batch), batch)
                adam.zero_grad()
                value.backward()
            adam.step()
        g = vertex(stated, latent, options.fast)
        history.append(middle.loss(g, loader, loss))
        best = g if history[-1] < min(history[:-1]) else best
    return best, history


class _Middle:
    """The network half-way between ``a`` and a softly moved ``b``, at the scale and in the bases of ``a``.

    Args:
        networks: The two networks.
        stated: Their balanced coordinates, for the elements that lead there.
    """

    def __init__(self, networks: Networks, stated: Problem) -> None:
        self.mixture = Mixture(networks)
        self.sym, names = networks.sym, self.mixture.names
        self.back = ~stated.to_a
        raw = tensors_of(networks.b)
        a, b = ({n: _wide(state[n]) for n in names} for state in (self.mixture.a, raw))
        b = transformed(self.sym, stated.to_b, b)
        layouts = {name: layout for name, layout in stated.sym.layouts.items() if name in names}
        self.stated = replace(stated, sym=replace(stated.sym, layouts=layouts), a=a, b=b)

    def __call__(self, soft: Soft) -> dict[str, Tensor]:
        """The tensors of ``b`` moved softly."""
        return transformed(self.sym, self.back, moved_softly(self.stated, soft))

    def loss(self, g: Transformation, loader: Iterable[Any], loss: Loss) -> float:
        """The mean loss of a hard element over all labels that count."""
        with torch.no_grad():
            return self.mixture.loss(self(of_element(self.stated, g)), loader, loss)


def _wide(x: Tensor) -> Tensor:
    """A tensor in a precision in which elements may move it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
