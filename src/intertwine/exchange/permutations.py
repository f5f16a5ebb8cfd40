"""Permutations of each space, the same in every layer, for pruners and mergers; verified numerically."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..symmetry import Layout, Leaf, Space
from ..symmetry.action import moved
from ..symmetry.blocks import align, blocks
from ..symmetry.description import Description
from ..symmetry.proof import Probe, without_each
from ..symmetry.spaces import axis_size, spaces_of
from ..symmetry.transformation import random
from .exported_model import Proving, Subject
from .names import expression, unnumbered
from .result import Absent, Entry, Place, Proof


@dataclass(frozen=True)
class Held:
    """One tensor axis that holds the units of a space."""

    tensor: str  # Name of a parameter or buffer
    axis: int  # Its axis
    block: int  # Number of positions of one unit where these lie together and the units in order, 0 otherwise
    positions: tuple[tuple[int, ...], ...] = ()  # Otherwise the positions of each unit


def carriers(sym: Description, space: Space) -> Iterator[tuple[str, int]]:
    """Every tensor axis that carries a space."""
    for name, layout in sym.layouts.items():
        for axis, along in enumerate(layout.axes):
            if space.name in spaces_of([along]):
                yield name, axis


def _held(sym: Description, space: Space, tensor: str, axis: int) -> Held:
    units = unit_numbers(sym, space, tensor, axis)
    count = int(units.max()) + 1
    block = len(units) // count
    if torch.equal(units, torch.arange(len(units)) // block):
        return Held(tensor, axis, block)
    order = units.argsort(stable=True)[int((units < 0).sum()) :]
    split = order.split(torch.bincount(units[units >= 0]).tolist())
    return Held(tensor, axis, 0, tuple(tuple(rows.tolist()) for rows in split))


def unit_numbers(
    sym: Description, space: Space, tensor: str, axis: int, kept: Callable[[Leaf], bool] = lambda leaf: True
) -> Tensor:
    """Number of the unit of each position along an axis, first by the space's parents there; -1 where there is none."""
    along = sym.layouts[tensor].axes[axis]
    found = torch.full((axis_size(along),), -1)
    for block in blocks(Layout((along,))):
        if space.name not in block.spaces:
            continue
        leaf = block.leaves[block.spaces.index(space.name)]
        if not isinstance(leaf, Leaf) or not kept(leaf):
            continue
        index = torch.zeros(block.shape, dtype=torch.int64)
        for name in (*space.parents, space.name):
            if name in block.spaces:
                at = block.spaces.index(name)
                index = index * block.shape[at] + align(torch.arange(block.shape[at]), [at], len(block.shape))
        found[slice(None) if block.rows[0] is None else block.rows[0]] = index.flatten()
    return found


@dataclass(frozen=True)
class Units:
    """A space whose units may be permuted, and the tensor axes that hold it."""

    space: Space
    held: tuple[Held, ...]

    @property
    def outline(self) -> tuple[str, ...]:
        """Its tensor axes without the numbers of layers."""
        return tuple(dict.fromkeys(unnumbered(f"{h.tensor}[{h.axis}]") for h in self.held))


def units_of(sym: Description) -> list[Units]:
    """Every space of a symmetry whose units may be permuted, or removed, together."""
    free = [s for s in sym.spaces if s.group.permutes and s.size > 1]
    return [Units(s, tuple(_held(sym, s, *at) for at in carriers(sym, s))) for s in free]


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
        sides: tuple[dict[tuple[str, int], set[str]], ...] = {}, {}  # what is written and what is read
        for unit in group:
            for h in unit.held:
                sides[h.axis > 0].setdefault((unnumbered(h.tensor), h.axis), set()).add(h.tensor)
        writes, reads = (
            tuple(f"{expression(names, tensors)}[{axis}]" for (_, axis), names in side.items()) for side in sides
        )
        there_and_back = lambda unit, back: tuple(f"{h.tensor}[{h.axis}]" for h in unit.held if (h.axis > 0) == back)
        places = tuple(Place(there_and_back(u, False), there_and_back(u, True), u.space.name) for u in group)
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
    proof = probe.prove(changed, without_each(sym, changed))
    return Proof(proof.error, proof.control, proof.rtol, subject.described)
