"""The result of aligning two networks: the element that moves one into the other's basis, and how well it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .._result import UNSAVED, Result
from .._words import columns
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import KINDS, Transformation

__all__ = ["Alignment"]


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Result):
    """How network ``b`` is brought into the basis of network ``a``.

    ``transformation`` acts on ``b``: ``symmetry.act(transformation, b)`` computes the function of ``b`` with units in
    the order, at the scale and in the bases of ``a``. ``~transformation`` moves ``a`` into the basis of ``b``.

    Where streams rotate, both act on networks whose gains are folded (``folded``): ``apply(b)`` folds and moves, and is
    close to ``alignment.a``.

    Attributes:
        method: Name of the solver.
        symmetry: The symmetry of the architecture.
        transformation: The element that moves ``b``.
        objective: What the solver maximised; by weights it is the sum of ``<a, g b>`` over tensors in balanced
            coordinates.
        history: The objective along the way of the best start.
        starts: The objective that every start reached.
        quality: By space, for every unit of ``a`` the cosine in [-1, 1] between its weights and those of the unit of
            ``b`` that was moved to its place, ``(p..., n)``; NaN for a unit without weights.
        before: Distance ``|a - b| / |a|`` of the weights in balanced coordinates, before.
        after: The same after ``b`` was moved.
        kinds: Kinds of elements that were searched.
        seconds: Time taken; it is not saved, so that the same seed gives the same file.
        seed: Seed of starts and orders.
        notes: What a reader must know.
        chance: By space the mean cosine that the same kind of search reaches between unrelated networks: ``a``, and
            ``b`` with its weights mixed; empty where it was not asked for. A mean cosine says something above it only.
        a: The network ``a`` in the gauge of the alignment: itself where nothing was folded. Not saved.
        gauge: How networks are folded, or ``None``. Not saved: of a loaded alignment ``apply`` takes folded networks.
        carry: What carries the weights of ``b`` into the code of ``a`` first, where the two differ. Not saved either.

    Examples:
        >>> import torch, intertwine as iw
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1), a)
        >>> found = iw.align(a, b, torch.zeros(2, 4))
        >>> iw.testing.assert_same_function(b, found.apply(b), torch.randn(5, 4))
        >>> all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a.parameters(), found.apply(b).parameters()))
        True
    """

    method: str
    symmetry: Symmetry
    transformation: Transformation
    objective: float
    history: tuple[float, ...]
    quality: Mapping[str, Tensor]
    before: float
    after: float
    kinds: tuple[str, ...]
    seconds: float = field(default=0.0, metadata=UNSAVED)
    seed: int = 0
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    chance: Mapping[str, float] = field(default_factory=dict)
    a: Any = field(default=None, metadata=UNSAVED)
    gauge: Any = field(default=None, metadata=UNSAVED)
    carry: Any = field(default=None, metadata=UNSAVED)

    def apply(self, b: Any) -> Any:
        """A copy of ``b`` in the basis of ``a``: other weights, the same function.

        Args:
            b: The network that was aligned, or another checkpoint in the same basis. It is left as it is. A state dict
                is moved tensor by tensor, each when it is asked for.
        """
        return self.symmetry.act(self.transformation, self.folded(b))

    def folded(self, model: nn.Module) -> nn.Module:
        """``a``, ``b`` or another checkpoint in the code of ``a`` and the gauge of the alignment: itself if it is."""
        model = model if self.carry is None else self.carry(model)
        return model if self.gauge is None else self.gauge(model)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space: its group, how many units moved, and how well units fit."""
        rows = []
        for space in self.symmetry.spaces:
            cosines = self.quality[space.name].flatten()
            known = cosines[~cosines.isnan()]
            e = self.transformation[space.name]
            rows.append(
                {
                    "space": self.symmetry.titles[space.name],
                    "name": space.name,
                    "units": e.permutation.numel(),
                    "group": space.symbol,
                    "moved": e.displaced if e.linear is None else e.permutation.numel(),
                    "flipped": int((e.signs < 0).sum()),
                    "scale": float(e.scales.abs().amax()) if e.scales.numel() else 0.0,
                    "cosine": float(known.mean()) if len(known) else float("nan"),
                    "worst": float(known.min()) if len(known) else float("nan"),
                    "chance": self.chance.get(space.name, float("nan")),
                }
            )
        return rows

    @property
    def cosines(self) -> tuple[float, float]:
        """The mean cosine over all matched units, and what it would be by chance; NaN where it is not known."""
        known = {name: x[~x.isnan()] for name, x in self.quality.items()}
        units = {name: len(x) for name, x in known.items() if len(x)}
        total = sum(units.values())
        if not total:
            return float("nan"), float("nan")
        mean = sum(float(known[name].sum()) for name in units) / total
        return mean, sum(self.chance.get(name, float("nan")) * n for name, n in units.items()) / total

    def summary(self) -> str:
        """The solver, how far the networks are apart before and after, and a line for every space."""
        head = f"Alignment by {self.method}: relative distance {self.before:.3g} -> {self.after:.3g}"
        if len(self.kinds) < len(KINDS):
            head += f" ({', '.join(self.kinds)} only)"
        mean, chance = self.cosines
        said = f", {chance:.3f} by chance" if chance == chance else ""
        head += f"; mean cosine of matched units {mean:.3f}{said}"
        kept = ["cosine", "worst", *(["chance"] if self.chance else [])]
        table = [("space", "units", "group", "moved", *kept, "name")]
        for row in self._rows():
            mixed = self.transformation[row["name"]].linear is not None
            title = row["space"].removesuffix(f" ({row['name']})")
            cells = (title, str(row["units"]), row["group"], "new basis" if mixed else str(row["moved"]))
            table.append((*cells, *("" if row[key] != row[key] else f"{row[key]:.3f}" for key in kept), row["name"]))
        return "\n".join([head, *columns(table), *(f"Note: {note}" for note in self.notes)])
