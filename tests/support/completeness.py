"""The share of a small model's continuous symmetry that was found: the Jacobian's null space against our tangents.

Shift families are counted beside the tangents of the group: affine symmetries that move biases rather than mix units,
outside the paper's intertwiner groups. They push a bias through linear maps into the next bias, add a direction that a
layer norm's mean removes, or change a key bias, which softmax ignores. Candidates follow from the layouts alone; each
is kept only if it leaves the outputs unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from intertwine._examples import run, widened
from intertwine._nested import tensors_in
from intertwine.groups import Element
from intertwine.symmetry.action import moved, rewritable, tensors_of
from intertwine.symmetry.description import Description
from intertwine.symmetry.spaces import Axis, Fixed, Leaf, Product, axis_size
from intertwine.symmetry.transformation import Transformation, identity
from intertwine.testing import outputs

_LARGEST = 4000  # parameters of a model whose Jacobian is still quick to decompose
_STEP = 1e-6  # of the central differences that give tangents
_SILENT = 1e-9  # change of the outputs along a shift, relative to the Jacobian, that counts as none


@dataclass(frozen=True)
class Completeness:
    """Result of the comparison.

    Attributes:
        nullity: Dimension of the directions in weight space that leave the outputs unchanged to first order.
        detected: Rank of the tangents of the symmetry that was found.
        shifted: Rank that the shift families add.
        leak: Largest change of the outputs along a detected tangent, relative to the Jacobian's norm: about 1e-9.
        parameters: Number of parameters.
        families: Each confirmed shift family: its kind, its tensors and how many directions it has.
    """

    nullity: int
    detected: int
    shifted: int
    leak: float
    parameters: int
    families: tuple[tuple[str, tuple[str, ...], int], ...] = ()

    @property
    def gap(self) -> int:
        """Directions that were not found."""
        return self.nullity - self.detected - self.shifted


def completeness(sym: Description, model: nn.Module, inputs: Any) -> Completeness:
    """Compare the null space of ``d outputs / d parameters`` with the tangents of a symmetry.

    A diagnostic, never a proof. The null space also holds directions that are no symmetry of the architecture, which
    leave a gap: weights of units that are dead or active on few inputs (a ReLU unit that never fires may change at
    will), layers that widen from a smaller rank, and directions that too few inputs leave free. Missing from the shift
    families: biases that are pushed along a linear residual stream, past a branch. Give generic inputs, with more
    output numbers than the model has parameters. Use models without batch norms: in eval mode their statistics are no
    parameters.

    Args:
        sym: The symmetry.
        model: A small model, up to 4,000 parameters. It is not changed.
        inputs: Example inputs.

    Returns:
        Nullity, rank of the detected tangents, and how exactly these lie in the null space.

    Raises:
        ValueError: If the model is too large or the outputs are too few.
    """
    twin = rewritable(sym, model).double().eval()
    inputs = widened(inputs)
    named = dict(twin.named_parameters())
    count = sum(p.numel() for p in named.values())
    if count > _LARGEST:
        raise ValueError(f"model must have at most {_LARGEST} parameters. Got {count}.")
    jacobian = _jacobian(twin, named, inputs)
    if jacobian.shape[0] < count:
        raise ValueError(
            f"outputs must hold at least as many numbers as there are parameters, {count}. Got {jacobian.shape[0]}: "
            "give more inputs."
        )
    tangents = tangents_of(sym, tensors_of(twin), list(named), count)
    families = confirmed(candidates(sym, tensors_of(twin), list(named)), jacobian)
    everything = torch.cat([tangents, *(f.tangents for f in families)], 1)
    norm = torch.linalg.matrix_norm(jacobian, 2).item()
    leak = (jacobian @ tangents).norm(dim=0).max().item() / norm if tangents.shape[1] else 0.0
    nullity = count - int(torch.linalg.matrix_rank(jacobian, rtol=1e-10))
    detected = _rank(tangents)
    named_families = tuple((f.family, f.tensors, f.tangents.shape[1]) for f in families)
    return Completeness(nullity, detected, _rank(everything) - detected, leak, count, named_families)


def _rank(columns: Tensor) -> int:
    return int(torch.linalg.matrix_rank(columns, rtol=1e-7)) if columns.shape[1] else 0


def _jacobian(model: nn.Module, named: dict[str, nn.Parameter], inputs: Any) -> Tensor:
    """Rows: output numbers; columns: parameters."""
    rows = []
    count = sum(t.numel() for t in outputs(model, inputs))
    with torch.enable_grad():
        flat = torch.cat([t.flatten() for t in _floats(run(model, inputs))])
        for i in range(min(count, len(flat))):
            grads = torch.autograd.grad(flat[i], list(named.values()), retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(grads, named.values())])
            )
    return torch.stack(rows).double()


def _floats(value: Any) -> list[Tensor]:
    return [t for t in tensors_in(value, dataclasses=True) if t.is_floating_point() and t.requires_grad]


def tangents_of(sym: Description, state: dict[str, Tensor], names: list[str], count: int) -> Tensor:
    """One column for every continuous coordinate of the group: central differences of the action at the identity."""
    columns = []
    unit = identity(sym)
    for name, e in unit.elements.items():
        for forth, back in _coordinates(e):
            plus = moved(sym, _with(unit, name, forth), state)
            minus = moved(sym, _with(unit, name, back), state)
            columns.append(
                torch.cat([((plus.get(n, state[n]) - minus.get(n, state[n])) / (2 * _STEP)).flatten() for n in names])
            )
    return torch.stack(columns, 1) if columns else torch.zeros(count, 0, dtype=torch.float64)


def _with(unit: Transformation, name: str, e: Element) -> Transformation:
    return Transformation({**unit.elements, name: e})


def _coordinates(e: Element) -> list[tuple[Element, Element]]:
    """Elements one step forward and back along every coordinate of a space."""
    found = []
    for i in range(e.scales.numel()):
        step = torch.zeros(e.scales.numel(), dtype=torch.float64)
        step[i] = _STEP
        step = step.reshape(e.scales.shape)
        found.append((replace(e, scales=step), replace(e, scales=-step)))
    if not e.group.mixes:
        return found
    n = e.group.n
    eye = torch.eye(n, dtype=torch.float64).expand(*e.permutation.shape, n)
    for index in torch.cartesian_prod(*(torch.arange(s) for s in eye.shape)).tolist():
        *parents, i, j = index
        turn = torch.zeros_like(eye)
        if e.group.is_orthogonal:
            if i >= j:
                continue
            turn[(*parents, j, i)] = -_STEP
        turn[(*parents, i, j)] = _STEP
        found.append(
            (replace(e, linear=torch.linalg.matrix_exp(turn)), replace(e, linear=torch.linalg.matrix_exp(-turn)))
        )
    return found


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
    """Candidates, reduced to the directions along which the outputs do not change by their Jacobian."""
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
