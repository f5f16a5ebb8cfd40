"""The straight-through estimator: permutations that lower the task loss of the merged network itself.

The merged network lies on the line between ``a`` and a moved ``b``, and is differentiable in the move (``Mixture``). If
batches have no labels, it learns to reproduce the mean answer of ``a`` and ``b``.

Ainsworth, Hayase and Srinivasa (2023), algorithm 2 ("STE matching"): the loss of ``(a + g b) / 2`` is computed with a
hard element ``g``, and its gradient is passed straight through the rounding to a latent one.

Differs from the paper: the latent variables are the matrices of ``g`` rather than weights ``w`` that are matched to
``b``. They start at the costs ``<a, b>`` of a weight matching, as latent weights ``w = a`` do too. Batch norms use the
statistics of the batch, as they will after recalibration. Scales and bases stay those of the weight matching.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..._evaluation import copied, run_with
from ..._io.lazy import State
from ..._random import mixed
from ...features.batches import call, device_of, example, labels_in, peek, repeatable, size
from ...features.evaluate import Loss, known, logits_of
from ...features.moments import fewest
from ...symmetry.action import tensors_of, transform
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks
from .coordinate_descent import default
from .relaxed import Soft, gradient, moved_softly, of_element, vertex
from .solver import Findings, Solver


@dataclass(frozen=True)
class StraightThrough(Solver):
    """Straight-through estimator: minimises the loss of the network half-way between ``a`` and ``g b`` on real inputs.

    Attributes:
        epochs: Passes over the loader.
        rate: Learning rate of Adam for the latent matrices, whose largest entry starts at 1.
        loss: ``loss(output, batch)`` of a batch. By default, the cross-entropy with its labels, or with the mean
            softmax of both networks if it has none.
        fast: Whether to use the assignment of the extra ``[fast]``.
    """

    name: ClassVar[str] = "straight-through"
    by_weights: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = True

    epochs: int = 5
    rate: float = 0.01
    loss: Loss | None = None
    fast: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be positive. Got {self.epochs}.")

    def search(self, networks: Networks) -> Findings:
        """The element of the lowest loss."""
        stated, sym = networks.stated, networks.sym
        loader, start = repeatable(networks.loader or (), networks.seed), default(stated, networks.seed, self.fast)
        mixture = Mixture(networks, self.loss)
        wide = lambda x: x.to(torch.promote_types(x.dtype, torch.float32))  # the precision in which elements move it
        a, raw = ({n: wide(state[n]) for n in mixture.b} for state in (mixture.a, mixture.b))
        layouts = {name: layout for name, layout in stated.sym.layouts.items() if name in mixture.b}
        b = transformed(sym, stated.to_b, raw)
        posed, back = replace(stated, sym=replace(stated.sym, layouts=layouts), a=a, b=b), ~stated.to_a

        def middle(soft: Soft) -> dict[str, Tensor]:
            """The tensors of ``b`` moved softly, at the scale and in the bases of ``a``."""
            return transformed(sym, back, moved_softly(posed, soft))

        def height(g: Transformation) -> float:
            with torch.no_grad():
                return mixture.loss(middle(of_element(posed, g)), loader)

        def value(g: Transformation) -> float:  # of elements that move the original b, not the balanced one
            with torch.no_grad():
                return -mixture.above(transformed(sym, g, raw), loader)

        _, costs = gradient(stated, of_element(stated, start))
        latent = {key: (c / c.abs().max().clamp_min(1e-30)).requires_grad_() for key, c in costs.items()}
        adam = torch.optim.Adam(list(latent.values()), lr=self.rate)
        best, history = start, [height(start)]
        for epoch in range(self.epochs):
            for batch in mixture.usable(repeatable(loader, mixed(loader.seed, "order", epoch))):
                batch, hard = mixture.labelled(batch), of_element(stated, vertex(stated, latent, self.fast))
                through = {key: hard[key] + x - x.detach() for key, x in latent.items()}
                with torch.enable_grad():
                    here = mixture.criterion(mixture(middle(through), batch), batch)
                    adam.zero_grad()
                    here.backward()
                adam.step()
            g = vertex(stated, latent, self.fast)
            history.append(height(g))
            best = g if history[-1] < min(history[:-1]) else best
        found = (stated.lift(best), stated.lift(start))
        return Findings(sym, value, found, lambda g: g, tuple(-x for x in history), notes=mixture.notes)


class Mixture:
    """The networks ``(1 - t) a + t b'`` for given tensors ``b'``; batch norms use the batch's statistics."""

    def __init__(self, networks: Networks, loss: Loss | None = None) -> None:
        self.criterion, self.imitates = loss or _cross_entropy, False
        self.net = copied(networks.a).eval()
        norms = {n: m for n, m in self.net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        self.least = fewest(self.net, dict.fromkeys(norms, 1), peek(networks.loader or ())[0]) if norms else 1
        for norm in norms.values():
            norm.train()  # statistics of the batch
        self.device = device_of(self.net)
        self._ends: tuple[float, float] | None = None
        self.sym: Symmetry = networks.sym
        self.a = tensors_of(self.net)  # by name; some of them are mixed
        names = self.sym.layouts.keys() - self.sym.statistics
        self.b = {n: t.detach() for n, t in tensors_of(networks.b).items() if n in names}

    def __call__(self, near: State, batch: Any, ratio: float = 0.5) -> Any:
        """The output for a batch at ``t = ratio``, with ``near`` as ``b'``."""
        state = {
            name: torch.lerp(self.a[name].to(t.dtype), t, ratio).to(self.a[name].dtype) for name, t in near.items()
        }
        state |= {alias: state[name] for alias, name in self.sym.aliases.items() if name in state}
        rest = {name: t.clone() for name, t in self.a.items() if name not in state}
        return call(partial(run_with, self.net, {**rest, **state}), batch, self.device)

    def usable(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches that batch norms can normalise by and, if labelled, in which some label counts."""
        return (batch for batch in loader if size(batch) >= self.least and _count(batch))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader on the batches."""
        what = "batches had no labels: the networks between learned to answer as both ends do on the mean"
        return (what,) * self.imitates

    @torch.no_grad()
    def labelled(self, batch: Any) -> Any:
        """A batch with the target of its loss: the mean softmax of both networks if there are no labels."""
        if self.criterion is not _cross_entropy or labels_in(batch) is not None:
            return batch
        self.imitates = True
        ends = [logits_of(self(self.b, batch, t)) for t in (0.0, 1.0)]
        sure = [x.float().softmax(-1) for x in ends if x is not None]
        return (example(batch, size(batch)), sum(sure) / 2 if len(sure) == 2 else None)

    def loss(self, near: State, loader: Iterable[Any], ratio: float = 0.5) -> float:
        """The mean loss over all labels that count."""
        total, count = 0.0, 0
        for batch in self.usable(loader):
            batch = self.labelled(batch)
            total += _count(batch) * float(self.criterion(self(near, batch, ratio), batch))
            count += _count(batch)
        if not count:
            raise ValueError(
                f"loader must yield batches of {self.least} or more examples with labels that count. Got none."
            )
        return total / count

    def above(self, near: State, loader: Iterable[Any], ratios: Sequence[float] = (0.5,)) -> float:
        """The barrier: the largest loss above the line between the ends; 0 if there is none, up to rounding."""
        if self._ends is None:
            self._ends = self.loss(near, loader, 0.0), self.loss(near, loader, 1.0)
        one, other = self._ends
        rounding = 8 * torch.finfo(next(iter(near.values())).dtype).eps
        if any(self.a[name].dtype in (torch.bfloat16, torch.float16) for name in near):
            rounding = max(rounding, torch.finfo(torch.bfloat16).eps)
        heights = [self.loss(near, loader, t) - (1 - t) * one - t * other for t in ratios]
        highest = max(heights, key=lambda h: (h != h, h))  # NaN is highest
        return 0.0 if highest <= rounding * abs(one) else highest


def transformed(sym: Symmetry, g: Transformation, tensors: State) -> dict[str, Tensor]:
    """Tensors moved one by one, differentiably; batch-norm statistics do not matter here."""
    return {name: transform(t, sym.layouts[name], g) for name, t in tensors.items()}


def _count(batch: Any) -> int:
    """The count over which a batch's loss is averaged: labels that count, or examples."""
    labels = labels_in(batch)
    return size(batch) if labels is None or labels.is_floating_point() else int(known(labels).sum())


def _cross_entropy(output: Any, batch: Any) -> Tensor:
    """Cross-entropy of logits with labels, which are classes or class probabilities."""
    labels, logits = labels_in(batch), logits_of(output)
    if labels is None or logits is None or (labels.is_floating_point() and not _are_shares(labels, logits)):
        raise ValueError(
            "model must return logits, for batches of inputs alone, (inputs, labels) or dicts with 'labels', which are "
            "classes or shares of them. Got something else: pass loss=f(output, batch)."
        )
    flat = labels.flatten(0, -2) if labels.is_floating_point() else labels.flatten().long()
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), flat.to(logits.device))


def _are_shares(labels: Tensor, logits: Tensor) -> bool:
    """Whether labels give every class a share."""
    return labels.shape == logits.shape and bool((labels >= 0).all() and (labels.sum(-1) - 1).abs().max() < 1e-2)
