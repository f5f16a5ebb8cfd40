"""The share of a small model's continuous symmetry that was found: the Jacobian's null space against our tangents."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._examples import widened
from ..._nested import tensors_in
from ..._result import Result
from ..._words import counted
from ...groups import Element
from ...testing import call, outputs
from ..action import moved, rewritable, tensors_of
from ..description import Description
from ..transformation import Transformation, identity
from .bias_shifts import candidates, confirmed

_LARGEST = 4000  # parameters of a model whose Jacobian is still quick to decompose
_STEP = 1e-6  # of the central differences that give tangents


@dataclass(frozen=True, repr=False)
class Completeness(Result):
    """The meter's reading.

    Attributes:
        nullity: Dimension of the directions in weight space that leave the outputs as they are, to first order.
        detected: Rank of the tangents of the symmetry that was found.
        shifted: What shift families add to that rank.
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

    def summary(self) -> str:
        """Dimension of the null space, and how much of it was found."""
        lines = [f"{self.detected + self.shifted} of {self.nullity} directions found, gap {self.gap}"]
        lines += [f"{kind} of {', '.join(tensors)}: {counted(n, 'direction')}" for kind, tensors, n in self.families]
        return "\n".join([*lines, f"largest change along a detected direction: {self.leak:.1e}"])

    def _rows(self) -> list[dict[str, Any]]:
        """One row."""
        families = ", ".join(kind for kind, _, _ in self.families)
        row = {name: value for name, value in self.to_dict().items() if name != "networks"}
        return [{**row, "families": families, "gap": self.gap}]


def completeness(sym: Description, model: nn.Module, inputs: Any) -> Completeness:
    """Compare the null space of ``d outputs / d parameters`` with the tangents of a symmetry.

    A diagnostic, never a proof. The null space holds directions that are no symmetry of the architecture, and the gap
    is not 0 there: weights of units that are dead or active on few of the inputs (a ReLU unit that never fires may
    change at will), layers that widen from a smaller rank, and too few inputs. Known to be missing from the shift
    families: biases that are pushed along a linear residual stream, past a branch. Give generic inputs, with more
    output numbers than the model has parameters. Batch norms belong to eval mode, where their statistics are not
    parameters: use models without them.

    Args:
        sym: The symmetry.
        model: A small model, up to 4,000 parameters. It is left as it is.
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
    tangents = _tangents(sym, tensors_of(twin), list(named), count)
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
        flat = torch.cat([t.flatten() for t in _floats(call(model, inputs))])
        for i in range(min(count, len(flat))):
            grads = torch.autograd.grad(flat[i], list(named.values()), retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(grads, named.values())])
            )
    return torch.stack(rows).double()


def _floats(value: Any) -> list[Tensor]:
    return [t for t in tensors_in(value, dataclasses=True) if t.is_floating_point() and t.requires_grad]


def _tangents(sym: Description, state: dict[str, Tensor], names: list[str], count: int) -> Tensor:
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
    """Elements one step forth and back along every coordinate of a space."""
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
