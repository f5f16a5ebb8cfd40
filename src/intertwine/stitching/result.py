"""Results of stitching: one stitched network, or many, with everything needed to judge the penalty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from .._result import APART, UNSAVED, Result
from .._words import check_share, columns, counted
from .._zoo_intervals import pair_interval
from ..groups.capacity import log_count
from .layer import Fixed
from .pair import Pair, Skip
from .penalty import Drift, penalty
from .stitched import Stitched

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Stitching(Result):
    """One stitched network and its penalty.

    Attributes:
        layer_a: Layer of A after which it is cut.
        layer_b: Layer of B.
        family: Family of the stitching layer.
        method: ``"task_loss"`` (trained, the paper's way) or ``"direct"`` (closed form, no training).
        seed: Seed of the layer's start and of the order of training.
        accuracy: Accuracy of the stitched network, 0 to 1.
        accuracy_a: Accuracy of A.
        accuracy_b: Accuracy of B.
        error: Standard error of the penalty over examples.
        examples: Number of examples evaluated.
        inside_block: Whether skip connections cross the cut besides the tap; the paper's ``*``.
        skip: What became of them: A's unchanged (``"a"``), mapped, or B's own (``"b"``).
        c_in: Channels of A.
        c_out: Channels of B.
        parameters: Number of trainable values as stored.
        dim: Dimension of the family.
        log_components: Logarithm of the number of its pieces.
        drift: How far the stitched features are from B's own; ``None`` if not asked for.
        doubly_stochastic_error: That of the relaxed permutation at the end; ``None`` without one.
        agreement: Share of B's live channels that read the same channel of A as in closed form, that is in the
            assignment with the largest sum of ``max(cos, 0)^2 |b|^2``, where ``g_relu`` starts (the measure assigns on
            ``cos``). 1 if training changed no match; ``None`` for families without matches.
        sparsity: Share of entries of at most 1e-3 in size (v2 D.1).
        alpha: Weight of the permutation regulariser, if the family has one.
        history: One mapping for each epoch of training.
        stopped_at: Step at which the loss was no longer finite; the layer is then the last good one.
        kept: Epoch whose map this is, 0 for the start: the one with the least training loss as evaluated; ``None`` if
            the last epoch counts, or nothing was trained.
        start_loss: That loss at the start.
        pairing: For maps with at most one entry in every row: ``index``, the channel of A matched with each of B (-1
            for none), and ``scale``; if permutations are free also ``closed_form``, the match in closed form, and
            ``live``, whether B's channel ever responds. ``None`` for other maps.
        names: Names of the models.
        settings: Options of the run.
        notes: Caveats for the reader.
        matrix: The map as evaluated, ``(C_out, C_in)``; ``None`` if it was not saved.
        bias: Its bias, or ``None``.
        skip_maps: With ``skip="mapped"`` the map and bias of every skip connection that crosses the cut.
        statistics: Batch-norm statistics of the tail.
        model: The stitched network; ``None`` in a loaded result (see :meth:`rebuild`).
    """

    layer_a: str
    layer_b: str
    family: str
    method: str
    seed: int
    accuracy: float
    accuracy_a: float
    accuracy_b: float
    error: float
    examples: int
    inside_block: bool
    skip: Skip
    c_in: int
    c_out: int
    parameters: int
    dim: int
    log_components: float
    drift: Drift | None = None
    doubly_stochastic_error: float | None = None
    agreement: float | None = None
    sparsity: float | None = None
    alpha: float | None = None
    history: tuple[Mapping[str, Any], ...] = ()
    stopped_at: int | None = None
    kept: int | None = None
    start_loss: float | None = None
    pairing: Mapping[str, list[Any]] | None = None
    names: tuple[str, str] = ("A", "B")
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    matrix: Tensor | None = field(default=None, metadata=APART)
    bias: Tensor | None = field(default=None, metadata=APART)
    skip_maps: tuple[tuple[Tensor, Tensor | None], ...] = field(default=(), metadata=APART)
    statistics: Mapping[str, Tensor] = field(default_factory=dict, metadata=APART)
    model: Stitched | None = field(default=None, metadata=UNSAVED)

    @property
    def penalty(self) -> float:
        """``(Acc A + Acc B) / 2 - Acc S`` (eq. 4.3), as a fraction: 0.01 is one point."""
        return penalty(self.accuracy_a, self.accuracy_b, self.accuracy)

    @property
    def seeded(self) -> bool:
        """Whether the seed influenced the map: not in a closed form, nor if no epoch improved on one."""
        started = (self.kept == 0 or not self.history) and self.settings.get("start") == "direct"
        return self.method != "direct" and self.parameters > 0 and not started

    @property
    def layer_name(self) -> str:
        """The cut's name, with ``*`` inside residual blocks."""
        name = self.layer_a if self.layer_a == self.layer_b else f"{self.layer_a} -> {self.layer_b}"
        return f"{name}*" if self.inside_block else name

    @property
    def layer(self) -> nn.Module | None:
        """The stitching layer: the trained one, or the map as evaluated in a loaded result."""
        if self.model is not None:
            return self.model.layer
        return None if self.matrix is None else Fixed(self.matrix, self.bias, family=self.family)

    def log_count(self, eps: float, bound: float) -> float:
        """Logarithm of the family's number of members on a grid (v2 E.7), see ``StitchingLayer.log_count``."""
        return log_count(self.log_components, self.dim, eps, bound)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Normal interval of the penalty over *examples*: for another test set, with the same two models."""
        check_share("confidence", confidence)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * self.error
        return self.penalty - half, self.penalty + half

    def rebuild(self, a: nn.Module, b: nn.Module, batch: Any) -> Stitched:
        """The stitched network of a loaded result, from its models; a ``ValueError`` if no map was saved."""
        if self.matrix is None:
            raise ValueError(
                "a result must hold its map to be rebuilt, which is saved as a .safetensors file beside the .json. "
                "Got no map."
            )
        cut = Pair(a, b, batch).cut((self.layer_a, self.layer_b), self.skip)
        layer = Fixed(self.matrix, self.bias, family=self.family, channel_dim=cut.tap.channel_dim)
        skip_layers = [
            Fixed(matrix, bias, family=self.family, channel_dim=crossing.channel_dim)
            for (matrix, bias), crossing in zip(self.skip_maps, cut.skips)
        ]
        net = cut.stitch(layer, skip_layers)
        net.tail.load_statistics(self.statistics)
        return net

    def _rows(self) -> list[dict[str, Any]]:
        """One row."""
        low, high = self.interval()
        known = ("layer_a", "layer_b", "family", "method", "seed", "penalty", "accuracy", "accuracy_a", "accuracy_b")
        more = ("inside_block", "skip", "c_in", "c_out", "parameters", "dim", "agreement", "sparsity", "alpha", "kept")
        row = {"a": self.names[0], "b": self.names[1], **{key: getattr(self, key) for key in known}}
        row |= {"low": low, "high": high, **{key: getattr(self, key) for key in more}}
        row |= {"log_count": self.log_count(2**-10, 1.0), "doubly_stochastic_error": self.doubly_stochastic_error}
        row |= {f"drift_{key}": value for key, value in (asdict(self.drift) if self.drift else {}).items()}
        return [row]

    def summary(self) -> str:
        """The penalty with its interval, accuracies, and how the features changed."""
        low, high = self.interval()
        where = f"{self.names[0]} -> {self.names[1]} at {self.layer_name}"
        lines = [
            f"Stitching {where}, {self.family} ({self.method.replace('_', ' ')}): penalty {_points(self.penalty)} "
            f"[{_points(low)}, {_points(high)}] over {counted(self.examples, 'example')}",
            f"  accuracy {self.accuracy:.2%}; A {self.accuracy_a:.2%}, B {self.accuracy_b:.2%}; "
            f"{self.c_in} -> {counted(self.c_out, 'channel')}, {counted(self.parameters, 'parameter')}, "
            f"dimension {self.dim}",
        ]
        if self.kept is not None:
            kept = f"epoch {self.kept}" if self.kept else "the start, which no epoch improved on"
            lines.append(f"  kept: {kept} (least training loss as evaluated, of {counted(len(self.history), 'epoch')})")
        if self.agreement is not None:
            lines.append(f"  {self.agreement:.0%} of live channels matched as in closed form")
        if self.drift is not None:
            d = self.drift
            lines.append(
                f"  features against B's own: residual {d.residual:.3g}, Fréchet {d.frechet:.3g}, "
                f"Mahalanobis {d.mahalanobis:.3g} (1 in distribution)"
            )
        return "\n".join([*lines, *(f"  Note: {note}" for note in self.notes)])


@dataclass(frozen=True, eq=False, repr=False)
class StitchingStudy(Result):
    """Stitched networks over layers, families, methods, seeds and pairs of models.

    Attributes:
        stitchings: All stitched networks.
        settings: Options of the whole study; the command line adds facts of networks and data.
    """

    stitchings: tuple[Stitching, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the cuts, ``*`` inside residual blocks, in order."""
        return tuple(dict.fromkeys(s.layer_name for s in self.stitchings))

    @property
    def families(self) -> tuple[str, ...]:
        """Families, in order."""
        return tuple(dict.fromkeys(s.family for s in self.stitchings))

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods, in order."""
        return tuple(dict.fromkeys(s.method for s in self.stitchings))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of models, in order."""
        return tuple(dict.fromkeys(s.names for s in self.stitchings))

    @classmethod
    def join(cls, studies: Sequence[StitchingStudy | Stitching], settings: Mapping[str, Any] | None = None) -> Self:
        """One study from several that ``stitch`` returned, such as one for each pair of a zoo, each with ``names``."""
        parts = [s.stitchings if isinstance(s, StitchingStudy) else (s,) for s in studies]
        return cls(tuple(one for part in parts for one in part), dict(settings or {}))

    def select(self, layer: str | None = None, family: str | None = None, method: str | None = None) -> Self:
        """The stitched networks of one layer (with or without its ``*``), family or method."""
        at = None if layer is None else layer.removesuffix("*")
        found = [s for s in self.stitchings if at in (None, s.layer_name.removesuffix("*"))]
        found = [s for s in found if family in (None, s.family) and method in (None, s.method)]
        return replace(self, stitchings=tuple(found))

    @property
    def _groups(self) -> dict[tuple[str, str, str], list[Stitching]]:
        """The stitched networks of every layer, family and method."""
        groups: dict[tuple[str, str, str], list[Stitching]] = {}
        for s in self.stitchings:
            groups.setdefault((s.layer_name, s.family, s.method), []).append(s)
        return groups

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats that concern the whole study."""
        counts = Counter(note for s in self.stitchings for note in dict.fromkeys(s.notes))
        shared = [*self.settings.get("notes", ())]
        shared += [note for note, count in counts.items() if count == len(self.stitchings) and note not in shared]
        repeated = [family for (_, family, _), found in self._groups.items() if len(found) > 1 and _one_fit(found)]
        if repeated:
            shared.append(
                f"all seeds of {', '.join(dict.fromkeys(repeated))} are one fit, in which nothing is random: its "
                "interval is over examples, not over seeds"
            )
        return tuple(shared)

    def table(self, confidence: float = 0.95) -> pd.DataFrame:
        """Mean penalty for every layer, family and method, with an interval that states what it resamples.

        From three models on it resamples ``"models"`` (pairs share models, so never pairs); for one pair with several
        seeds it is the range of the ``"runs"``; for a single stitched network, and for seeds that change nothing, it is
        over ``"examples"``.
        """
        import pandas as pd

        check_share("confidence", confidence)
        rows = []
        for (layer, family, method), found in self._groups.items():
            mean = fmean(s.penalty for s in found)
            low, high, over = _interval(found, confidence)
            first = found[0]
            rows.append(
                {
                    "layer": layer, "family": family, "method": method, "penalty": mean, "low": low, "high": high,
                    "over": over, "accuracy": fmean(s.accuracy for s in found), "runs": len(found),
                    "models": len({name for s in found for name in s.names}), "dim": first.dim,
                    "parameters": first.parameters, "agreement": _mean([s.agreement for s in found]),
                    "frechet": _mean([None if s.drift is None else s.drift.frechet for s in found]),
                    "inside_block": first.inside_block,
                }
            )  # fmt: skip
        return pd.DataFrame(rows)

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each stitched network."""
        return [row for s in self.stitchings for row in s._rows()]

    def summary(self) -> str:
        """The mean penalty of every layer, family and method."""
        rows = [("layer", "family", "method", "penalty", "interval", "over", "agreement")]
        for row in self.table().itertuples():
            interval = "" if row.low != row.low else f"[{_points(row.low)}, {_points(row.high)}]"
            agreement = "" if row.agreement is None or row.agreement != row.agreement else f"{row.agreement:.0%}"
            method = row.method.replace("_", " ")
            rows.append((row.layer, row.family, method, _points(row.penalty), interval, row.over, agreement))
        head = f"{counted(len(self.stitchings), 'stitched network')}; penalties in points of accuracy (eq. 4.3)"
        starred = {s.skip for s in self.stitchings if s.inside_block}
        foot = ["* inside a residual block: a skip connection crosses the cut too"] if starred else []
        if "a" in starred:
            foot.append("  with A's values, unmapped: a copy in another basis has a penalty (not with skip='mapped')")
        if any(s.agreement is not None for s in self.stitchings):
            foot.append("agreement: live channels of B that read the same channel of A as the match in closed form")
        foot += [f"Note: {note}" for note in self.notes]
        return "\n".join([head, "", *columns(rows), *foot])


def pairing_of(matrix: Tensor) -> dict[str, list[Any]] | None:
    """Matched channel and scale of every row, for maps with at most one entry in each row; ``None`` for others."""
    if bool(((matrix != 0).sum(1) > 1).any()):
        return None
    return {"index": paired_with(matrix).tolist(), "scale": matrix.sum(1).double().tolist()}


def paired_with(matrix: Tensor) -> Tensor:
    """The first channel that every row reads, -1 for none."""
    entries = matrix != 0
    return torch.where(entries.any(1), entries.double().argmax(1), -1)


def _interval(found: Sequence[Stitching], confidence: float) -> tuple[float, float, str]:
    penalties = [s.penalty for s in found]
    pairs = [s.names for s in found]
    models = {name for pair in pairs for name in pair}
    everywhere = any(all(model in pair for pair in pairs) for model in models)
    if len(models) >= 3 and not everywhere:
        interval = pair_interval(pairs, penalties, confidence)
        return interval.low, interval.high, "models"
    if len(found) > 1 and not _one_fit(found):
        return min(penalties), max(penalties), "runs (range)"
    return *found[0].interval(confidence), "examples"


def _one_fit(found: Sequence[Stitching]) -> bool:
    """Whether all are the same map between the same networks, whatever their seeds."""
    return len({(s.names, s.penalty) for s in found}) == 1 and not any(s.seeded for s in found)


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return fmean(known) if known else nan


def _points(value: float) -> str:
    return f"{100 * value:.2f}"
