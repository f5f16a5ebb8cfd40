"""All pairs of layers by any other measure, one pair at a time."""

from collections.abc import Generator, Sequence
from typing import Any

from ._sides import PairwiseSide
from .base import Measure
from .compare_draws import Cells, Draws
from .compare_layers import Layer
from .compare_space import common_space, pool, pooling_note

__all__ = ["compare_pairs"]


def compare_pairs(
    measure: Measure[Any], a: Sequence[Layer], b: Sequence[Layer], draws: Draws
) -> Generator[None, None, Cells]:
    """Score all pairs with a measure of any kind: what each side alone determines is computed once per layer.

    Args:
        measure: The measure.
        a: Layers of A.
        b: Layers of B.
        draws: Shuffles and halves.

    Yields:
        After each pair.

    Returns:
        Scores, shuffled scores and scores of halves.
    """
    cells = Cells.empty(len(a), len(b), draws)
    sides = _Sides(measure)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            space = common_space(x.space, y.space)
            try:
                _fill(cells, measure, (i, j), sides.of(x, space), sides.of(y, space), draws)
            except ValueError as error:
                pair = f"layer {x.name!r} of A and {y.name!r} of B"
                cells.notes.append(f"{measure.name} has no score for {pair}: {error}")
            yield
        sides.forget(x)
    if sides.pooled and (note := pooling_note(measure.name, a, b)):
        cells.notes.append(note)
    return cells


class _Sides:
    """What the measure keeps of each layer, at each spatial size where that matters."""

    def __init__(self, measure: Measure[Any]) -> None:
        self._measure = measure
        self._known: dict[tuple[str, str], dict[tuple[int, ...] | None, Any]] = {}
        self.pooled = False

    def of(self, layer: Layer, space: tuple[int, ...]) -> Any:
        """The layer's side; a matrix over pairs of examples has summed over space, so that any size will do."""
        known = self._known.setdefault((layer.side, layer.name), {})
        if not known:
            side = self._measure.prepare(layer.load())
            known[None if isinstance(side, PairwiseSide) else layer.space] = side
        if None in known:
            return known[None]
        if space not in known:
            known[space] = self._measure.prepare(pool(layer.load(), space))
            self.pooled = True
        return known[space]

    def forget(self, layer: Layer) -> None:
        """Free what belongs to a layer that is done."""
        self._known.pop((layer.side, layer.name), None)


def _fill(cells: Cells, measure: Measure[Any], at: tuple[int, int], x: Any, y: Any, draws: Draws) -> None:
    cells.scores[at] = measure.score(x, y)
    floor = measure.floor(x, y)
    if floor is not None:
        cells.floor[at] = floor
    for s, half in enumerate(draws.subsamples):
        cells.halves[(*at, s)] = measure.score(x.take(half), y.take(half))
    for p, order in enumerate(draws.permutations):
        cells.null[(*at, p)] = measure.score(x, y.take(order))
