"""Group axioms of elements, wreath products included, and their files."""

import pytest
import torch
from handmade import MAKERS, make

from intertwine._io import write_tensors
from intertwine.errors import CheckpointError
from intertwine.groups import GeneralLinear, Orthogonal, Permutation, Semidirect
from intertwine.symmetry.spaces import Space
from intertwine.symmetry.transformation import KINDS, identity, load, random


@pytest.fixture(params=MAKERS)
def sym(request):
    return make(request.param)[1]


def test_group_axioms(sym):
    f, g, h = (random(sym, seed) for seed in range(3))
    e = identity(sym)
    assert ((f @ g) @ h).allclose(f @ (g @ h))
    assert (g @ e).allclose(g) and (e @ g).allclose(g)
    assert (g @ ~g).is_identity(1e-9) and (~g @ g).is_identity(1e-9)
    assert (~(g @ h)).allclose(~h @ ~g)
    assert (~~g).allclose(g)
    assert not (g @ h).allclose(h @ g)


def test_composition_is_exact_for_permutations(sym):
    g, h = (random(sym, seed, kinds={"permutation"}) for seed in (0, 1))
    assert (g @ ~g).is_identity(0.0)
    assert (~(g @ h)).allclose(~h @ ~g, 0.0)


def test_kinds_partition_an_element(sym):
    for kind in KINDS:
        g = random(sym, 3, kinds={kind})
        assert g.allclose(random(sym, 3).restrict(kinds={kind}), 0.0)
        others = set(KINDS) - {kind}
        assert g.restrict(kinds=others).is_identity(0.0)


def test_restricting_to_spaces(sym):
    g = random(sym, 0)
    for space in g.spaces:
        alone = g.restrict(spaces={space})
        assert torch.equal(alone[space].permutation, g[space].permutation)
        assert all(alone.restrict(spaces={other}).is_identity(0.0) for other in g.spaces if other != space)


def test_saved_elements_load_exactly(sym, tmp_path):
    g = random(sym, 4)
    loaded = load(g.save(tmp_path / "g.safetensors"))
    assert loaded.allclose(g, 0.0)
    assert (loaded @ g).allclose(g @ g, 0.0)
    described = [[(n, e.group, e.parents) for n, e in h.elements.items()] for h in (loaded, g)]
    assert described[0] == described[1]


def test_same_seed_same_element(sym):
    assert random(sym, 5).allclose(random(sym, 5), 0.0)
    assert not random(sym, 5).allclose(random(sym, 6))


def test_random_is_moderate():
    g = random((Space("v", Semidirect(GeneralLinear(40))), Space("w", Semidirect(Orthogonal(40)))), seed=0)
    assert torch.linalg.cond(g["v"].linear) < 3
    assert torch.allclose(g["w"].linear @ g["w"].linear.mT, torch.eye(40, dtype=torch.float64))


def test_bad_input(tmp_path):
    a, b = random((Space("a", Permutation(3)),)), random((Space("b", Permutation(3)),))
    with pytest.raises(ValueError, match="one symmetry"):
        a @ b
    with pytest.raises(ValueError, match="kinds must be among"):
        random((Space("a", Permutation(3)),), kinds={"rotation"})
    with pytest.raises(ValueError, match="spaces must be among"):
        a.restrict(spaces={"b"})
    with pytest.raises(ValueError, match="parents must be known"):
        identity((Space("a", Permutation(3), ("missing",)),))
    with pytest.raises(CheckpointError, match="must be an existing file"):
        load(tmp_path / "nothing.safetensors")
    other = tmp_path / "weights.safetensors"
    write_tensors(other, {"w": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="written by save"):
        load(other)
