"""The verdict on whether one network was trained independently of another, block by block, with its evidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any

from torch import Tensor, nn

from .._evaluation import check_module, unmasked
from .._io.lazy import State, check_unpacked
from .._result import Result, of_networks
from .._words import check_share, columns, counted, listed
from ..matching.coordinates.networks import gauge_of
from ..matching.correspondence.correspond import carrier_of
from ..matching.judgement.verdict import RELATED, SAME, Match
from ..symmetry import Symmetry, symmetries
from ..symmetry.action import moved, tensors_of
from .after_matching import FEWEST, Calibrated, calibrated
from .changes.layers import block_of
from .comparable import Compared, compared, met, on_host
from .descent import direction
from .in_place import BlockAgreement, InPlace, SpaceAgreement, TensorAgreement, by_block, cosine, equal, parts_in_words
from .p_values import power_of_ten

DERIVED = "derived"
NO_SIGN = "no sign of descent"
UNTOLD = "cannot be told"

EXACT = "exact"
CALIBRATED = "calibrated"
IDENTICAL = "identical"
NOT_TESTED = "not tested"

_LEVEL = 1e-6
_COMMON = 0.25  # share of the tensors that both must have: heads may be replaced, layers dropped
_PARTS = 1e-3  # level at which single blocks of a derived network are named
_ALIKE = 0.5  # mean cosine of tensors that unrelated networks do not reach, even aligned
_OPEN = ": one from the other, or both from the same start, such as one initialisation"


@dataclass(frozen=True, repr=False)
class Lineage(Result):
    """The result of ``lineage``: whether two trainings were independent.

    Attributes:
        verdict: ``"derived"``, ``"no sign of descent"`` or ``"cannot be told"``.
        reason: The ground of the verdict, in words.
        evidence: ``"exact"`` (a p-value under permuted units), ``"calibrated"`` (against independent networks),
            ``"identical"`` (weights agree number by number once moved, as far as rounding allows: no p-value) or
            ``"not tested"``.
        log_p: Natural logarithm of the p-value; ``None`` if nothing was tested.
        level: Significance level at which independence is rejected.
        by_space: Agreement of units by space: in place, with mutually independent p-values, or after matching if that
            was calibrated; empty if the verdict rests on neither.
        by_block: Agreement by block, on the evidence of the verdict.
        by_tensor: Agreement by tensor, in place, or after moving the first network if the verdict rests on that.
        notes: Remarks for the reader, such as tensors that only one network has.
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
        """The p-value for "the two trainings were independent"; 0.0 if it is below the smallest float."""
        return None if self.log_p is None else float(10.0 ** max(self.log_p / log(10), -400.0))

    @property
    def headline(self) -> str:
        """The verdict with its p-value, and the questions it leaves open."""
        p = "" if self.log_p is None else f", p {power_of_ten(self.log_p)}"
        return f"{self.verdict} ({self.evidence}{p}){_OPEN if self.verdict == DERIVED else ''}"

    def summary(self) -> str:
        """The verdict, its ground, a line for every block, and notes, with further reasons first."""
        equal = lambda b: f"  {b.equal} of {counted(b.tensors, 'tensor')} unchanged" if b.equal else ""
        table = [("", b.block, f"{self.told(b):<8}", self.ground(b) + equal(b)) for b in self.by_block]
        ground, *more = self.reason.split(". ")
        return "\n".join([self.headline, ground, *columns(table), *(f"note: {note}" for note in (*more, *self.notes))])

    def told(self, block: BlockAgreement) -> str:
        """The verdict on a block: derived, no sign of it, or, if nothing was tested, identical or unknown."""
        if block.derived or block.log_p is not None or self.evidence == IDENTICAL:
            return "derived" if block.derived else "no sign"
        return "identical" if block.equal == block.tensors else "untold"

    def ground(self, block: BlockAgreement) -> str:
        """The evidence on a block: its p-value, or its cosine after moving the first network."""
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


@of_networks("a", "b")
def lineage(
    a: nn.Module, b: nn.Module, example_inputs: Any = None, independent: Sequence[nn.Module] = (), level: float = _LEVEL
) -> Lineage:
    """Test, from weights alone, whether ``b`` was trained independently of ``a``.

    The test in place is exact: units of ``b`` that descend from ``a`` are still where they were. If ``b`` is
    independent of ``a``, and its units were drawn from one distribution and trained alike, every order of its units is
    equally probable. This gives a p-value without any model of training (as in S. Zhu et al., Independence Tests for
    Language Models, 2025). The statistic is the score of ``ranks``. The p-values of the spaces are mutually
    independent, since each uses only axes ordered by it and earlier spaces, and are combined by Fisher's rule.

    If units were permuted, rotated or flipped, that test sees nothing, and no test can be exact. Then, or if most units
    of one space moved, the networks are matched over the group of their architecture. If all weights agree up to
    rounding, the verdict rests on that; otherwise, the share that matching explains is compared with the share it
    explains for ``independent`` networks.

    Args:
        a: One network. Both are left as they are.
        b: The other, of the same architecture, in any code (``correspond``); heads and other tensors of another shape
            are left out.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments: any that the
            model takes, since they only serve to record its architecture.
        independent: At least four networks known to be independent of ``a``, with the architecture, task and recipe
            that ``b`` would have had on its own: other seeds. Eight give p-values of 1e-6 if ``b`` is far more similar.
        level: Significance level at which independence is rejected.

    Returns:
        The verdict with its p-value. "Derived" means: not independent. The p-value does not say which came first; the
        reason does, if weights were lost irrecoverably. A common start is never ruled out.

    Raises:
        ValueError: If no input is given; if both are one object, or differ in architecture; if a tensor is quantised
            or holds NaN or infinity; or if ``independent`` holds too few networks, or one that is not independent.

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
    for name, network in (("a", a), ("b", b), *(("independent", other) for other in independent)):
        check_module(network, name)
    if example_inputs is None:
        raise ValueError(
            "example_inputs must be given: the model is run on them once, to record its architecture. Got None. Any "
            "input that the model takes will do."
        )
    if a is b:
        raise ValueError("b must be another network than a. Got one object twice: any network agrees with itself.")

    a, *others = [unmasked(network) for network in (a, b, *independent)]
    networks = (a, *(_in_code_of(a, other, example_inputs) for other in others))
    first, second, *rest = map(tensors_of, networks)
    sym = symmetries(a, example_inputs)
    found = lineage_of_states(sym, first, second, rest, level)
    if found.verdict == DERIVED:
        return found
    return lineage_folded(networks, example_inputs, sym, level) or found


def _in_code_of(a: nn.Module, other: nn.Module, example_inputs: Any) -> nn.Module:
    """Another network in the code of ``a`` if their programs agree; else unchanged, since parts are compared too."""
    try:
        carry = carrier_of(a, other, example_inputs)
    except ValueError:
        return other
    return other if carry is None else carry(other)


def lineage_folded(
    networks: Sequence[nn.Module], example_inputs: Any, sym: Symmetry, level: float = _LEVEL
) -> Lineage | None:
    """The verdict after folding norms, which lets streams rotate; ``None`` if it finds nothing.

    Streams are rotated so that embeddings agree, which does not depend on the places of hidden units. So the test on
    hidden units is exact, even if ``b`` was rotated and then tuned; the streams' own units are not tested.

    ``networks`` are the two and the independent ones, in one code; ``sym`` is their symmetry before folding. The
    p-value is doubled, since this is the second test, after :func:`lineage_of_states`.
    """
    gauge = gauge_of(networks, example_inputs, sym)
    if gauge is None:
        return None
    first, second, *others = (on_host(tensors_of(gauge(network))) for network in networks)
    found = lineage_of_states(*met(gauge.sym, first, second), second, others, level / 2)
    if found.verdict == NO_SIGN or (found.verdict == UNTOLD and found.by_block):  # of units that none may move
        return None
    log_p = None if found.log_p is None else min(found.log_p + log(2), 0.0)
    said = "gains of norms were folded first, and streams rotated until embeddings meet"
    return replace(found, log_p=log_p, level=level, notes=(*found.notes, said))


@of_networks("a", "b", states=True)
def lineage_of_states(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    independent: Sequence[Mapping[str, Tensor]] = (),
    level: float = _LEVEL,
) -> Lineage:
    """The test of two checkpoints: in place, and after matching if independent networks are given.

    Args:
        sym: The symmetry of the architecture, found for instance on the meta device.
        a: Tensors of one network, in memory or, for the test in place, read one at a time (``StoredState``).
        b: Tensors of the other.
        independent: Tensors of networks known to be independent of ``a``.
        level: Significance level at which independence is rejected.

    Raises:
        ValueError: If they differ in architecture; if a tensor is quantised or holds NaN or infinity; or if
            ``independent`` holds too few networks, or one that is not independent.
    """
    check_share("level", level)
    if independent and len(independent) < FEWEST:
        raise ValueError(f"independent must hold at least {FEWEST} networks. Got {len(independent)}.")
    a, b, *independent = (on_host(unmasked(state)) for state in (a, b, *independent))
    pair = compared(sym, a, b)
    found = pair.in_place()
    if len(found.tensors) < _COMMON * len(pair.names):
        check_unpacked(a, b)
        raise ValueError(
            "b must be of the architecture of a, in any width and depth: tensors of one name. Got "
            f"{len(found.tensors)} of {counted(len(pair.names), 'tensor')} in common: other architectures cannot be "
            "compared."
        )
    judged = _judged(found, level, pair)
    if judged.verdict == DERIVED:
        if found.scattered and (match := pair.match()).verdict == SAME:
            return _identical(judged, pair, match)
        way, ground = direction(pair.widths.a, pair.widths.b, pair.common)
        first, second = ("a", "b") if way > 0 else ("b", "a")
        said = f"{second} was made from {first}, or both from a third, but not {first} from {second}"
        said = said if way else "Which came first, or a common start, is not told apart"
        return replace(judged, reason=f"{judged.reason}. {said}: {ground}")
    if not independent:
        return _matched(judged, pair)
    _check_independent(sym, [a, *independent], level)
    return _calibrated(judged, calibrated(sym, a, pair, independent))


def _check_independent(sym: Symmetry, states: Sequence[State], level: float) -> None:
    """Refuse networks if the exact test finds two related: their spread would be that of fewer networks."""
    for (j, one), (k, other) in combinations(enumerate(states), 2):
        log_p = compared(sym, one, other).in_place().log_p
        if log_p is not None and log_p <= log(level):
            whom = "a" if j == 0 else f"number {j}"
            raise ValueError(
                "independent must hold networks that are independent of a and of each other. Got one, number "
                f"{k}, that the exact test finds related to {whom} (p {power_of_ten(log_p)}): leave it out."
            )


def _matched(found: Lineage, pair: Compared) -> Lineage:
    """The verdict if no independent networks calibrate the match."""
    match = pair.match()
    if pair.agrees(match):
        return _identical(found, pair, match)
    assert match.transformation is not None
    alike_as_they_stand = bool(match.differing) and match.transformation.is_identity(0.0)  # listed in the notes
    if match.verdict != RELATED or alike_as_they_stand:
        return found
    reason = (
        f"after matching the networks are closer than networks of unrelated units ({match.reason}), but units of one "
        "task are alike without descent; give independent networks to calibrate how much"
    )
    notes = (f"in place: {found.reason}", *found.notes)
    return Lineage(UNTOLD, reason, NOT_TESTED, None, found.level, (), (), found.by_tensor, notes)


def _identical(found: Lineage, pair: Compared, match: Match) -> Lineage:
    """The verdict if the weights agree once matched: by tensor, with the first network moved."""
    assert match.transformation is not None
    whole, tensors = pair.padded(), []
    for name in whole.sym.layouts:
        x, y = moved(whole.sym, match.transformation, whole.a, [name]).get(name, whole.a[name]), whole.b[name]
        tensors.append(TensorAgreement(name, cosine(x, y), equal(x, y), None))
    differing = {block_of(n) for n in match.differing}
    blocks = tuple(replace(b, derived=b.block not in differing) for b in by_block(tensors, _PARTS))
    reason = f"moved by an element of the symmetry group of its architecture, {match.reason}"
    notes = (f"in place: {found.reason}", *pair.notes)
    return Lineage(DERIVED, reason, IDENTICAL, None, found.level, (), blocks, tuple(tensors), notes)


def _calibrated(found: Lineage, after: Calibrated) -> Lineage:
    """The verdict after matching; its p-value is doubled, since the test in place came first."""
    log_p = min(after.log_p + log(2), 0.0)
    shares = [x.explained for x in after.independent]
    count = counted(len(shares), "independent network")
    reason = (
        f"matched over the symmetry group of its architecture, a explains {after.found.explained:.1%} of b's weights "
        f"(squares), and {min(shares):.1%} to {max(shares):.1%} of {count}; one more independent network would be "
        f"explained so well with probability {power_of_ten(log_p).removeprefix('= ')} at most, if the tail of -log(1 - "
        "share) is no heavier than exponential"
    )
    blocks, verdict = by_block(after.tensors, _PARTS), NO_SIGN
    if log_p <= log(found.level):
        verdict, reason = DERIVED, f"{reason}. {parts_in_words(blocks)}. Which came first is not told apart"
    alone = 1 / (len(shares) + 1)
    said = f"without an assumption on that tail, {count} cannot give a p-value below {alone:.2g}"
    notes = (said, f"in place: {found.reason}", *found.notes)
    return Lineage(verdict, reason, CALIBRATED, log_p, found.level, after.spaces, blocks, found.by_tensor, notes)


def _judged(found: InPlace, level: float, pair: Compared) -> Lineage:
    """The verdict of the exact test."""
    derived = found.log_p is not None and found.log_p <= log(level)
    blocks = by_block(found.tensors, _PARTS if derived else level)
    if found.log_p is None:
        why = "; ".join(sorted({s.note for s in found.spaces})) or "this architecture lets no unit move"
        verdict, reason = UNTOLD, f"no space of units could be tested in place: {why}"
    else:
        tested = [s for s in found.spaces if s.log_p is not None]
        units, same = sum(s.units for s in tested), round(sum(s.agreeing * s.units for s in tested))
        reason = f"{same:,} of {counted(units, 'hidden unit')} are most like the unit in the same place; independent "
        reason += f"trainings agree so well with probability {power_of_ten(found.log_p).removeprefix('= ')}. "
        reason += parts_in_words(blocks) if derived else "Units that were permuted or rotated would look the same"
        verdict = DERIVED if derived else NO_SIGN
    evidence = NOT_TESTED if found.log_p is None else EXACT
    notes = tuple(_notes(found, blocks, derived, pair))
    return Lineage(verdict, reason, evidence, found.log_p, level, found.spaces, blocks, found.tensors, notes)


def _notes(found: InPlace, blocks: tuple[BlockAgreement, ...], derived: bool, pair: Compared) -> Iterator[str]:
    """Notes on other explanations of agreement in place, on what was not tested, and on identical tensors."""
    some = [b.block for b in blocks if b.derived]
    if some and not derived:
        yield (
            f"{', '.join(some)}: beyond chance alone, while all units together are not; that part descends, or its "
            "units stand in an order that both networks know"
        )
    layouts = pair.widths.sym.layouts  # gains are alike in all networks: ones, once they were folded
    cosines = [t.cosine for t in found.tensors if t.log_p is not None and len(layouts[t.tensor].axes) > 1]
    if derived and sum(cosines) < _ALIKE * len(cosines):
        yield (
            f"weights agree weakly (mean cosine {sum(cosines) / len(cosines):.2f}): a network trained independently "
            "and then aligned to the other, which puts its units into the other's order, looks the same"
        )
    yield from pair.notes
    for space in (s for s in found.spaces if s.note):
        yield f"{space.space} was not tested: {space.note}"
    tested, b = {t.tensor for t in found.tensors}, pair.widths.b
    listed_as = {
        "left out, of another shape in b": [n for n in pair.names if n in b and n not in tested],
        "left out, not in b": [n for n in pair.names if n not in b],
        "the same in both, number by number": [t.tensor for t in found.tensors if t.equal],
    }
    for what, names in listed_as.items():
        if names:
            yield f"{what}: {listed(names, 4)}"
