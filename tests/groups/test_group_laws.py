"""Laws that every group obeys, over a registry of makers."""

import itertools

import pytest
import torch

from intertwine.groups import (
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    SignedPermutation,
    Trivial,
    Unattained,
    UnitRowSum,
    named,
    names,
)

N = 4
GROUPS = list(dict.fromkeys(named(name, N) for name in names()))  # some have two names
every_group = pytest.mark.parametrize("group", GROUPS, ids=repr)


def triples(group, count=3):
    return [[group.random(3 * i + k) for k in range(3)] for i in range(count)]


@every_group
def test_axioms(group):
    for a, b, c in triples(group):
        assert ((a @ b) @ c).allclose(a @ (b @ c))
        assert (a @ group.identity()).allclose(a) and (group.identity() @ a).allclose(a)
        assert (a @ ~a).allclose(group.identity()) and (~a @ a).allclose(group.identity())
        assert (~(a @ b)).allclose(~b @ ~a)
        assert (a @ b).group == group


@every_group
def test_product_and_action_are_those_of_matrices(group):
    for a, b, _ in triples(group):
        assert torch.allclose((a @ b).matrix(), a.matrix() @ b.matrix())
        x = torch.randn(5, N, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        before = x.clone()
        assert torch.allclose(a.apply(x), torch.einsum("ij,njhw->nihw", a.matrix(), x))
        assert torch.allclose(a.apply(x.movedim(1, -1), dim=-1), a.apply(x).movedim(1, -1))
        assert torch.equal(x, before)


@every_group
def test_members_are_recognised_and_the_next_larger_groups_are_not(group):
    assert all(group.contains(a.matrix()) for a, _, _ in triples(group, 5))
    for larger in group.above:
        assert group.is_subgroup_of(larger)
        assert any(not group.contains(larger.random(seed).matrix()) for seed in range(8))
    assert not group.contains(torch.full((N, N), torch.nan)) or group == Trivial(N)
    assert not group.contains(torch.zeros(N, N))


@every_group
def test_projection_fixes_members_and_beats_random_elements(group):
    a = group.random(0)
    assert group.project(a.matrix()).allclose(a)
    near = a.matrix() + 0.05 * torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).abs()
    best = (group.project(near).matrix() - near).norm()
    assert best <= (a.matrix() - near).norm() + 1e-12
    assert all(best <= (group.random(s).matrix() - near).norm() + 1e-12 for s in range(30))


@every_group
def test_values_hash_compare_and_print_as_they_are_made(group):
    assert eval(repr(group)) == group and hash(eval(repr(group))) == hash(group)
    assert group != named("general_linear", 5)
    a = group.random(0)
    assert a == group.random(0) and hash(a) == hash(group.random(0)) and (a != group.random(1) or group == Trivial(N))


@pytest.mark.parametrize("group", [Permutation(3), PositiveMonomial(3), Orthogonal(2)], ids=repr)
def test_elements_print_as_they_are_made(group):
    a = group.random(0)
    assert eval(repr(a)) == a


@every_group
def test_random_elements_come_from_their_seed_in_the_dtype_asked(group):
    generator = torch.Generator().manual_seed(5)
    assert group.random(generator) == group.random(5)
    assert group.random(0, dtype=torch.float32).matrix(torch.float32).dtype == torch.float32


@pytest.mark.parametrize("pair", list(itertools.product(GROUPS, GROUPS)), ids=str)
def test_inclusions_hold_for_random_elements_and_joins_hold_products(pair):
    a, b = pair
    inside = all(b.contains(a.random(s).matrix()) for s in range(12))
    assert a.is_subgroup_of(b) == inside
    both = a.join(b)
    assert a.is_subgroup_of(both) and b.is_subgroup_of(both)
    g, h = a.random(0), b.random(1)
    assert (g @ h).group == both and both.contains((g @ h).matrix())
    assert torch.allclose((g @ h).matrix(), g.matrix() @ h.matrix())


def test_join_is_the_smallest():
    assert SignedPermutation(3).join(PositiveMonomial(3)) == Monomial(3)
    assert Permutation(3).join(Orthogonal(3)) == Orthogonal(3)
    assert PositiveMonomial(3).join(Orthogonal(3)) == GeneralLinear(3)


def test_permutations_move_bits_of_any_dtype():
    g = Permutation(6).random(0)
    x = torch.tensor([[1.5, -0.0, torch.inf, torch.nan, 1e-45, 3.0]])
    assert torch.equal(g.apply(x).view(torch.int32), x.view(torch.int32)[:, g.index])
    assert torch.equal((~g).apply(g.apply(x)).view(torch.int32), x.view(torch.int32))
    words = torch.arange(6)
    assert torch.equal(g.apply(words, dim=0), words[g.index])
    assert g.scale is None and g.index.dtype == torch.int64


def test_dimensions_are_those_of_the_tangent_space():
    dims = {repr(g): g.dim for g in GROUPS}
    assert dims["Orthogonal(4)"] == 6 and dims["GeneralLinear(4)"] == 16 and dims["UnitRowSum(4)"] == 12
    assert dims["PositiveMonomial(4)"] == dims["Monomial(4)"] == 4 and dims["Permutation(4)"] == 0


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_a_wrong_number_of_channels_is_refused(n):
    with pytest.raises(ValueError, match=r"n must be a positive integer"):
        Permutation(n)


def test_wrong_input_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"name must be one of .*g_relu.*Got 'so'"):
        named("so", 3)
    with pytest.raises(ValueError, match=r"3 channels along dim 1.*shape"):
        Permutation(3).identity().apply(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"index must be a permutation"):
        Permutation(3).element([0, 0, 1])
    with pytest.raises(ValueError, match=r"scale must be 2 numbers of matrices P D, D with positive"):
        PositiveMonomial(2).element([0, 1], [1.0, -1.0])
    with pytest.raises(TypeError, match=r"floating point"):
        PositiveMonomial(2).element([0, 1], [1.0, 2.0]).apply(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"shape \(3, 3\).*Got \(2, 2\)"):
        Permutation(3).project(torch.eye(2))
    with pytest.raises(ValueError, match=r"finite"):
        Orthogonal(2).project(torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match=r"must belong to Orthogonal"):
        Orthogonal(2).element(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"same number of channels"):
        Permutation(2).join(Permutation(3))
    with pytest.raises(Unattained, match=r"invertible"):
        GeneralLinear(2).project(torch.ones(2, 2))


def test_a_projection_onto_the_boundary_is_refused_or_floored():
    m = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    with pytest.raises(Unattained, match=r"Pass floor="):
        PositiveMonomial(2).project(m)
    with pytest.raises(ValueError, match=r"floor must be positive. Got -0.1"):
        PositiveMonomial(2).project(m, floor=-0.1)
    assert PositiveMonomial(2).project(m, floor=0.1).matrix().tolist() == [[1.0, 0.0], [0.0, 0.1]]
    assert Monomial(2).project(m).matrix().tolist() == [[1.0, 0.0], [0.0, -1.0]]
    with pytest.raises(Unattained, match=r"nonzero"):
        Monomial(2).project(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert UnitRowSum(2).contains(UnitRowSum(2).project(torch.tensor([[3.0, 1.0], [0.0, 1.0]])).matrix())
