"""Block update from cost matrices: the best permutation and signs, or the closest rotation, of one space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import torch
from torch import Tensor

from ...groups import SpaceGroup, assign
from ...groups.dense import polar_factor
from ...symmetry.detection.equations import BinarySpan, word_of
from ...symmetry.gauge.signs import solve_signs

__all__ = ["best_parts", "best_signs", "monomial_step"]

_MAX_SIGNS = 6  # sign generators of which all combinations are tried where their effects are tangled

Costs = Mapping[tuple[int, ...], Tensor]


def best_parts(costs: Costs, group: SpaceGroup, fast: bool = False) -> dict[str, Tensor]:
    """The parts of the element of one space with the largest total inner product: a rotation, or a monomial step."""
    if group.mixes:
        return {"linear": polar_factor(sum(costs.values(), start=torch.zeros(()))).cpu()}
    order, signs = monomial_step(costs, group.signs, group.permutes, fast)
    return {"permutation": order, "signs": signs}


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
    order = assign(gain, fast).cpu() if permutable else torch.arange(shape[-1]).expand(shape).clone()
    return order, choose(order)


def best_signs(costs: Costs, signs: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """For every pair of units the largest inner product that signs can reach.

    Returns:
        The gains ``(p..., n, n)``, and a function from the permutation to the signs ``(k, p..., n)`` that reach them.
        Where more than six generators are tangled the gains are upper bounds.
    """
    signed = {row: c for row, c in costs.items() if any(row)}
    plain = next((c for row, c in costs.items() if not any(row)), None)
    if plain is None:
        plain = torch.zeros_like(next(iter(costs.values())))
    if not signed:
        return plain, lambda order: torch.ones(signs, *order.shape, dtype=torch.float64)
    if BinarySpan(map(word_of, signed)).rank == len(signed) or signs > _MAX_SIGNS:
        return plain + sum(c.abs() for c in signed.values()), lambda order: _solved(signed, signs, order)
    choices = torch.tensor(list(product((1.0, -1.0), repeat=signs)), dtype=torch.float64)
    best, which = plain.new_full(plain.shape, -torch.inf), torch.zeros_like(plain, dtype=torch.int64)
    for number, choice in enumerate(choices):
        gain = plain + sum(float(torch.prod(choice[torch.tensor(row) == 1])) * c for row, c in signed.items())
        better = gain > best
        best, which = torch.where(better, gain, best), torch.where(better, number, which)
    table = which.cpu()
    return best, lambda order: choices[table.gather(-1, order[..., None])[..., 0]].movedim(-1, 0).contiguous()


def _solved(signed: Costs, signs: int, order: Tensor) -> Tensor:
    """Signs that make the inner products of matched units positive, largest total inner product first."""
    said = [(row, c.cpu().gather(-1, order[..., None])[..., 0]) for row, c in signed.items()]
    said.sort(key=lambda s: -float(s[1].abs().sum()))
    return solve_signs([row for row, _ in said], [value < 0 for _, value in said], signs, order.shape)
