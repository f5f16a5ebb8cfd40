"""Groups by name."""

from collections.abc import Callable

from .._words import near
from .dense import GeneralLinear, Orthogonal, UnitRowSum
from .group import Group
from .monomial import Monomial, Permutation, PositiveMonomial, SignedPermutation, Trivial

__all__ = ["canonical_name", "name_of", "named", "names"]

_MAKERS: dict[str, Callable[[int], Group]] = {  # smaller groups first
    "trivial": Trivial,
    "permutation": Permutation,
    "signed_permutation": SignedPermutation,
    "positive_monomial": PositiveMonomial,
    "monomial": Monomial,
    "special_orthogonal": lambda n: Orthogonal(n, special=True),
    "orthogonal": Orthogonal,
    "unit_row_sum": UnitRowSum,
    "general_linear": GeneralLinear,
}
_ALIASES = {"identity": "trivial", "g_relu": "positive_monomial", "signed": "signed_permutation"}


def names() -> tuple[str, ...]:
    """Names that ``named`` knows, smaller groups first, then their other names."""
    return (*_MAKERS, *_ALIASES)


def canonical_name(name: str) -> str:
    """The canonical name of a group for any of its names; any other word stays as it is."""
    return _ALIASES.get(name, name)


def named(name: str, n: int) -> Group:
    """The group on ``n`` channels of one of ``names()``, such as ``"g_relu"``.

    Raises:
        ValueError: If the name is unknown.

    Examples:
        >>> named("g_relu", 64)
        PositiveMonomial(64)
    """
    kind = canonical_name(name)
    if kind not in _MAKERS:
        raise ValueError(f"name must be one of {', '.join(names())}. Got {name!r}.{near(name, names())}")
    return _MAKERS[kind](n)


def name_of(group: Group) -> str | None:
    """Name under which ``named`` knows a group; ``None`` if it has none."""
    return next((name for name, maker in _MAKERS.items() if maker(group.n) == group), None)
