"""Units that hold spaces of their own (heads, groups): matched by what they could reach inside, then moved together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.transformation import Transformation, with_parts
from .assignment import assign, best_signs, closest_rotation, monomial_step
from .problem import Member

if TYPE_CHECKING:
    from ..symmetry.spaces import Space
    from .costs import Costs

__all__ = ["nested_step"]


def nested_step(costs: Costs, space: Space, fast: bool = False) -> Transformation:
    """The best step of a space together with the spaces directly inside it.

    The gain of putting unit ``j`` in place ``i`` counts, for each inner space, the best assignment (or rotation) of the
    inner units of ``j`` to those of ``i``. Tensors that carry several inner spaces are counted for the first one, so
    the step is a proposal; the caller keeps it only if the objective rises.

    Args:
        costs: Where ``b`` is now.
        space: A space that is the parent of others, and has no parents itself.
        fast: As in ``assign``.

    Returns:
        The step; the identity where the space has parents or may not be permuted.
    """
    sym = costs.problem.sym
    still = costs.still
    inside = [s for s in sym.spaces if s.parents == (space.name,)]
    if space.parents or not space.permutable or not inside:
        return still
    taken: set[tuple[str, int]] = set()
    products: dict[str, dict[tuple[int, ...], Tensor]] = {}
    for child in inside:
        own = [m for m in costs.problem.members[child.name] if (m.tensor, id(m.block)) not in taken]
        taken |= {(m.tensor, id(m.block)) for m in own}
        products[child.name] = {}
        for m in own:
            before = products[child.name].get(m.row)
            products[child.name][m.row] = _pairs(costs, m) if before is None else before + _pairs(costs, m)
    outer = [m for m in costs.problem.members[space.name] if (m.tensor, id(m.block)) not in taken]
    plain = costs.restricted(outer)
    gain, choose = best_signs(plain, space.signs) if plain else (torch.zeros(space.size, space.size), None)
    for child in inside:
        if products[child.name]:
            gain = gain + _reach(products[child.name], child, fast).to(gain)
    order = assign(gain, fast)
    signs = choose(order) if choose is not None else still[space.name].signs
    step = with_parts(still, space.name, permutation=order, signs=signs)
    for child in inside:
        pairs = products[child.name]
        if pairs:
            chosen = {row: p[torch.arange(space.size), order.to(p.device)] for row, p in pairs.items()}
            step = with_parts(step, child.name, **_inner_step(chosen, child, fast))
    return step


def _pairs(costs: Costs, member: Member) -> Tensor:
    """Inner products of the inner units of every unit with those of every other, ``(N, N, n, n)``."""
    a = member.view(member.block.read(costs.problem.a[member.tensor]))
    b = member.view(member.block.read(costs.present(member.tensor)))
    return torch.einsum("ikr,jlr->ijkl", a, b)


def _reach(pairs: dict[tuple[int, ...], Tensor], child: Space, fast: bool) -> Tensor:
    """The largest total inner product that each pair of units can reach, ``(N, N)``."""
    if child.linear != "none":
        return torch.linalg.svdvals(sum(pairs.values(), start=torch.zeros(()))).sum(-1)
    gain, _ = best_signs(pairs, child.signs)
    order = assign(gain, fast) if child.permutable else torch.arange(child.size).expand(gain.shape[:-1])
    return gain.gather(-1, order.to(gain.device)[..., None])[..., 0].sum(-1)


def _inner_step(pairs: dict[tuple[int, ...], Tensor], child: Space, fast: bool) -> dict[str, Tensor]:
    if child.linear != "none":
        return {"linear": closest_rotation(sum(pairs.values(), start=torch.zeros(()))).cpu()}
    order, signs = monomial_step(pairs, child.signs, child.permutable, fast)
    return {"permutation": order, "signs": signs}
