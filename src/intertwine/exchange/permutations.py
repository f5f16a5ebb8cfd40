"""Permutations of each space, the same in every layer, for pruners and mergers; verified numerically."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..symmetry import Space
from ..symmetry.action import moved
from ..symmetry.description import Description
from ..symmetry.transformation import random
from ..symmetry.verification.probe import Probe
from .exported_model import Proving, Subject
from .names import expression
from .result import Absent, Entry, Place, Proof
from .units import Held, held

_WRITE, _READ = "0", "1"


@dataclass(frozen=True)
class Units:
    """A space whose units may be permuted, and the tensor axes that hold it."""

    space: Space
    held: tuple[Held, ...]

    @property
    def outline(self) -> tuple[str, ...]:
        """Its tensor axes without the numbers of layers."""
        return tuple(dict.fromkeys(re.sub(r"\d+", "#", f"{h.tensor}[{h.axis}]") for h in self.held))


def units_of(sym: Description) -> list[Units]:
    """Every space of a symmetry whose units may be permuted, or removed, together."""
    return [Units(s, held(sym, s)) for s in sym.spaces if s.group.permutes and s.size > 1]


def permutation_entries(
    subject: Subject, proving: Proving, units: Sequence[Units]
) -> tuple[tuple[Entry, ...], tuple[Absent, ...]]:
    """Entries of spaces generalised over layers, and the spaces that may not be permuted with the reason."""
    grouped: dict[tuple[str, ...], list[Units]] = {}
    for unit in units:
        grouped.setdefault(unit.outline, []).append(unit)
    there: dict[tuple[str, ...], list[str]] = {}
    if proving.probe is not None:
        for unit in units if proving.subject is subject else units_of(proving.subject.sym):
            there.setdefault(unit.outline, []).append(unit.space.name)
    tensors = list(subject.sym.layouts)
    entries = []
    for key, group in grouped.items():
        sides: dict[str, dict[str, set[str]]] = {_WRITE: {}, _READ: {}}
        for unit in group:
            for h in unit.held:
                side = _WRITE if h.axis == 0 else _READ
                sides[side].setdefault(f"{re.sub(r'[0-9]+', '#', h.tensor)}[{h.axis}]", set()).add(h.tensor)
        writes, reads = (
            tuple(f"{expression(names, tensors)}[{key.rpartition('[')[2]}" for key, names in side.items())
            for side in sides.values()
        )
        places = tuple(
            Place(
                tuple(f"{h.tensor}[0]" for h in unit.held if h.axis == 0),
                tuple(f"{h.tensor}[{h.axis}]" for h in unit.held if h.axis),
                unit.space.name,
            )
            for unit in group
        )
        proof = _proof(proving.subject, proving.probe, there[key]) if proving.probe and key in there else None
        entries.append(Entry("permutation", writes, reads, places, proof))
    return tuple(entries), tuple(_still(subject))


def _still(subject: Subject) -> list[Absent]:
    """Spaces that may be scaled or mixed and not permuted."""
    found: dict[tuple[str, str], list[str]] = {}
    for space in subject.sym.spaces:
        if not space.group.permutes:
            why = next((r.partition(": ")[2] for r in space.reasons if "no permutations" in r), "")
            key = re.sub(r"\.\d+\b", ".#", space.name), re.sub(r"\.\d+\b", ".#", why)
            found.setdefault(key, []).append(space.name)
    return [
        Absent(tuple(names), names[0] if len(names) == 1 else pattern, f"not permuted: {why}")
        for (pattern, why), names in found.items()
    ]


def _proof(subject: Subject, probe: Probe, spaces: list[str]) -> Proof:
    """Random permutations of some spaces, and a control that leaves one tensor as it was."""
    sym = subject.sym
    g = random(sym, 0, {"permutation"})
    for seed in range(1, 20):
        if not g.restrict(spaces=spaces).is_identity(0.0):
            break
        g = random(sym, seed, {"permutation"})
    changed = moved(sym, g.restrict(spaces=spaces), probe.tensors)
    error, control = probe.error(changed), 0.0
    for name in changed:
        if name in sym.aliases:
            continue
        control = max(control, probe.error({n: t for n, t in changed.items() if sym.aliases.get(n, n) != name}))
        if control > probe.rtol:
            break
    return Proof(error, control, probe.rtol, subject.described)
