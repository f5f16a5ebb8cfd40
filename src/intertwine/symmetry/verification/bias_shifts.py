"""Shift families: affine symmetries that move biases rather than mix units.

They lie outside the intertwiner groups of the paper: a bias pushed through linear maps into the next one, a direction
that a layer norm's mean removes, a key bias that softmax ignores, a value bias that passes attention into the output
bias. Candidates follow from the layouts alone; each is kept only if it leaves the outputs as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..description import Description
from ..spaces import Axis, Fixed, Leaf, Product, axis_size

_SILENT = 1e-9  # change of the outputs along a shift, relative to the Jacobian, that counts as none


@dataclass(frozen=True, eq=False)
class Shift:
    """One family of shifts."""

    family: str  # ``"ignored bias"``, ``"pushed bias"`` or ``"constant direction"``
    tensors: tuple[str, ...]  # Names of the tensors that it moves, the free one first
    tangents: Tensor  # ``(parameters, r)``, one column for each direction, in the order of the given parameters


def candidates(sym: Description, state: Mapping[str, Tensor], names: list[str]) -> Iterator[Shift]:
    """Shifts that the layouts suggest.

    Yields:
        Families; most are wrong for a given model, and ``confirmed`` tells which are right.
    """
    build = _builder(state, names)
    described = [n for n in names if n in sym.layouts]
    biases = [n for n in described if state[n].ndim == 1]
    matrices = [n for n in described if state[n].ndim == 2]
    for name in biases:
        n = len(state[name])
        yield Shift("ignored bias", (name,), build({name: torch.eye(n, dtype=torch.float64)}))
        axis = sym.layouts[name].axes[0]
        for reader in matrices if _moving(axis) else ():
            written, read = sym.layouts[reader].axes
            for other in biases if _spaces(read) == _spaces(axis) else ():
                if other != name and _spaces(sym.layouts[other].axes[0]) == _spaces(written):
                    push = {name: torch.eye(n, dtype=torch.float64), other: -state[reader]}
                    yield Shift("pushed bias", (name, other, reader), build(push))
    for name in described:
        if state[name].ndim and _moving(sym.layouts[name].axes[0]):
            rest = prod(state[name].shape[1:])
            ones = torch.ones(len(state[name]), 1, dtype=torch.float64)
            tangent = torch.einsum("ij,kl->ikjl", ones, torch.eye(rest, dtype=torch.float64)).reshape(-1, rest)
            yield Shift("constant direction", (name,), build({name: tangent}))


def confirmed(found: Iterator[Shift], jacobian: Tensor) -> list[Shift]:
    """The candidates, direction by direction, along which the outputs do not change, by their Jacobian."""
    norm = torch.linalg.matrix_norm(jacobian, 2)
    kept = []
    for shift in found:
        silent = (jacobian @ shift.tangents).norm(dim=0) <= _SILENT * norm * shift.tangents.norm(dim=0)
        if bool(silent.any()):
            kept.append(Shift(shift.family, shift.tensors, shift.tangents[:, silent]))
    return kept


def _builder(state: Mapping[str, Tensor], names: list[str]) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function from parts ``(entries, r)`` by name to whole tangents ``(parameters, r)``."""

    def build(parts: dict[str, Tensor]) -> Tensor:
        r = next(iter(parts.values())).shape[1]
        return torch.cat([parts.get(n, torch.zeros(state[n].numel(), r, dtype=torch.float64)) for n in names])

    return build


def _spaces(axis: Axis) -> tuple[object, ...]:
    """What an axis is made of, without exponents: enough to tell whether two axes index the same units."""
    if isinstance(axis, Leaf):
        return (axis.space,)
    if isinstance(axis, Fixed):
        return (axis.size,)
    if isinstance(axis, Product):
        return tuple(part for factor in axis.factors for part in _spaces(factor))
    return tuple((part.ranges, _spaces(part.axis)) for part in axis.parts)


def _moving(axis: Axis) -> bool:
    return axis_size(axis) > 1 and not isinstance(axis, Fixed)
