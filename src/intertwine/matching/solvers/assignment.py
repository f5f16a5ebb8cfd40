"""Block update from cost matrices: assignments, signs and closest rotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...errors import MissingExtraError
from ...symmetry.gauge.signs import independent, solve_signs

__all__ = ["assign", "assign_nearly", "best_signs", "closest_rotation", "monomial_step"]

_EXACT = 512  # units of which the assignment is solved exactly in any case
_PREFERRED = 0.1  # share of units that prefer each other, below which the others are solved exactly
_MAX_SIGNS = 6  # sign generators of which all combinations are tried where their effects are tangled

Costs = Mapping[tuple[int, ...], Tensor]


def assign(gain: Tensor, fast: bool = False) -> Tensor:
    """The permutations with the largest total gain, ``max_p Σ_i gain[..., i, p[i]]``.

    Where every row has its largest entry in a column of its own, those entries are the optimum and nothing is solved.

    Args:
        gain: ``(..., n, n)``, on any device; the assignment itself runs on the CPU.
        fast: Solve by Jonker and Volgenant's algorithm of the extra ``[fast]`` instead of SciPy's; the same optimum,
            up to ties, and faster from some 2,000 units on.

    Returns:
        ``p``, int64 ``(..., n)`` on the CPU.
    """
    flat = gain.detach().to("cpu").reshape(-1, *gain.shape[-2:])
    order = flat.argmax(-1)
    clashing = (order.sort(-1).values != torch.arange(order.shape[-1])).any(-1)
    if not fast and not bool(clashing.any()):
        return order.reshape(gain.shape[:-1])
    solve = _solver(fast)
    for index in clashing.nonzero()[:, 0].tolist():
        order[index] = torch.as_tensor(solve(flat[index]), dtype=torch.int64)
    return order.reshape(gain.shape[:-1])


def assign_nearly(gain: Tensor, fast: bool = False) -> Tensor:
    """A permutation with almost the largest total gain: pairs that prefer each other, then the assignment of the rest.

    Up to 512 units it is the optimum. Costs of few degrees of freedom, such as distances of profiles, have many near
    ties, over which an exact assignment of thousands of units takes long.

    Args:
        gain: ``(n, n)``.
        fast: As in ``assign``.

    Returns:
        ``p``, int64 ``(n,)`` on the CPU.
    """
    gain = gain.detach().cpu()
    order = torch.empty(len(gain), dtype=torch.int64)
    rows = columns = torch.arange(len(gain))
    left = gain
    while len(left) > _EXACT:
        best = left.argmax(1)
        mutual = left.argmax(0)[best] == torch.arange(len(left))
        order[rows[mutual]] = columns[best[mutual]]
        kept = torch.ones(len(left), dtype=torch.bool).index_fill_(0, best[mutual], value=False)
        rows, columns = rows[~mutual], columns[kept]
        left = gain[rows][:, columns]
        if int(mutual.sum()) < _PREFERRED * len(mutual):
            break
    order[rows] = columns[assign(left, fast)]
    return order


def _solver(fast: bool) -> Callable[[Tensor], Any]:
    """The assignment of one matrix by SciPy, or by the extra ``[fast]``.

    Raises:
        MissingExtraError: If the extra is not installed.
    """
    if not fast:
        from scipy.optimize import linear_sum_assignment

        return lambda gain: linear_sum_assignment(gain.numpy(), maximize=True)[1]
    try:
        from lap import lapjv
    except ImportError:
        raise MissingExtraError("lapx", "fast") from None
    return lambda gain: lapjv((-gain).double().numpy())[1]


def monomial_step(costs: Costs, signs: int, permutable: bool, fast: bool = False) -> tuple[Tensor, Tensor]:
    """The permutation and signs of one space with the largest total inner product.

    Args:
        costs: By parities of the sign generators, the inner products ``(p..., n, n)`` of the slices with that parity:
            new place first, present place second.
        signs: Number of sign generators.
        permutable: Whether units may change places.
        fast: As in ``assign``.

    Returns:
        The permutation ``(p..., n)`` and the signs ``(k, p..., n)``, on the CPU.
    """
    gain, choose = best_signs(costs, signs)
    shape = gain.shape[:-1]
    order = assign(gain, fast) if permutable else torch.arange(shape[-1]).expand(shape).clone()
    return order, choose(order)


def best_signs(costs: Costs, signs: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """For every pair of units the largest inner product that signs can reach.

    Returns:
        The gains ``(p..., n, n)``, and a function from the permutation to the signs ``(k, p..., n)`` that reach them.
        Where more than six generators are tangled the gains are upper bounds.
    """
    first = next(iter(costs.values()))
    plain = sum((c for row, c in costs.items() if not any(row)), start=torch.zeros_like(first))
    signed = {row: c for row, c in costs.items() if any(row)}
    if not signed:
        return plain, lambda order: torch.ones(signs, *order.shape, dtype=torch.float64)
    if independent(list(signed)) or signs > _MAX_SIGNS:
        return plain + sum(c.abs() for c in signed.values()), lambda order: _solved(signed, signs, order)
    choices = torch.tensor(list(product((1.0, -1.0), repeat=signs)), dtype=torch.float64)
    best, which = plain.new_full(plain.shape, -torch.inf), torch.zeros_like(plain, dtype=torch.int64)
    for number, choice in enumerate(choices):
        gain = plain + sum(float(torch.prod(choice[torch.tensor(row) == 1])) * c for row, c in signed.items())
        better = gain > best
        best, which = torch.where(better, gain, best), torch.where(better, number, which)
    table = which.cpu()
    return best, lambda order: choices[table.gather(-1, order[..., None])[..., 0]].movedim(-1, 0).contiguous()


def closest_rotation(cross: Tensor) -> Tensor:
    """The orthogonal ``Q`` with the largest ``<Q, cross>``, ``(..., n, n)`` (Kabsch, Schönemann), in float64."""
    u, _, vh = torch.linalg.svd(cross.double())
    return u @ vh


def _solved(signed: Costs, signs: int, order: Tensor) -> Tensor:
    """Signs that make the inner products of matched units positive, largest total inner product first."""
    said = [(row, c.cpu().gather(-1, order[..., None])[..., 0]) for row, c in signed.items()]
    rows: list[tuple[int, ...]] = []
    bits: list[Tensor] = []
    for row, value in sorted(said, key=lambda s: -float(s[1].abs().sum())):
        if len(rows) < signs and independent([*rows, row]):
            rows.append(row)
            bits.append(value < 0)
    return solve_signs(rows, bits, signs, order.shape)
