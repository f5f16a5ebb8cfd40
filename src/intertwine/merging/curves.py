"""Loss and accuracy along paths between networks: the result of a barrier measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .._result import Result
from .._words import columns, counted
from .._zoo_intervals import PairInterval, pair_interval

if TYPE_CHECKING:
    import pandas as pd

PATHS = ("direct", "aligned")


@dataclass(frozen=True)
class Curve:
    """Loss and accuracy along one path.

    Attributes:
        pair: Index of the pair of networks, from 0.
        path: ``"direct"`` from ``a`` to ``b``, or ``"aligned"``, to ``b`` in the basis of ``a``.
        recalibrated: Whether batch norms were measured anew at every point, the ends included.
        loss: Mean loss at every ratio.
        accuracy: Share of correct labels at every ratio, ``None`` if labels are not classes.
    """

    pair: int
    path: str
    recalibrated: bool
    loss: tuple[float, ...]
    accuracy: tuple[float, ...] | None = None

    def above_chord(self, ratios: Sequence[float], measure: str = "loss") -> tuple[float, ...]:
        """How much worse each point is than the straight line between the ends: higher loss, lower accuracy."""
        values, sign = (self.loss, 1.0) if measure == "loss" else (self.accuracy or (), -1.0)
        return tuple(sign * (v - (1 - t) * values[0] - t * values[-1]) for t, v in zip(ratios, values))


@dataclass(frozen=True, repr=False)
class Barrier(Result):
    """Loss and accuracy between pairs of networks, before and after alignment.

    Attributes:
        ratios: The points of each path, shares of ``b`` from 0 to 1.
        pairs: Names of ``a`` and ``b`` for each pair.
        curves: One curve for each pair, path and variant.
        alignment: How ``b`` was aligned, in a word; ``None`` if it was not.
        interpolation: ``"linear"`` or ``"spherical"``.
        examples: Number of examples on which each point was scored.
        settings: Other facts about the run.
        notes: Caveats for the reader.

    Examples:
        >>> curve = Curve(0, "direct", False, loss=(0.1, 0.9, 0.3), accuracy=(1.0, 0.5, 0.9))
        >>> found = Barrier((0.0, 0.5, 1.0), (("a", "b"),), (curve,), None, "linear", 100)
        >>> found.heights("direct"), found.heights("direct", measure="accuracy")
        ((0.7,), (0.45,))
    """

    ratios: tuple[float, ...]
    pairs: tuple[tuple[str, str], ...]
    curves: tuple[Curve, ...]
    alignment: str | None
    interpolation: str
    examples: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """Loss barrier of the direct path, mean over pairs, with statistics interpolated; NaN if widths differ."""
        return self._mean("direct")

    @property
    def after(self) -> float:
        """Loss barrier after alignment, mean over pairs, with statistics interpolated; NaN without an alignment."""
        return self._mean("aligned")

    def _mean(self, path: str) -> float:
        found = self.heights(path)
        return fmean(found) if found else float("nan")

    @property
    def variants(self) -> tuple[tuple[str, bool], ...]:
        """Kinds of curves present: path, and whether batch norms were recalibrated."""
        return tuple(dict.fromkeys((c.path, c.recalibrated) for c in self.curves))

    def heights(self, path: str = "aligned", recalibrated: bool = False, measure: str = "loss") -> tuple[float, ...]:
        """The barrier of every pair: the largest excess over the chord, ``max_t L(t) - ((1 - t) L(0) + t L(1))``.

        Args:
            path: ``"direct"`` or ``"aligned"``.
            recalibrated: Whether to take the recalibrated variant.
            measure: ``"loss"``, or ``"accuracy"`` for the largest drop below its chord.

        Returns:
            One number for each pair, at least 0; empty if there are no such curves.

        Raises:
            ValueError: If path or measure is unknown.
        """
        if path not in PATHS or measure not in ("loss", "accuracy"):
            raise ValueError(
                f"path must be one of {PATHS} and measure 'loss' or 'accuracy'. Got {path!r} and {measure!r}."
            )
        curves = [c for c in self.curves if (c.path, c.recalibrated) == (path, recalibrated)]
        if measure == "accuracy" and any(c.accuracy is None for c in curves):
            return ()
        above = [c.above_chord(self.ratios, measure) for c in curves]
        return tuple(float("nan") if any(v != v for v in values) else max(values) for values in above)

    def interval(
        self, path: str = "aligned", recalibrated: bool = False, measure: str = "loss", confidence: float = 0.95
    ) -> PairInterval | None:
        """Mean barrier with an interval over networks, by leaving out networks rather than pairs.

        Args:
            path: ``"direct"`` or ``"aligned"``.
            recalibrated: Whether to take the recalibrated variant.
            measure: ``"loss"`` or ``"accuracy"``.
            confidence: Nominal coverage.

        Returns:
            The interval; ``None`` for fewer than three networks, or if one network is part of every pair.
        """
        heights = self.heights(path, recalibrated, measure)
        everywhere = set(self.pairs[0]).intersection(*self.pairs)
        if everywhere or not heights or any(h != h or h == float("inf") for h in heights):
            return None
        return pair_interval(self.pairs, heights, confidence)

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each pair, path, variant and point."""
        rows = []
        for c in self.curves:
            a, b = self.pairs[c.pair]
            key = {"a": a, "b": b, "path": c.path, "recalibrated": c.recalibrated}
            above = c.above_chord(self.ratios)
            for k, t in enumerate(self.ratios):
                accuracy = None if c.accuracy is None else c.accuracy[k]
                point = {"ratio": t, "loss": c.loss[k], "accuracy": accuracy, "above_chord": above[k]}
                rows.append({**key, **point})
        return rows

    @property
    def headline(self) -> str:
        """The mean loss barrier before and after alignment."""
        words = {"direct": f"{self.before:.4f} in loss", "aligned": f"{self.after:.4f} after alignment"}
        said = ", ".join(word for path, word in words.items() if self.heights(path))
        return f"Barrier {said}, mean over {counted(len(self.pairs), 'pair')}"

    def table(self) -> pd.DataFrame:
        """One row for every kind of path: mean barriers, with their intervals over networks in brackets."""
        import pandas as pd

        rows, anew = [], any(recalibrated for _, recalibrated in self.variants)  # else there may be no batch norms
        for path, recalibrated in self.variants:
            cells = {f"{measure} barrier": self._said(path, recalibrated, measure) for measure in ("loss", "accuracy")}
            norms = {"batch norms": "recalibrated" if recalibrated else "interpolated"} if anew else {}
            rows.append({"path": path, **norms, **cells})
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """The mean barrier of every kind of path, with its interval over networks."""
        sizes = (len(self.ratios), "point"), (len(self.pairs), "pair"), (self.examples, "example")
        head = f"Barrier over {', '.join(counted(n, noun) for n, noun in sizes)}"
        table = self.table()
        rows = columns([tuple(table.columns), *table.itertuples(index=False)])
        return "\n".join([head, *rows, *(f"Note: {note}" for note in self.notes)])

    def _said(self, path: str, recalibrated: bool, measure: str) -> str:
        """A barrier in words, with its interval where there is one."""
        heights = self.heights(path, recalibrated, measure)
        if not heights:
            return "-"
        found = self.interval(path, recalibrated, measure)
        mean = f"{fmean(heights):.4f}"
        most = 1.0 if measure == "accuracy" else float("inf")
        return mean if found is None else f"{mean} [{max(found.low, 0.0):.4f}, {min(found.high, most):.4f}]"
