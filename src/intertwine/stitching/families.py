"""Families by name or by group: from ``"rank-4"`` or ``Orthogonal(64)`` to a layer."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from .. import groups
from .._words import near
from ..groups import Group
from .layer import StitchingLayer
from .linear_layers import Diagonal, Full, Identity, Lasso, Orthogonal, Projected, Rank
from .permutation_layers import GReLU, Monomial, Permutation, SignedPermutation, SoftSort

_LAYERS: dict[str, type[StitchingLayer]] = {
    kind.family: kind
    for kind in (
        Identity, Diagonal, Permutation, SignedPermutation, GReLU, Monomial, SoftSort, Orthogonal, Full,
    )
}  # fmt: skip
_LAYERS["lasso"] = Lasso
_OF_GROUP = {groups.canonical_name(name): name for name in _LAYERS}  # the layer that is named for a group
_PROJECTED = [name for name in groups.names() if groups.canonical_name(name) not in _OF_GROUP]  # groups without one


def families() -> tuple[str, ...]:
    """The names that ``family_of`` knows; ``R`` and ``STRENGTH`` stand for numbers.

    Examples:
        >>> families()[-4:]
        ('full', 'rank-R', 'lasso', 'lasso-STRENGTH')
    """
    last = ("full", "rank-R", "lasso", "lasso-STRENGTH")
    return (*(name for name in _LAYERS if name not in last), "special_orthogonal", "unit_row_sum", *last)


def family_of(
    family: str | Group,
    c_in: int | None = None,
    c_out: int | None = None,
    *,
    bias: bool = False,
    channel_dim: int = 1,
    seed: int | torch.Generator = 0,
    **settings: Any,
) -> StitchingLayer:
    """A stitching layer at its random start, from ``c_in`` channels of network A to ``c_out`` of B.

    The family is one of ``families()``, such as ``"rank-4"`` or ``"lasso-0.01"``; or any group, with the channels of
    both sides, from which a layer is generated: permutations and signs are relaxed, and every other group projects
    after each step. Its settings, such as ``alpha=0.1`` for ``"g_relu"``, are those of its class.

    Raises:
        ValueError: If the family or one of its settings is unknown, the widths are missing, or they differ for a family
            of square matrices.

    Examples:
        >>> family_of("g_relu", 16, 16, alpha=0.01)
        GReLU('g_relu', 16 -> 16)
        >>> family_of(groups.Orthogonal(4)).dim
        6
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    common: dict[str, Any] = {"bias": bias, "channel_dim": channel_dim, "generator": generator}
    if isinstance(family, Group):
        n = family.n
        if (c_in or n, c_out or n) != (n, n):
            raise ValueError(f"both taps must have the {n} channels of {family!r}. Got {c_in} and {c_out}.")
        unknown = [name for name in settings if not takes(family, name)]
        if unknown:
            raise ValueError(f"settings must be of the family {family!r}. Got {', '.join(unknown)}.")
        if isinstance(family, groups.Monomial):
            return _relaxed(family)(n, n, **common, **settings)
        return Projected(family, **common)
    if c_in is None or c_out is None:
        raise ValueError(f"c_in and c_out must be given for a family by name. Got {c_in} and {c_out} for {family!r}.")
    name = _OF_GROUP.get(groups.canonical_name(family), family)
    if name in _PROJECTED:
        if c_in != c_out:
            raise ValueError(f"both taps must have equal widths for the family {name!r}. Got {c_in} and {c_out}.")
        return family_of(groups.named(name, c_in), bias=bias, channel_dim=channel_dim, seed=generator, **settings)
    kind, settings = _read(name, settings)
    own = _settings(kind)
    if unknown := [setting for setting in settings if setting not in own]:
        raise ValueError(
            f"settings must be of the family {name!r} ({', '.join(own) or 'it has none'}). Got {', '.join(unknown)}."
        )
    return kind(c_in, c_out, **common, **settings)


def takes(family: str | Group, setting: str) -> bool:
    """Whether a family, as for ``family_of``, has a setting, such as ``"alpha"``."""
    if isinstance(family, Group):
        return isinstance(family, groups.Monomial) and setting in _settings(_relaxed(family))
    name = _OF_GROUP.get(groups.canonical_name(family), family)
    return name not in _PROJECTED and setting in _settings(_read(name, {})[0])


def _relaxed(group: groups.Monomial) -> type[StitchingLayer]:
    """The layer that relaxes permutations and signs."""
    name = groups.name_of(group)
    if name is None:
        raise ValueError(
            f"family must permute channels, with at most one scale and one sign for each, as matrices have. Got "
            f"{group!r}: give {group.closed.reduced(scales=1, signs=1)!r}."
        )
    return _LAYERS[_OF_GROUP[name]]


def _read(name: str, settings: dict[str, Any]) -> tuple[Callable[..., StitchingLayer], dict[str, Any]]:
    """The class of a name and its settings, with the number that the name ends in."""
    head, _, number = name.partition("-")
    try:
        if head == "rank" and number:
            return Rank, {"rank": int(number), **settings}
        if head == "lasso" and number:
            return Lasso, {"strength": float(number), **settings}
    except ValueError:
        pass
    if name not in _LAYERS:
        known = families()
        raise ValueError(f"family must be one of {', '.join(known)}, or a group. Got {name!r}.{near(name, known)}")
    return _LAYERS[name], settings


def _settings(kind: Callable[..., StitchingLayer]) -> tuple[str, ...]:
    shared = ("c_in", "c_out", "bias", "channel_dim", "generator", "common")
    return tuple(name for name in inspect.signature(kind).parameters if name not in shared)
