"""The verdict on two networks: whether they are the same, and what differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._result import UNSAVED, Result
from ..._words import columns
from ...symmetry.transformation import Transformation
from ..correspondence.correspond import APART, Correspondence

SAME = "the same network up to symmetry"
RELATED = "related (merged, fine-tuned)"
DIFFERENT = "different"
UNTOLD = "cannot be told"
PART = "one is part of the other"
_LISTED = 12  # tensors listed in a summary


@dataclass(frozen=True, eq=False, repr=False)
class Match(Result):
    """The result of ``same``; true if the networks are the same up to symmetry; ``bool()`` raises if this is unknown.

    Attributes:
        verdict: One of ``SAME``, ``PART``, ``RELATED``, ``DIFFERENT``, ``UNTOLD`` and ``APART``, "not comparable".
        residual: Share of the weights left unexplained by matching: the root mean square sine of the angles between
            tensors in balanced coordinates. It is 0 for the same network, 1 for orthogonal ones, and infinity for
            different architectures.
        deviation: Relative deviation below which 99.9 % of single weights stay.
        precision: Coarsest precision that a copy needs to have gone through to explain the deviation, or ``None``.
        chance: Residual left by networks with the same statistics but unrelated units, if the verdict needed it;
            else ``None``.
        reason: The ground of the verdict, in words.
        moved: Whether units of ``a`` must be permuted or rescaled, or its bases changed, to agree with ``b``.
        differing: Tensors that differ by more than rounding once ``a`` is moved, each with ``|b - a| / |a|`` (gains,
            and maps that they may be folded into, in balance); infinity for a tensor that only one network has, or that
            has another shape. Batch norms count as their eval-mode affine maps, under the names of their gain and
            bias. Empty for networks that are the same, and for different architectures.
        transformation: The element that brings ``a`` closest to ``b``, or ``None`` for different architectures. It is
            not part of the saved result: use its own ``save``. It moves ``a``, whatever the code of ``b``, or
            ``fold(a, x).model`` if both were folded.
        correspondence: The entries of ``a`` and ``b`` that correspond, if code or names differ; not saved.
    """

    verdict: str
    residual: float
    deviation: float
    precision: str | None
    reason: str
    transformation: Transformation | None = field(default=None, metadata=UNSAVED)
    chance: float | None = None
    differing: Mapping[str, float] = field(default_factory=dict)
    moved: bool = True
    correspondence: Correspondence | None = field(default=None, metadata=UNSAVED)

    def __bool__(self) -> bool:
        if self.verdict in (APART, UNTOLD):  # unknown is not no
            raise ValueError(
                f"verdict must be decided for a match to be true or false. Got {self.verdict!r}: "
                f"{self.reason}. Read .verdict instead."
            )
        return self.verdict == SAME

    def summary(self) -> str:
        """The verdict with its ground, and a line for every tensor that differs (if many, those that differ most)."""
        shown = list(self.differing.items())
        more = len(shown) - _LISTED
        if more > 0:
            shown = sorted(shown, key=lambda item: -item[1])[:_LISTED]
        apart = lambda d: f"differs by {d:.3g} of its size in a" if d < float("inf") else "only in one, or reshaped"
        lines = columns([("", name, apart(d)) for name, d in shown])
        less = ", which differ less" if more > 0 and shown[-1][1] < float("inf") else ""
        lines += [f"  and {more:,} more{less}"] if more > 0 else []
        still = self.verdict == SAME and not self.moved
        verdict = "the same network, with nothing permuted or rescaled" if still else self.verdict
        return "\n".join([f"{verdict}: {self.reason}", *lines])

    def _rows(self) -> list[dict[str, Any]]:
        """One row; the tensors that differ are named in one string."""
        row = {name: value for name, value in self.to_dict().items() if name != "networks"}
        return [{**row, "differing": ", ".join(self.differing)}]
