"""Which group lies inside which, the smallest one that holds two, and groups by name."""

from .dense import DenseElement, GeneralLinear, Orthogonal, UnitRowSum
from .group import Element, Group
from .monomial import Monomial, Permutation, PositiveMonomial, SignedPermutation, Trivial
from .products import Product, Wreath

__all__ = ["compose", "is_subgroup", "join", "named", "names", "next_larger"]

# every kind with the kinds just above it; all inclusions of the library follow by going up
_ABOVE: dict[str, tuple[str, ...]] = {
    "trivial": ("permutation", "special_orthogonal"),
    "permutation": ("signed_permutation", "positive_monomial", "unit_row_sum"),
    "signed_permutation": ("monomial", "orthogonal"),
    "positive_monomial": ("monomial",),
    "monomial": ("general_linear",),
    "special_orthogonal": ("orthogonal",),
    "orthogonal": ("general_linear",),
    "unit_row_sum": ("general_linear",),
    "general_linear": (),
}
_MAKERS = {
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
    """The names that ``named`` knows, smaller groups first, then other words for them."""
    return (*_MAKERS, *_ALIASES)


def named(name: str, n: int) -> Group:
    """The group of a name, such as ``"g_relu"``.

    Args:
        name: One of ``names()``.
        n: Number of channels.

    Returns:
        The group.

    Raises:
        ValueError: If the name is unknown.

    Examples:
        >>> named("g_relu", 64)
        PositiveMonomial(64)
    """
    kind = _ALIASES.get(name, name)
    if kind not in _MAKERS:
        raise ValueError(f"name must be one of {', '.join(names())}. Got {name!r}.")
    return _MAKERS[kind](n)


def is_subgroup(inner: Group, outer: Group) -> bool:
    """Whether every element of ``inner`` is one of ``outer``, decided from their kinds, never from numbers.

    Args:
        inner: The group that may lie inside.
        outer: The group that may hold it.

    Returns:
        The answer; for products and wreath products by blocks, and ``False`` where the kinds do not tell.

    Examples:
        >>> is_subgroup(Permutation(3), Orthogonal(3)), is_subgroup(PositiveMonomial(3), Orthogonal(3))
        (True, False)
    """
    if inner.n != outer.n:
        return False
    if inner == outer or isinstance(outer, GeneralLinear):
        return True
    if isinstance(inner, Product) and isinstance(outer, Product):
        same = [f.n for f in inner.factors] == [f.n for f in outer.factors]
        return same and all(is_subgroup(a, b) for a, b in zip(inner.factors, outer.factors, strict=True))
    if isinstance(outer, Wreath) and isinstance(inner, Wreath):
        return inner.k == outer.k and is_subgroup(inner.base, outer.base)
    if isinstance(outer, Wreath) and isinstance(inner, Product):
        return len(inner.factors) == outer.k and all(is_subgroup(f, outer.base) for f in inner.factors)
    blocks = inner.factors if isinstance(inner, Product) else (inner.base,) if isinstance(inner, Wreath) else ()
    if blocks:
        kind = _kind(outer)
        # block-wise membership suffices for the kinds that are closed under direct sums and permutations of blocks
        closed = kind in _MAKERS and kind not in ("trivial", "special_orthogonal")
        return closed and all(is_subgroup(b, named(kind, b.n)) for b in blocks)
    if isinstance(outer, Product):
        return isinstance(inner, Trivial)
    if isinstance(outer, Wreath):
        return isinstance(inner, Trivial)
    return _kind(outer) in _up(_kind(inner)) or (inner.n == 1 and _kind(outer) in _up_of_one(_kind(inner)))


def next_larger(group: Group) -> tuple[Group, ...]:
    """The groups of this library just above ``group``: what must break an invariance that is exactly ``group``'s.

    Examples:
        >>> next_larger(SignedPermutation(4))
        (Monomial(4), Orthogonal(4))
    """
    return tuple(named(kind, group.n) for kind in _ABOVE.get(_kind(group), ("general_linear",)))


def join(a: Group, b: Group) -> Group:
    """The smallest group of this library that holds both; ``GeneralLinear`` at worst.

    Args:
        a: A group.
        b: Another on as many channels.

    Returns:
        The group.

    Raises:
        ValueError: If they act on different numbers of channels.

    Examples:
        >>> join(SignedPermutation(2), PositiveMonomial(2))
        Monomial(2)
    """
    if a.n != b.n:
        raise ValueError(f"both groups must act on as many channels. Got {a!r} and {b!r}.")
    candidates = (a, b, *(named(kind, a.n) for kind in _MAKERS))
    return next(c for c in candidates if is_subgroup(a, c) and is_subgroup(b, c))


def compose(a: Element, b: Element) -> Element:
    """``a b`` as a dense element of the join of their groups; kinds with a compact product have their own ``@``."""
    group = join(a.group, b.group)
    dtype = a.matrix().dtype if isinstance(a, DenseElement) else b.matrix().dtype
    return DenseElement(group, a.apply(b.matrix(dtype), dim=0))


def _kind(group: Group) -> str:
    if isinstance(group, Orthogonal):
        return "special_orthogonal" if group.special else "orthogonal"
    return next((kind for kind, maker in _MAKERS.items() if isinstance(maker, type) and type(group) is maker), "")


def _up(kind: str) -> set[str]:
    above = set(_ABOVE.get(kind, ()))
    return above.union(*(_up(k) for k in above)) | {kind}


def _up_of_one(kind: str) -> set[str]:
    """On one channel a permutation is the identity, and an orthogonal matrix a sign."""
    small = {"permutation": "trivial", "special_orthogonal": "trivial", "unit_row_sum": "trivial"}
    small |= {"orthogonal": "signed_permutation", "general_linear": "monomial"}
    return _up(small.get(kind, kind)) | {k for k, v in small.items() if v in _up(small.get(kind, kind))}
