"""The verdict on the descent of one network from another, block by block, and how it is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from .._result import Result
from .._words import counted
from .changes.layers import block_of, runs
from .in_place import SpaceAgreement, TensorAgreement

DERIVED = "derived"
NO_SIGN = "no sign of descent"
UNTOLD = "cannot be told"

EXACT = "exact"
CALIBRATED = "calibrated"
IDENTICAL = "identical"
NOT_TESTED = "not tested"


@dataclass(frozen=True)
class BlockAgreement:
    """Agreement of the tensors of one block of a network.

    Attributes:
        block: Common beginning of the tensors' names.
        tensors: Number of its tensors.
        equal: How many of them are the same in both networks, number by number.
        cosine: Of all its weights as they stand.
        log_p: Natural logarithm of the p-value (Bonferroni over its tensors), or ``None`` where it was not tested.
        derived: Whether that is significant over all blocks: at 1e-3 in a network that is derived, else at the level.
    """

    block: str
    tensors: int
    equal: int
    cosine: float
    log_p: float | None
    derived: bool


@dataclass(frozen=True, repr=False)
class Lineage(Result):
    """Whether two trainings were independent.

    Attributes:
        verdict: ``"derived"``, ``"no sign of descent"`` or ``"cannot be told"``.
        reason: Its ground, in words.
        evidence: ``"exact"`` (a p-value under permuted units), ``"calibrated"`` (against independent networks),
            ``"identical"`` (weights agree number by number once moved, as far as rounding allows: no p-value) or
            ``"not tested"``.
        log_p: Natural logarithm of the p-value; ``None`` where nothing was tested.
        level: The p-value from which on independence is rejected.
        by_space: Agreement of units, space by space: in place with p-values that are independent of each other, or
            after matching where that was calibrated; empty where the verdict rests on neither.
        by_block: Agreement block by block: by what the verdict rests on.
        by_tensor: Agreement tensor by tensor, in place; once the first network was moved where that is the ground.
        notes: What a reader should know, such as tensors that only one network has.
    """

    verdict: str
    reason: str
    evidence: str
    log_p: float | None
    level: float
    by_space: tuple[SpaceAgreement, ...] = ()
    by_block: tuple[BlockAgreement, ...] = ()
    by_tensor: tuple[TensorAgreement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float | None:
        """The p-value for "the two trainings were independent"; 0.0 where it is below the smallest number."""
        return None if self.log_p is None else float(10.0 ** max(self.log_p / log(10), -400.0))

    @property
    def headline(self) -> str:
        """The verdict with its p-value."""
        return f"{self.verdict} ({self.evidence}{'' if self.log_p is None else f', p {power_of_ten(self.log_p)}'})"

    def summary(self) -> str:
        """The verdict, its ground, a line for every block, and notes: first what else the reason says."""
        width = max((len(b.block) for b in self.by_block), default=0)
        lines = [
            f"  {b.block:<{width}}  {'derived' if b.derived else 'no sign':<8}  {self.ground(b)}"
            + (f"  {b.equal} of {counted(b.tensors, 'tensor')} unchanged" if b.equal else "")
            for b in self.by_block
        ]
        ground, *more = self.reason.split(". ")
        return "\n".join([self.headline, ground, *lines, *(f"note: {note}" for note in (*more, *self.notes))])

    def ground(self, block: BlockAgreement) -> str:
        """What is known of a block: its p-value, or its cosine once the first network was moved."""
        if block.log_p is not None:
            return f"p {power_of_ten(block.log_p)}"
        return f"cosine {block.cosine:.4f} once moved" if self.evidence == IDENTICAL else "not tested"

    _columns = ("space", "units", "agreeing", "log10_p", "spearman", "spearman_log10_p", "note")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space."""
        return [
            dict(zip(self._columns, (
                s.space, s.units, s.agreeing, s.log_p and s.log_p / log(10),
                s.spearman, s.spearman_log_p / log(10), s.note,
            ), strict=True))
            for s in self.by_space
        ]  # fmt: skip


def power_of_ten(log_p: float) -> str:
    """A p-value for people, from its natural logarithm: such as ``"= 0.21"`` and ``"< 1e-189"``."""
    exponent = log_p / log(10)
    return f"= {10**exponent:.2g}" if exponent > -4 else f"< 1e{-int(-exponent)}"


def by_block(tensors: Sequence[TensorAgreement], level: float) -> tuple[BlockAgreement, ...]:
    """Agreement of blocks; tensors share the order of their units, so p-values are combined by Bonferroni's rule.

    Args:
        tensors: Agreement of tensors, in the order of the network.
        level: Probability that any block of independent networks is called derived.
    """
    groups: dict[str, list[TensorAgreement]] = {}
    for t in tensors:
        groups.setdefault(block_of(t.tensor), []).append(t)
    found = []
    for block, some in groups.items():
        told = [t.log_p for t in some if t.log_p is not None]
        log_p = min(min(told) + log(len(told)), 0.0) if told else None
        derived = log_p is not None and log_p <= log(level / len(groups))
        cosine = sum(t.cosine for t in some) / len(some)
        found.append(BlockAgreement(block, len(some), sum(t.equal for t in some), cosine, log_p, derived))
    return tuple(found)


def parts_in_words(blocks: Sequence[BlockAgreement]) -> str:
    """Runs of blocks that were derived, and those without a sign of it."""
    parts = {
        words: ", ".join(runs([b.block for b in blocks if b.log_p is not None and b.derived is derived]))
        for words, derived in (("derived", True), ("no sign of it", False))
    }
    return "; ".join(f"{words}: {named}" for words, named in parts.items() if named)
