"""The straight-through estimator: permutations that lower the task loss of the merged network itself.

Ainsworth, Hayase and Srinivasa (2023), algorithm 2 ("STE matching"): the loss of ``(a + g b) / 2`` is computed with a
hard element ``g``, and its gradient is passed straight through the rounding to a latent one.

Differs from the paper: latent are the matrices of ``g`` rather than weights ``w`` that are matched to ``b``; they start
at the costs ``<a, b>`` of a weight matching, which is where latent weights ``w = a`` start, too. Batch norms use the
statistics of the batch, as they will after recalibration. Scales and bases stay those of the weight matching.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..._evaluation import copied, run_with
from ..._random import mixed
from ...features.batches import call, check_repeatable, device_of, labels_in, peek, size
from ...features.evaluate import Loss, known, logits_of
from ...features.norm_statistics import fewest
from ...features.repeatable import Repeatable, repeatable
from ...symmetry.action import tensors_of, transform
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from .coordinate_descent import CoordinateDescent, descend
from .soft_elements import Soft, gradient, moved_softly, of_element, vertex
from .solver import Solution, Solver
from .starts import profiles


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

    def solve(self, networks: Networks) -> Solution:
        """The element of the lowest loss.

        Raises:
            ValueError: If there is no loader.
        """
        if networks.loader is None:
            raise ValueError("loader must yield labelled batches for method 'straight-through'. Got None.")
        check_repeatable(networks.loader)
        stated, generator = networks.stated, torch.Generator().manual_seed(networks.seed)
        start = descend(stated, profiles(stated), generator, CoordinateDescent(fast=self.fast)).g
        loader = repeatable(networks.loader, networks.seed)
        g, history = _descend_loss(_Middle(networks, stated), stated, start, loader, self)
        return Solution(stated.lift(g), -min(history), tuple(-value for value in history))


def _descend_loss(
    middle: _Middle, stated: Problem, start: Transformation, loader: Repeatable, options: StraightThrough
) -> tuple[Transformation, list[float]]:
    """The element with the lowest mean loss of any pass, and the loss at the start and after every pass."""
    loss = options.loss or _cross_entropy
    _, costs = gradient(stated, of_element(stated, start))
    latent = {key: (c / c.abs().max().clamp_min(1e-30)).requires_grad_() for key, c in costs.items()}
    adam = torch.optim.Adam(list(latent.values()), lr=options.rate)
    best, history = start, [middle.loss(start, loader, loss)]
    for epoch in range(options.epochs):
        for batch in middle.usable(repeatable(loader, mixed(loader.seed, "order", epoch))):
            hard = of_element(stated, vertex(stated, latent, options.fast))
            through = {key: hard[key] + x - x.detach() for key, x in latent.items()}
            with torch.enable_grad():
                value = loss(middle(through, batch), batch)
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
        self.net = copied(networks.a).eval()
        norms = {n: m for n, m in self.net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        self.least = fewest(self.net, dict.fromkeys(norms, 1), peek(networks.loader or ())[0]) if norms else 1
        for norm in norms.values():
            norm.train()  # statistics of the batch
        self.device = device_of(self.net)
        self.sym: Symmetry = networks.sym
        self.back = ~stated.to_a
        self.a = tensors_of(self.net)
        raw = tensors_of(networks.b)
        names = set(networks.sym.layouts) - {n for norm in networks.sym.batch_norms for n in (norm.mean, norm.variance)}
        a, b = ({n: _wide(state[n]) for n in names} for state in (self.a, raw))
        b = _scaled(self.sym, stated.to_b, b)
        layouts = {name: layout for name, layout in stated.sym.layouts.items() if name in names}
        self.stated = replace(stated, sym=replace(stated.sym, layouts=layouts), a=a, b=b)

    def __call__(self, soft: Soft, batch: Any) -> Any:
        """The output for a batch."""
        near = _scaled(self.sym, self.back, moved_softly(self.stated, soft))
        state = {name: ((self.a[name] + t) / 2).to(self.a[name].dtype) for name, t in near.items()}
        state |= {alias: state[name] for alias, name in self.sym.aliases.items() if name in state}
        rest = {name: t.clone() for name, t in self.a.items() if name not in state}
        return call(_WithState(self.net, {**rest, **state}), batch, self.device)

    def usable(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches that batch norms can normalise by, of which a label counts."""
        return (batch for batch in loader if size(batch) >= self.least and _count(batch))

    def loss(self, g: Transformation, loader: Iterable[Any], loss: Loss) -> float:
        """The mean loss of a hard element over all labels that count."""
        soft, total, count = of_element(self.stated, g), 0.0, 0
        with torch.no_grad():
            for batch in self.usable(loader):
                total += _count(batch) * float(loss(self(soft, batch), batch))
                count += _count(batch)
        if not count:
            raise ValueError(
                f"loader must yield batches of {self.least} or more examples with labels that count. Got none."
            )
        return total / count


class _WithState(nn.Module):
    """A network that runs with other tensors than its own."""

    def __init__(self, net: nn.Module, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.net, self.state = net, state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return run_with(self.net, self.state, *args, **kwargs)


def _scaled(sym: Symmetry, g: Transformation, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors moved one by one, differentiably; batch-norm statistics play no part here."""
    return {name: transform(t, sym.layouts[name], g) for name, t in tensors.items()}


def _wide(x: Tensor) -> Tensor:
    """A tensor in a precision in which elements may move it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _count(batch: Any) -> int:
    """How many numbers a batch's loss is the mean of: labels that count, or examples."""
    labels = labels_in(batch)
    return size(batch) if labels is None or labels.is_floating_point() else int(known(labels).sum())


def _cross_entropy(output: Any, batch: Any) -> Tensor:
    """Cross-entropy of logits."""
    labels, logits = labels_in(batch), logits_of(output)
    if labels is None or logits is None:
        raise ValueError(
            "loader must yield (inputs, labels), or dicts with 'labels', for a model of logits. Got something else: "
            "pass loss=f(output, batch)."
        )
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.to(logits.device).flatten())
