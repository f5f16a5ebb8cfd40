"""Blocks of tensors that descend from another network, by their p-values."""

from collections.abc import Sequence
from math import log

from .changes.layer_names import block_of, runs
from .independence.in_place import TensorAgreement
from .result import BlockAgreement


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
    for block, members in groups.items():
        told = [t.log_p for t in members if t.log_p is not None]
        log_p = min(min(told) + log(len(told)), 0.0) if told else None
        cosine = sum(t.cosine for t in members) / len(members)
        equal = sum(t.equal for t in members)
        derived = log_p is not None and log_p <= log(level / len(groups))
        found.append(BlockAgreement(block, len(members), equal, cosine, log_p, derived))
    return tuple(found)


def parts_in_words(blocks: Sequence[BlockAgreement]) -> str:
    """Runs of blocks that were derived, and those without a sign of it."""
    tested = [b for b in blocks if b.log_p is not None]
    words = {
        True: ", ".join(runs([b.block for b in tested if b.derived])),
        False: ", ".join(runs([b.block for b in tested if not b.derived])),
    }
    said = f"derived: {words[True]}" if words[True] else ""
    return "; ".join(part for part in (said, f"no sign of it: {words[False]}" if words[False] else "") if part)
