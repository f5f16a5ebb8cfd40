"""Agreement of two networks block by block."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from .changes.layers import block_of, runs
from .in_place import TensorAgreement


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


def by_block(tensors: Sequence[TensorAgreement], level: float) -> tuple[BlockAgreement, ...]:
    """Agreement of blocks, of which with probability ``level`` any is called derived in independent networks.

    Tensors share the order of their units, so p-values are combined by Bonferroni's rule.
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
