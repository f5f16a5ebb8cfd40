"""The straight-through estimator: permutations that lower the task loss of the merged network itself.

Ainsworth, Hayase and Srinivasa (2023), algorithm 2 ("STE matching"): the loss of ``(a + g b) / 2`` is computed with a
hard element ``g``, and its gradient is passed straight through the rounding to a latent one.

Differs from the paper: latent are the matrices of ``g`` rather than weights ``w`` that are matched to ``b``; they start
at the costs ``<a, b>`` of a weight matching, which is where latent weights ``w = a`` start, too. Batch norms use the
statistics of the batch, as they will after recalibration. Scales and bases stay those of the weight matching.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..._random import mixed
from ...features.batches import repeatable
from ...features.evaluate import Loss
from ...symmetry.action import tensors_of
from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks
from .coordinate_descent import default
from .mixture import Mixture, cross_entropy, transformed
from .relaxed import Soft, gradient, moved_softly, of_element, vertex
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
    needs_labels: ClassVar[bool] = True

    epochs: int = 5
    rate: float = 0.01
    loss: Loss | None = None
    fast: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        if self.epochs < 1:
            raise ValueError(f"epochs must be positive. Got {self.epochs}.")

    def search(self, networks: Networks) -> Findings:
        """The element of the lowest loss."""
        stated, sym, loss = networks.stated, networks.sym, self.loss or cross_entropy
        loader, start = repeatable(networks.loader or (), networks.seed), default(stated, networks.seed, self.fast)
        mixture = Mixture(networks)
        ours, theirs = mixture.a, tensors_of(networks.b)
        a, raw = ({n: _wide(x) for n, x in state.items() if n in mixture.names} for state in (ours, theirs))
        layouts = {name: layout for name, layout in stated.sym.layouts.items() if name in mixture.names}
        b = transformed(sym, stated.to_b, raw)
        posed, back = replace(stated, sym=replace(stated.sym, layouts=layouts), a=a, b=b), ~stated.to_a

        def middle(soft: Soft) -> dict[str, Tensor]:
            """The tensors of ``b`` moved softly, at the scale and in the bases of ``a``."""
            return transformed(sym, back, moved_softly(posed, soft))

        def height(g: Transformation) -> float:
            with torch.no_grad():
                return mixture.loss(middle(of_element(posed, g)), loader, loss)

        def value(g: Transformation) -> float:  # of elements that move b as it came, not as it is balanced
            with torch.no_grad():
                return -mixture.above(transformed(sym, g, raw), loader, loss)

        _, costs = gradient(stated, of_element(stated, start))
        latent = {key: (c / c.abs().max().clamp_min(1e-30)).requires_grad_() for key, c in costs.items()}
        adam = torch.optim.Adam(list(latent.values()), lr=self.rate)
        best, history = start, [height(start)]
        for epoch in range(self.epochs):
            for batch in mixture.usable(repeatable(loader, mixed(loader.seed, "order", epoch))):
                hard = of_element(stated, vertex(stated, latent, self.fast))
                through = {key: hard[key] + x - x.detach() for key, x in latent.items()}
                with torch.enable_grad():
                    here = loss(mixture(middle(through), batch), batch)
                    adam.zero_grad()
                    here.backward()
                adam.step()
            g = vertex(stated, latent, self.fast)
            history.append(height(g))
            best = g if history[-1] < min(history[:-1]) else best
        found = (stated.lift(best), stated.lift(start))
        return Findings(sym, value, found, lambda g: g, tuple(-x for x in history))


def _wide(x: Tensor) -> Tensor:
    """A tensor in a precision in which elements may move it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
