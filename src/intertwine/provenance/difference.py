"""The result of ``diff``: the element that explains as much as possible, and what remains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._result import UNSAVED, Result
from .._words import columns
from ..symmetry.transformation import Transformation
from .changes.tensor_change import TensorChange

SAME_FUNCTION = "the same function"
CHANGED = "changed"
_LISTED = 12  # tensors and blocks listed in a summary


@dataclass(frozen=True)
class Finding:
    """One thing that was done to a network."""

    kind: str  # A keyword for programs, such as ``"permuted"``, ``"low rank"``, ``"frozen"``
    text: str  # What was done, in words
    tensors: tuple[str, ...] = ()  # Names of the tensors that were changed, or that show it


@dataclass(frozen=True)
class MovedUnit:
    """One hidden unit whose weights changed much."""

    space: str  # The title of its space
    unit: tuple[int, ...]  # Its number in the second network, after those of the parents' units, if any
    relative: float  # ``|b - a| / |a|`` over all weights that write or read the unit


@dataclass(frozen=True, eq=False, repr=False)
class Diff(Result):
    """The result of ``diff``.

    Attributes:
        verdict: ``"the same function"`` if the element and rounding explain everything, else ``"changed"``.
        reason: The ground of the verdict, in words.
        findings: What was done to the network, in sentences: first conversions and the element, then what remains.
        tensors: The change of every tensor, with the first network brought into the basis of the second.
        units: Hidden units whose weights changed most.
        output_error: Largest relative difference of the outputs on the example inputs; ``None`` if not run,
            infinity if their shapes differ.
        ambiguous: Tensors with an ambiguous partner, each with the reason.
        transformation: The element that brings the first network closest to the second, or ``None`` if their
            tensors could not be paired. It is not part of the saved result: use its own ``save``.

    Examples:
        >>> import copy, torch
        >>> import intertwine as iw
        >>> a = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> b = copy.deepcopy(a)
        >>> with torch.no_grad():
        ...     _ = b[2].bias.add_(1)
        >>> found = iw.diff(a, b, torch.randn(2, 4))
        >>> found.verdict, [t.name for t in found.tensors if t.relative > 1e-6]
        ('changed', ['2.bias'])
    """

    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    tensors: tuple[TensorChange, ...]
    units: tuple[MovedUnit, ...] = ()
    output_error: float | None = None
    ambiguous: tuple[str, ...] = ()
    transformation: Transformation | None = field(default=None, metadata=UNSAVED)

    @property
    def same_function(self) -> bool:
        """Whether both networks compute the same function, up to rounding."""
        return self.verdict == SAME_FUNCTION

    @property
    def blocks(self) -> Mapping[str, float]:
        """The relative change ``|b - a| / |a|`` of all tensors of each block, in network order."""
        sums: dict[str, tuple[float, float]] = {}
        for t in self.tensors:
            if 0 <= t.relative < float("inf"):
                moved, size = sums.get(t.block, (0.0, 0.0))
                sums[t.block] = moved + (t.relative * t.norm) ** 2, size + t.norm**2
        return {block: (moved / size) ** 0.5 if size else 0.0 for block, (moved, size) in sums.items()}

    def summary(self) -> str:
        """The verdict, each finding, and the tensors and units that changed most."""
        lines = [f"{self.verdict}: {self.reason}", *(f"  * {f.text}" for f in self.findings)]
        if self.ambiguous:
            lines += ["ambiguous:", *(f"  {said}" for said in self.ambiguous[:_LISTED])]
        changed = sorted((t for t in self.tensors if not t.settled), key=lambda t: -t.relative if t.norm else 0.0)
        if changed:
            size = lambda t: f"{t.relative:8.3g}" if t.relative < float("inf") else " " * 8
            table = columns([("", t.name, size(t), f"{t.kind} {t.detail}") for t in changed[:_LISTED]])
            lines += ["tensors that changed most:", *table]
            lines += [f"  ... and {len(changed) - _LISTED} more"] if len(changed) > _LISTED else []
        return "\n".join(lines)

    _columns = (
        "tensor", "source", "block", "shape", "before", "after", "kind", "detail", "relative change", "cosine", "rank",
        "effective rank", "entries changed", "zeros before", "zeros after",
    )  # fmt: skip

    def _rows(self) -> list[dict[str, Any]]:
        """One row per tensor."""
        return [
            dict(zip(self._columns, (
                t.name, t.source, t.block, "x".join(map(str, t.shape)), *t.dtypes, t.kind, t.detail, t.relative,
                t.cosine, t.rank, t.effective_rank, t.changed, *t.zeros,
            ), strict=True))
            for t in self.tensors
        ]  # fmt: skip
