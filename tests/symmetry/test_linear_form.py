"""Chains of linear spaces: one balanced basis whatever basis they come in, also where ranks are deficient."""

import copy

import pytest
import torch
from made import Made
from noise import rms, shaken
from torch import nn

import intertwine as iw
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.symmetry.action import moved, tensors_of
from intertwine.symmetry.gauge.bases import general_bases, passing
from intertwine.symmetry.gauge.canonical import fold
from intertwine.symmetry.transformation import identity, with_parts
from intertwine.testing import function_error

Linear = nn.Linear


CASES = {
    "narrowing": lambda: nn.Sequential(Linear(6, 5), Linear(5, 4), Linear(4, 3)),
    "widening": lambda: nn.Sequential(Linear(3, 8), Linear(8, 2)),
    "deep": lambda: nn.Sequential(*(Linear(6, 6) for _ in range(4))),
    "tucker": lambda: Made(
        lambda s, x: s.o(torch.einsum("rst,br,bs->bt", s.core, s.a(x), s.b(x))), a=Linear(6, 5), b=Linear(6, 4),
        core=(5, 4, 7), o=Linear(7, 3),
    ),
    "residual": lambda: Made(
        lambda s, x: s.o((h := s.a(x)) + s.c(s.b(h))), a=Linear(6, 8), b=Linear(8, 4), c=Linear(4, 8), o=Linear(8, 3)
    ),
    "recurrent": lambda: Made(
        lambda s, x: s.o(s.h(s.h(s.i(x))) + s.i(x)), i=Linear(6, 5), h=Linear(5, 5), o=Linear(5, 3)
    ),
    "tied": lambda: Made(lambda s, x: (x @ s.w.T) @ s.w, w=(5, 6)),
}  # fmt: skip


def built(name, seed=0):
    torch.manual_seed(seed)
    model = CASES[name]().double()
    return model, torch.randn(9, 3 if name == "widening" else 6).double()


@pytest.mark.parametrize("name", CASES)
def test_copies_in_other_bases_are_one_network(name):
    model, x = built(name)
    sym = iw.symmetries(model, x)
    assert any(s.group.mixes for s in sym.spaces)
    for seed in range(2):
        twin = sym.act(sym.random(seed), model)
        one, two = iw.canonical(model, x, sym), iw.canonical(twin, x, sym)
        assert function_error(model, one, x) < 1e-10
        assert max((p - q).abs().max().item() for p, q in zip(one.parameters(), two.parameters())) < 1e-7
        assert iw.fingerprint(model, x, sym) == iw.fingerprint(twin, x, sym)
    assert iw.same(model, twin, x, sym).verdict == SAME
    assert iw.same(model, copy.deepcopy(twin).bfloat16().double(), x, sym).verdict == SAME
    again = iw.canonical(one, x, sym)
    assert max((p - q).abs().max().item() for p, q in zip(one.parameters(), again.parameters())) < 1e-7
    other = built(name, 7)[0]
    assert iw.same(model, other, x, sym).verdict == DIFFERENT
    assert iw.fingerprint(model, x, sym) != iw.fingerprint(other, x, sym)


@pytest.mark.parametrize("name", ["narrowing", "tucker", "residual"])
def test_other_weights_in_another_basis_are_related(name):
    model, x = built(name)
    sym = iw.symmetries(model, x)
    other = shaken(copy.deepcopy(model), 0.05, rms)
    found = iw.same(model, sym.act(sym.random(1), other), x, sym)
    assert found.verdict == RELATED and found.residual < 0.2 < found.chance


def test_both_forms_are_the_singular_values_of_the_composite_map():
    """One space between two maps: with Y X = U S V^T, weights along fixed axes included, X X^T = Y^T Y = S."""
    model = nn.Sequential(Linear(6, 4, bias=False), Linear(4, 5, bias=False)).double()
    sym = iw.symmetries(model, torch.zeros(2, 6).double())
    folded = fold(sym, tensors_of(model))
    basis = general_bases(sym, folded.state)["0.weight[0]"]
    g = with_parts(identity(sym), "0.weight[0]", linear=basis)
    state = {**folded.state, **moved(sym, g, folded.state)}
    place = lambda n: 1 + 0.5 * torch.frac(torch.arange(n).double() * 0.6180339887498949)
    x, y = state["0.weight"] * place(6), state["1.weight"] * place(5)[:, None]
    values = torch.linalg.svdvals(y @ x)[:4]
    torch.testing.assert_close(x @ x.mT, values.diag(), atol=1e-10, rtol=0)
    torch.testing.assert_close(y.mT @ y, values.diag(), atol=1e-10, rtol=0)


def test_what_does_not_pass_has_no_fingerprint():
    """Between two wide linear layers some entries reach nothing: no normal form, and none in the fingerprint."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Linear(3, 8), Linear(8, 8), Linear(8, 2)).double(), torch.randn(9, 3).double()
    sym = iw.symmetries(model, x)
    marks = {iw.fingerprint(sym.act(sym.random(seed), model), x, sym) for seed in range(4)}
    assert marks == {iw.fingerprint(model, x, sym)}
    normal = iw.canonical(model, x, sym)
    seen = passing(sym, tensors_of(normal))
    assert [int(s.sum()) for s in seen.values()] == [2, 2]
    other = copy.deepcopy(model)
    other[1].weight.data[0, 0] += 0.7
    assert iw.fingerprint(other, x, sym) not in marks


@pytest.mark.parametrize("widths", [(7, 6, 3), (3, 6, 7), (7, 9, 3)])
def test_directions_that_are_only_written_or_only_read_have_a_normal_form(widths):
    before, hidden, after = widths
    torch.manual_seed(0)
    chain = nn.Linear(before, hidden), nn.Linear(hidden, after)  # no fixed axis touches the space between them
    model = nn.Sequential(nn.Linear(4, before), nn.ReLU(), *chain, nn.ReLU(), nn.Linear(after, 2)).double()
    x = torch.randn(3, 4).double()
    sym = iw.symmetries(model, x)
    assert [s.size for s in sym.spaces if s.group.is_general] == [hidden]
    form = iw.canonical(model, x, sym)
    assert function_error(model, form, x) < 1e-12
    for seed in range(3):
        twin = iw.canonical(sym.act(sym.random(seed), model), x, sym)
        assert max((p - q).abs().max().item() for p, q in zip(form.parameters(), twin.parameters())) < 1e-7
