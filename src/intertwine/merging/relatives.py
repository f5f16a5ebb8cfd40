"""Networks brought into the basis of the first of them, so that relatives keep what they learned.

The difference of two fine-tunes of one parent is what training changed only if both are moved by one element: two
alignments differ by more than that. A network that is close to the first as it stands stays as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn

from ..matching.align import Alignment, align
from ..matching.solvers import METHODS, Solver

_CLOSER = 0.9  # share of the distance: alignment fits noise by a few hundredths, not worth a fold
_KIN = 0.5  # relative distance of matrices up to which networks are relatives
_MUCH = 0.5  # largest share of the distance of relatives: only then was one of them moved


@dataclass(frozen=True)
class Family:
    """Elements that bring networks into the basis of the first.

    Attributes:
        elements: For every network its alignment to the first, ``None`` if it stays as it is.
        like: For every network the number of the relative whose alignment it has, ``None`` if it has its own or none.
    """

    elements: tuple[Alignment | None, ...]
    like: tuple[int | None, ...]

    def apply(self, models: Sequence[nn.Module]) -> list[nn.Module]:
        """Copies in one basis; those that stay are folded if others were."""
        fold = next((found.folded for found in self.elements if found is not None), lambda model: model)
        return [fold(x) if found is None else found.apply(x) for found, x in zip(self.elements, models, strict=True)]


def align_family(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    loader: Iterable[Any] | None = None,
    seed: int = 0,
) -> Family:
    """Align networks to the first of them: relatives of each other by one element, those already in place not at all.

    Relatives are networks most of whose matrices are within half of their norm of each other. A relative of the first
    network is aligned only if that halves the distance or moves most units of a space elsewhere (one of the two was
    moved then): scales and bases of one that was trained would follow its training. Any other network is aligned only
    if it comes closer by a tenth, unless the method has another aim than the distance of weights, or needs no fold.

    Args:
        models: The network whose basis is kept, and others of its architecture.
        example_inputs: As for ``align``, like all arguments below.
        method: Method of alignment.
        loader: Batches of inputs, for methods that look at data.
        seed: The same seed gives the same alignments.

    Examples:
        >>> import torch, intertwine as iw
        >>> make = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> base, parent, x = make(), make(), torch.zeros(2, 4)
        >>> tuned = iw.merging.average([parent] * 2)
        >>> _ = tuned[0].bias.data.add_(0.1)
        >>> found = iw.merging.align_family([base, parent, tuned], x)
        >>> found.like
        (None, None, 1)
    """
    elements: list[Alignment | None] = [None]
    like: list[int | None] = [None]
    for model in models[1:]:
        kin = (k for k in range(1, len(elements)) if elements[k] is not None and are_relatives(models[k], model))
        like.append(next(kin, None))
        if (at := like[-1]) is not None:
            elements.append(elements[at])
            continue
        found = align(models[0], model, example_inputs, method, loader, seed, chance=False)
        solver = METHODS[method] if isinstance(method, str) else method
        in_place = are_relatives(models[0], model) and not _reordered(found)
        needed = _MUCH if in_place else _CLOSER if solver.by_weights and found.gauge is not None else inf
        elements.append(found if found.after < needed * found.before or needed == inf else None)
    return Family(tuple(elements), tuple(like))


def _reordered(found: Alignment) -> bool:
    """Whether most units of some space change places, which those of relatives in place do not."""
    elements = (e for e in found.transformation.elements.values() if e.linear is None)
    return any(2 * e.displaced > e.permutation.numel() for e in elements)


def are_relatives(a: nn.Module, b: nn.Module) -> bool:
    """Whether most matrices are close as they stand; in unrelated networks they are ``sqrt(2)`` of their norm apart."""
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())  # no masks, which all networks share
    wide = lambda x: x.detach().double()
    pairs = [(wide(x), wide(theirs[name])) for name, x in ours.items() if x.ndim > 1 and name in theirs]
    return 2 * sum(x.shape == y.shape and bool((x - y).norm() <= _KIN * x.norm()) for x, y in pairs) > len(pairs)
