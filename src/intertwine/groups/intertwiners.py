"""The group that passes through an activation, and what its elements become behind the activation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .activations import RULE_NAMES, Homogeneity, known_activation, named_activation
from .group import Group, MatrixElement
from .measured_activations import measure
from .monomial import Monomial, MonomialElement, Permutation

__all__ = ["GatedIntertwiner", "Intertwiner", "TableRow", "classify", "intertwiner", "table"]

GATED_UNITS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "glu": "sigmoid", "bilinear": "identity"}


@dataclass(frozen=True)
class Intertwiner:
    """The intertwiner group of a scalar activation: ``sigma(A x) = phi(A) sigma(x)`` for ``A`` in the group.

    Examples:
        >>> found = intertwiner("relu", n=3)
        >>> found.group, found.how
        (PositiveMonomial(3), 'known')
        >>> e, x = found.group.random(), torch.randn(5, 3, dtype=torch.float64)
        >>> torch.allclose(e.apply(x, 1).relu(), found.phi(e).apply(x.relu(), 1))  # sigma(A x) = phi(A) sigma(x)
        True
    """

    name: str  # The activation
    homogeneity: Homogeneity  # The scalar laws that determine the group (Theorem E.14; except affine and linear)
    how: Literal["known", "measured"]  # By proof, or measured on a grid
    n: int | None = None  # Number of channels, or ``None`` for the family over all ``n``
    residual: float = 0.0  # If measured, the largest relative violation of an accepted law; 0 if known
    margin: float = float("inf")  # How far the closest rejected law is from holding; ``inf`` if known
    note: str = ""  # Caveat beyond the group
    function: Callable[[Tensor], Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def group(self) -> Group:
        """The group on ``n`` channels.

        Raises:
            ValueError: If the number of channels is not known yet; use ``group_for``.
        """
        if self.n is None:
            raise ValueError("n must be given for a group. Got None. Use intertwiner(activation, n) or .group_for(n).")
        return self.group_for(self.n)

    def group_for(self, n: int) -> Group:
        """The group on another number of channels."""
        return self.homogeneity.group(n)

    def phi(self, element: MatrixElement) -> MatrixElement:
        """The matrix behind the activation, ``B`` in ``sigma(A x) = B sigma(x)``.

        Equal to Lemma 3.1's ``sigma(A) sigma(I)^-1``, but computed from the scalar laws (Theorem E.14 ii), so without a
        matrix inverse, and also where ``sigma(I)`` is singular.

        Raises:
            ValueError: If ``element`` does not belong to the activation's group.
        """
        group = self.group_for(element.n)
        if not element.group.is_subgroup_of(group) and not group.contains(element.matrix()):
            raise ValueError(
                f"element must belong to {group!r}, the group of {self.name}. Got one of {element.group!r}."
            )
        if self.homogeneity.kind in ("linear", "affine"):
            return element
        if not isinstance(element, MonomialElement):
            element = group.from_matrix(element.matrix())
        if element.scale is None:  # type: ignore[attr-defined]
            return element
        return _rescaled(element, self.homogeneity.phi_scale(element.scale))  # type: ignore[attr-defined, arg-type]


@dataclass(frozen=True)
class GatedIntertwiner:
    """The intertwiner of a gated unit ``(v, u) -> v * sigma(u)`` with a value branch ``v`` and a gate branch ``u``.

    The same permutation acts on both branches and on the output. The value enters linearly, so it may also be
    multiplied by any nonzero scale ``d`` per unit, which appears in the output; the gate may be scaled as ``sigma``
    allows (positively for ReGLU, not at all for SwiGLU and GEGLU): ``(d P v) * sigma(e P u) = d phi(e) P (v *
    sigma(u))``.
    """

    name: str  # The unit
    gate: Intertwiner  # The intertwiner of ``sigma``
    n: int | None = None  # Number of units (half the width of the stacked input), or ``None``

    @property
    def how(self) -> Literal["known", "measured"]:
        """That of the gate's activation."""
        return self.gate.how

    @property
    def residual(self) -> float:
        """That of the gate's activation."""
        return self.gate.residual

    @property
    def group(self) -> Group:
        """The group that may act on the value branch: permutation and any nonzero scale.

        Raises:
            ValueError: If the number of units is not known.
        """
        if self.n is None:
            raise ValueError("n must be given for a group. Got None. Use intertwiner(unit, n) or .group_for(n).")
        return self.group_for(self.n)

    def group_for(self, n: int) -> Group:
        """The value branch's group on ``n`` units."""
        return Monomial(n)

    def gate_group_for(self, n: int) -> Group:
        """The gate branch's group on ``n`` units, whose permutation must be the value branch's."""
        h = self.gate.homogeneity
        if h.kind == "affine":
            return Permutation(n)
        return Monomial(n, scales=int(h.scales), signs=int(h.signs))

    def phi(self, value: MonomialElement, gate: MonomialElement | None = None) -> MonomialElement:
        """The element that acts on the output ``v * sigma(u)``: the value's scale times the scale behind the gate.

        ``value`` acts on ``v`` and ``gate`` on ``u``; without ``gate``, only the value's permutation acts on ``u``.

        Raises:
            ValueError: If the permutations differ or ``gate`` has a scale that its activation does not allow.
        """
        if gate is None:
            return _rescaled(value, value.scales())
        if not torch.equal(value.index.cpu(), gate.index.cpu()):
            raise ValueError("gate must carry the same permutation as value. Got another one.")
        allowed = self.gate_group_for(gate.n)
        if not allowed.contains(gate.matrix()):
            raise ValueError(f"gate must belong to {allowed!r}. Got an element of {gate.group!r}.")
        return _rescaled(value, value.scales() * self.gate.homogeneity.phi_scale(gate.scales()))


class TableRow(NamedTuple):
    """One line of the table of activations: all fields but the name are computed."""

    activation: str
    group: str
    phi: str
    how: str


def classify(activation: str | nn.Module | Callable[..., Any]) -> Homogeneity:
    """Scalar laws of an activation, given as to ``intertwiner``; gated units are refused.

    Raises:
        ValueError: If a name is unknown, or a measured function is not a scalar activation.

    Examples:
        >>> classify("tanh").parity, classify(lambda x: x**3).degree
        ('odd', Fraction(3, 1))
    """  # noqa: DOC502 - raised by the lookup or the measurement
    known = known_activation(activation)
    return known.homogeneity if known is not None else measure(activation).homogeneity  # type: ignore[arg-type]


def intertwiner(
    activation: str | nn.Module | Callable[..., Any], n: int | None = None
) -> Intertwiner | GatedIntertwiner:
    """The intertwiner group of an activation (paper 1, Def. 3.2, Table 1), known by proof or measured.

    Args:
        activation: A name (``"relu"``, ``"leaky_relu:0.1"``, ``"swiglu"``), a module (any slope is taken exactly), a
            torch function, or any scalar function of yours, which is then measured in float64 (limits in
            ``intertwine.groups.measured_activations``).
        n: Number of channels; ``None`` for the family over all ``n``.

    Raises:
        ValueError: If a name is unknown, the function is constant or not a scalar activation, or ``n`` is not positive.

    Examples:
        >>> intertwiner(nn.LeakyReLU(0.1), n=3).group
        PositiveMonomial(3)
        >>> mine = intertwiner(lambda x: x * torch.tanh(x), n=3)
        >>> mine.group, mine.how
        (SignedPermutation(3), 'measured')
    """  # noqa: DOC502 - raised by the lookup or the measurement
    if n is not None:
        Permutation(n)  # the same check of n as every group's
    if isinstance(activation, str) and activation in GATED_UNITS:
        return GatedIntertwiner(activation, _scalar(GATED_UNITS[activation], n), n)
    if isinstance(activation, nn.GLU):
        return GatedIntertwiner("glu", _scalar("sigmoid", n), n)
    found = _scalar(activation, n)
    _ = found.homogeneity.kind_of_group  # refuses constants
    return found


def _scalar(activation: str | nn.Module | Callable[..., Any], n: int | None) -> Intertwiner:
    known = known_activation(activation)
    if known is not None:
        return Intertwiner(known.name, known.homogeneity, "known", n, note=known.note, function=known.function)
    found = measure(activation)  # type: ignore[arg-type]
    name, note = getattr(activation, "__name__", type(activation).__name__), "measured for 1e-6 <= |x| <= 1e6"
    return Intertwiner(name, found.homogeneity, "measured", n, found.residual, found.margin, note)


def table(names: tuple[str, ...] | None = None) -> list[TableRow]:
    """Table 1 of paper 1 and beyond, computed, for activations by name; by default for every known one.

    Examples:
        >>> table(("relu", "rbf"))[1]
        TableRow(activation='rbf', group='matrices P D, D with entries -1 and 1', phi='abs(A)', how='known')
    """
    rows = []
    for name in names if names is not None else (*RULE_NAMES, "leaky_relu:1", "leaky_relu:-1", "power:3", *GATED_UNITS):
        found = intertwiner(name)
        if isinstance(found, GatedIntertwiner):
            words = f"value: {found.group_for(2).words}; gate: {found.gate_group_for(2).words}, same P"
            phi = f"A_value scaled by phi of the gate ({found.gate.homogeneity.phi_words})"
            rows.append(TableRow(name, words, phi, found.how))
        else:
            h = found.homogeneity
            rows.append(TableRow(named_activation(name).name, h.group(2).words, h.phi_words, found.how))
    return rows


def _rescaled(element: MonomialElement, scale: Tensor) -> MonomialElement:
    """The same permutation with other scales, in the smallest group that allows them."""
    group = Monomial(element.n, scales=int(not bool((scale.abs() == 1).all())), signs=int(bool((scale < 0).any())))
    return group.element(element.index, scale)
