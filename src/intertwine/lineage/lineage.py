"""Front door: whether one network was trained independently of another."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._words import counted
from ..symmetry.action import tensors_of
from .in_place import InPlace, in_place
from .parts import by_block, parts_in_words
from .ranks import fisher
from .result import DERIVED, EXACT, NO_SIGN, NOT_TESTED, UNTOLD, BlockAgreement, Lineage, power_of_ten

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["lineage", "lineage_of_states"]

_LEVEL = 1e-6
_PARTS = 1e-3  # level at which single blocks are named


def lineage(a: nn.Module, b: nn.Module, example_inputs: Any, level: float = _LEVEL) -> Lineage:
    """Test whether ``b`` was trained independently of ``a``, from weights alone.

    Exact in place: units of ``b`` that descend from ``a`` still stand where they stood. If ``b`` is independent of
    ``a``, and its units were drawn from one law and trained alike, every order of its units is equally probable, which
    gives a p-value without any model of training (as in S. Zhu et al., Independence Tests for Language Models, 2025).
    The statistic is the score of ``ranks``; the p-values of the spaces are independent of each other, since each reads
    only axes that it and earlier spaces order, and are combined by Fisher's rule.

    Args:
        a: One network. Both are left as they are.
        b: The other, of the same architecture; heads and other tensors of another shape are left out.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        level: The p-value from which on independence is rejected.

    Returns:
        The verdict with its p-value. "Derived" means: not independent. Which came first, or whether both go back to
        a common start, the p-value does not say.

    Raises:
        ValueError: If both are one object, or have no tensor with units in common; or a tensor is quantised or holds
            NaN or infinity.

    Examples:
        >>> import intertwine as iw
        >>> import torch
        >>> make = lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
        >>> a, c = make(), make()
        >>> b = make()
        >>> _ = b.load_state_dict({n: t + 0.02 * torch.randn_like(t) for n, t in a.state_dict().items()})
        >>> iw.lineage(a, b, torch.zeros(2, 8)).verdict, iw.lineage(a, c, torch.zeros(2, 8)).verdict
        ('derived', 'no sign of descent')
    """
    if a is b:
        raise ValueError("b must be another network than a. Got one object twice: any network agrees with itself.")
    from ..symmetry import symmetries

    return lineage_of_states(symmetries(a, example_inputs), tensors_of(a), tensors_of(b), level)


def lineage_of_states(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], level: float = _LEVEL
) -> Lineage:
    """The exact test in place of two checkpoints, in memory or read tensor by tensor (``ShardedState``).

    Args:
        sym: The symmetry of the architecture, found on the meta device for instance.
        a: Tensors of one network.
        b: Those of the other.
        level: The p-value from which on independence is rejected.

    Raises:
        ValueError: If they have no tensor with units in common; or a tensor is quantised or holds NaN or infinity.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1. Got {level}.")
    found = in_place(sym, a, b)
    if not any(s.units for s in found.spaces):
        raise ValueError(
            "b must share hidden units with a: tensors of one name and shape. Got "
            f"{counted(len(found.tensors), 'tensor')} in common, and none with such units: other architectures cannot "
            "be compared in place."
        )
    return _judged(found, level, _notes(sym, a, b, found))


def _judged(found: InPlace, level: float, notes: tuple[str, ...]) -> Lineage:
    """The verdict of the exact test."""
    blocks = by_block(found.tensors, _PARTS)
    verdict, reason, log_p = _verdict(found, blocks, level)
    evidence = NOT_TESTED if log_p is None else EXACT
    return Lineage(verdict, reason, evidence, log_p, level, found.spaces, blocks, found.tensors, notes)


def _verdict(found: InPlace, blocks: tuple[BlockAgreement, ...], level: float) -> tuple[str, str, float | None]:
    """Verdict, its ground, and the logarithm of the p-value."""
    tested = [s for s in found.spaces if s.log_p is not None]
    if not tested:
        why = "; ".join(sorted({s.note for s in found.spaces}))
        return UNTOLD, f"no space of units could be tested in place: {why}", None
    log_p = fisher(s.log_p for s in tested if s.log_p is not None)
    units = sum(s.units for s in tested)
    same = round(sum(s.agreeing * s.units for s in tested))
    said = f"{same:,} of {counted(units, 'hidden unit')} are most like the unit in the same place; independent "
    said += f"trainings agree so well with probability {power_of_ten(log_p).removeprefix('= ')}"
    if log_p <= log(level):
        common = "Which came first, or a common start, is not told apart"
        return DERIVED, f"{said}. {parts_in_words(blocks)}. {common}", log_p
    return NO_SIGN, f"{said}. Units that were permuted or rotated would look the same", log_p


def _notes(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], found: InPlace) -> tuple[str, ...]:
    """What was left out."""
    shared = {t.tensor for t in found.tensors}
    reshaped = [n for n in sym.layouts if n in a and n in b and n not in shared]
    absent = [n for n in sym.layouts if n not in b]
    equal = [t.tensor for t in found.tensors if t.equal]
    notes = [f"{s.space} was not tested: {s.note}" for s in found.spaces if s.note]
    listed = ((reshaped, "left out, of another shape in b"), (absent, "left out, not in b"))
    for names, what in (*listed, (equal, "the same in both, number by number")):
        if names:
            notes.append(f"{what}: {', '.join([*names[:4], *(['...'] if len(names) > 4 else [])])}")
    return tuple(notes)
