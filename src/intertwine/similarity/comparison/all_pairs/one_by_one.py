"""All pairs of layers by any other measure, one pair at a time."""

from collections.abc import Generator, Sequence
from typing import Any

from ...base import Measure
from ..draws import Cells, Draws
from ..layers import Layer
from ..spatial_sizes import common_space, pool, pooling_note

_SHARE = 2  # of the memory, for what measures keep of layers


def compare_pairs(
    measure: Measure[Any], a: Sequence[Layer], b: Sequence[Layer], draws: Draws, memory: int
) -> Generator[None, None, Cells]:
    """Score all pairs with a measure of any kind: what one side alone determines is computed once, while it fits."""
    cells = Cells.empty(len(a), len(b), draws)
    sides = _Sides(measure)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            silent = [layer.nothing(measure.name) for layer in (x, y) if layer.constant.all()]
            cells.notes += silent
            if not silent:
                _score(cells, measure, (i, j), x, y, sides, draws)
            if sides.size > memory // _SHARE:
                sides.forget(y)  # the last one, not the first: every layer of A meets all of B in the same order
            yield
        sides.forget(x)
    if sides.pooled and (note := pooling_note(measure.name, a, b)):
        cells.notes.append(note)
    cells.notes = list(dict.fromkeys(cells.notes))
    return cells


def pairwise_size(measure: Measure[Any], examples: int) -> int:
    """Bytes that a measure is known to need for one layer: matrices over pairs of examples, or little."""
    return 12 * examples**2 if measure.pairwise else 0


class _Sides:
    """What the measure keeps of each layer, at each spatial size where that matters."""

    def __init__(self, measure: Measure[Any]) -> None:
        self._measure = measure
        self._known: dict[tuple[str, str], dict[tuple[int, ...] | None, Any]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self.pooled = False

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(self._sizes.values())

    def of(self, layer: Layer, space: tuple[int, ...]) -> Any:
        """The layer's side; a matrix over pairs of examples has summed over space, so that any size will do."""
        known = self._known.setdefault((layer.side, layer.name), {})
        if not known:
            x = layer.load()
            known[None if self._measure.pairwise else layer.space] = self._measure.prepare(x)
            self._sizes[layer.side, layer.name] = pairwise_size(self._measure, len(x)) or x.nbytes
        if None in known:
            return known[None]
        if space not in known:
            x = pool(layer.load(), space)
            known[space] = self._measure.prepare(x)
            self._sizes[layer.side, layer.name] += x.nbytes
            self.pooled = True
        return known[space]

    def forget(self, layer: Layer) -> None:
        """Free what belongs to a layer."""
        self._known.pop((layer.side, layer.name), None)
        self._sizes.pop((layer.side, layer.name), None)


def _score(
    cells: Cells, measure: Measure[Any], at: tuple[int, int], a: Layer, b: Layer, sides: _Sides, draws: Draws
) -> None:
    """Score a pair, its halves and its shuffles; what has no score stays NaN, with a note."""
    space = common_space(a.space, b.space)
    pair = f"layer {a.name!r} of A and {b.name!r} of B"
    try:
        x, y = sides.of(a, space), sides.of(b, space)
        cells.scores[at] = measure.score(x, y)
    except ValueError as error:
        cells.notes.append(f"{measure.name} has no score for {pair}: {error}")
        return
    floor = measure.floor(x, y)
    if floor is not None:
        cells.floor[at] = floor
    for p, order in enumerate(draws.permutations):
        cells.null[(*at, p)] = measure.score(x, y.take(order))
    for s, half in enumerate(draws.subsamples):
        try:
            cells.halves[(*at, s)] = measure.score(x.take(half), y.take(half))
        except ValueError as error:
            cells.notes.append(f"{measure.name} left out halves of the examples for {pair}: {error}")
