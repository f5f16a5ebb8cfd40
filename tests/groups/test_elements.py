"""Laws of the elements of spaces' groups, one for every index of the leading axes, over a registry of groups."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from intertwine._io.codec import decode, encode
from intertwine.groups import (
    Element,
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    Representation,
    Semidirect,
    SignedPermutation,
    SpaceGroup,
    Trivial,
)
from intertwine.groups.representation import KINDS

N = 4
CHARGED = Representation(scale=(Fraction(1), Fraction(-2)), sign=(1,))
MONOMIAL = [Trivial(N), Permutation(N), SignedPermutation(N), PositiveMonomial(N), Monomial(N), Monomial(N, 3, 2)]
MIXED = [
    Semidirect(Orthogonal(N)),
    Semidirect(Orthogonal(N, special=True), Trivial(N)),
    Semidirect(GeneralLinear(N), Trivial(N)),
    Semidirect(GeneralLinear(N), Monomial(N)),
    Semidirect(GeneralLinear(N), Monomial(N, scales=2), CHARGED),
    Semidirect(Orthogonal(N), Monomial(N, scales=2), CHARGED),
]
groups = pytest.mark.parametrize("group", [*MONOMIAL, *MIXED], ids=repr)
AS_GIVEN = Representation(scale=(Fraction(1),), sign=(1,), variance=1)  # as the matrices themselves
MATRICES = [Permutation, SignedPermutation, PositiveMonomial, Monomial, Orthogonal, GeneralLinear]
matrix_groups = pytest.mark.parametrize("base", [kind(N) for kind in MATRICES], ids=repr)
shapes = pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)


def elements(group, shape, count=3):
    generator = torch.Generator().manual_seed(0)
    return [Element.random(group, generator, shape) for _ in range(count)]


def representations(group):
    """Representations under which the group's product is that of matrices."""
    charges = group.charges if isinstance(group, Semidirect) else None
    if charges is not None:
        scale = charges.scale or (Fraction(0),) * group.scales
        sign = charges.sign or (0,) * group.signs
        yield from (found := Representation(scale=scale, sign=sign, variance=1), found.dual)
    else:
        scale, sign = (Fraction(1), Fraction(-1, 2), Fraction(2))[: group.scales], (1, 0)[: group.signs]
        yield Representation(scale=scale, sign=sign)


@groups
@shapes
def test_axioms(group, shape):
    a, b, c = elements(group, shape)
    one = Element.identity(group, shape)
    assert ((a @ b) @ c).allclose(a @ (b @ c))
    assert (a @ one).allclose(a) and (one @ a).allclose(a)
    assert (a @ ~a).is_identity(1e-9) and (~a @ a).is_identity(1e-9)
    assert (~(a @ b)).allclose(~b @ ~a)
    assert a.is_identity() == (group == Trivial(N))


@groups
@shapes
def test_every_representation_is_a_homomorphism(group, shape):
    a, b, _ = elements(group, shape)
    for how in representations(group):
        assert torch.allclose((a @ b).matrix(how), a.matrix(how) @ b.matrix(how))
        assert torch.allclose((~a).matrix(how), torch.linalg.inv(a.matrix(how)))
        assert torch.allclose(a.matrix(how.dual), torch.linalg.inv(a.matrix(how)).mT)


@groups
@shapes
def test_the_action_is_that_of_the_matrices(group, shape):
    a, _, _ = elements(group, shape)
    x = torch.randn(*shape, 5, N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for how in representations(group):
        expected = torch.einsum("...ij,...bjc->...bic", a.matrix(how), x)
        assert torch.allclose(a.apply(x, -2, how), expected)


def test_matrices_that_no_one_way_of_scaling_follows_do_not_compose():
    a, b, _ = elements(Semidirect(GeneralLinear(N), Monomial(N), None), ())
    with pytest.raises(ValueError, match=r"keep the shape M D P"):
        a @ b
    with pytest.raises(ValueError, match=r"keep the shape M D P"):
        a.__invert__()
    a, b = (e.restrict({"permutation", "scale", "sign"}) for e in (a, b))
    assert (~(a @ b)).allclose(~b @ ~a)


@groups
def test_restrictions_keep_what_they_name(group):
    a, _, _ = elements(group, (2,))
    assert a.restrict(KINDS).allclose(a, 0.0) and a.restrict(()).is_identity(0.0)
    smaller = a.restrict({"permutation", "sign"})
    assert torch.equal(smaller.permutation, a.permutation) and torch.equal(smaller.signs, a.signs)
    assert smaller.linear is None and not smaller.scales.any()


def as_matrices(base, element):
    """The element of a group of matrices for every unit of one parent."""
    return [base.from_matrix(m) for m in element.matrix(AS_GIVEN)]


@matrix_groups
def test_elements_are_those_of_the_group_of_matrices(base):
    a, b, _ = elements(base if isinstance(base, Monomial) else Semidirect(base, Trivial(N)), (5,))
    x = torch.randn(5, 3, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = zip(a.matrix(AS_GIVEN), a.apply(x, -1, AS_GIVEN), as_matrices(base, a @ b), as_matrices(base, ~a))
    theirs = zip(as_matrices(base, a), as_matrices(base, b), x)
    for (matrix, moved, product, inverse), (g, h, features) in zip(ours, theirs):
        assert torch.allclose(g.matrix(), matrix) and base.project(matrix).allclose(g)
        assert torch.allclose(g.apply(features), moved)
        assert (g @ h).allclose(product) and (~g).allclose(inverse)


@matrix_groups
def test_nested_elements_are_those_of_the_wreath_product(base):
    group = base if isinstance(base, Monomial) else Semidirect(base, Trivial(N))
    generator = torch.Generator().manual_seed(0)
    a, b = ((Element.random(Permutation(5), generator), Element.random(group, generator, (5,), ("p",))) for _ in "ab")

    def whole(outer, inner):
        """Block ``i`` of the output is ``inner[i]`` of the block of the input that ``outer`` brings there."""
        blocks = torch.zeros(5, 5, N, N, dtype=torch.float64)
        blocks[torch.arange(5), outer.permutation] = inner.matrix(AS_GIVEN)
        return blocks.transpose(1, 2).reshape(5 * N, 5 * N)

    assert torch.allclose(whole(*a) @ whole(*b), whole(a[0] @ b[0], a[1] @ b[1].reindexed({"p": a[0]})))
    back = ~a[0]
    assert torch.allclose(torch.linalg.inv(whole(*a)), whole(back, (~a[1]).reindexed({"p": back})))
    assert not torch.allclose(whole(*a) @ whole(*b), whole(a[0] @ b[0], a[1] @ b[1]))  # index by index: another law


@groups
def test_kinds_are_those_that_move_something(group):
    a, _, _ = elements(group, (3,))
    parts = {kind: a.restrict({kind}) for kind in KINDS}
    assert group.kinds == tuple(kind for kind, part in parts.items() if not part.is_identity(0.0))
    for how in representations(group):
        still = torch.eye(N, dtype=torch.float64).expand(3, N, N)
        moving = [kind for kind in group.kinds if not torch.equal(parts[kind].matrix(how), still)]
        assert moving == [kind for kind in group.kinds if kind in how.kinds]


@groups
def test_the_same_kind_on_other_numbers_of_units(group):
    larger = group.on(N + 2)
    assert larger.n == N + 2 and larger.kinds == group.kinds and larger.on(N) == group


@groups
def test_fewer_generators_are_a_smaller_group(group):
    assert group.reduced() == group and group.reduced(mixes=False).mixes is False
    none = group.reduced(permutes=False, scales=0, signs=0, mixes=False)
    assert none == Trivial(N)
    if group.scales > 1:
        last = group.reduced(scales=[1])
        assert last.scales == 1 and (not group.mixes or last.charges.scale == CHARGED.scale[1:])


@groups
def test_groups_hash_print_and_save_as_they_are_made(group):
    assert eval(repr(group)) == group and hash(eval(repr(group))) == hash(group)
    assert decode(json.loads(json.dumps(encode(group, SpaceGroup))), SpaceGroup) == group


@pytest.mark.parametrize("kind", [Orthogonal, GeneralLinear])
def test_matrices_are_of_their_kind(kind):
    (a,) = elements(Semidirect(kind(N)), (5,), 1)
    singular = torch.linalg.svdvals(a.linear)
    assert torch.allclose(singular, torch.ones_like(singular)) == (kind is Orthogonal)
    assert float((singular[:, 0] / singular[:, -1]).max()) <= torch.e + 1e-9


def test_permutations_move_bits():
    (a,) = elements(Permutation(N), (3,), 1)
    x = torch.tensor([1.5, -0.0, torch.inf, torch.nan]).expand(3, N)
    moved = a.apply(x, -1, Representation())
    assert torch.equal(moved.view(torch.int32), x.view(torch.int32).gather(-1, a.permutation))
    scaled = replace(a, scales=torch.zeros(1, 3, N, dtype=torch.float64))
    assert scaled.diagonal(Representation(scale=(Fraction(1),))) is None


def test_an_element_inverts_its_matrices_once_and_never_those_that_are_learned(monkeypatch):
    made = []
    inverse = torch.linalg.inv
    monkeypatch.setattr(torch.linalg, "inv", lambda x: (made.append(1), inverse(x))[1])
    group = Semidirect(GeneralLinear(3))
    e = Element.random(group, torch.Generator().manual_seed(0))
    read, x = Representation(variance=-1), torch.randn(3, 2, dtype=torch.float64)
    assert torch.equal(e.apply(x, 0, read), e.apply(x, 0, read)) and len(made) == 1
    assert torch.allclose(e.mixing(read), inverse(e.linear).mT)
    learned = replace(e, linear=e.linear.clone().requires_grad_())
    for _ in range(2):  # a graph that was kept could not be gone through again
        learned.mixing(read).sum().backward()
    assert len(made) == 3
