"""Theorem 4.2, stitching inside a residual block (v2 E.54-E.56, v1 E.33-E.35), Appendix C: exact statements."""

import pytest
import torch
from made import Function
from stitching_models import fingerprint, labelled, make
from torch import nn

import intertwine as iw
from intertwine.groups import Monomial, PositiveMonomial
from intertwine.stitching import Pair, StitchOptions, stitch
from intertwine.stitching.layer import Fixed
from intertwine.symmetry.action import act_on_features

# tap -> a parameter axis that reads it (dual) or writes it, from which the element at the tap is read
TAPS = {
    "mlp": {"1": ("2.weight", 1), "3": ("4.weight", 1)},
    "cnn": {"2": ("3.weight", 1), "5": ("4.bias", 0), "6": ("4.bias", 0)},
    "residual": {"relu.0": ("head.weight", 1), "head": None},
}


def symmetric_copy(kind, seed=0):
    """A network, a copy that is the same function, and the elements that made it."""
    model, x = make(kind)
    sym = iw.symmetries(model, x)
    g = sym.random(seed=seed)
    return model, sym.act(g, model), sym, g, x


def element(sym, g, place, width):
    """The matrix by which features at a place are transformed."""
    columns = act_on_features(sym, g, torch.eye(width, dtype=torch.float64), place, dual=place[1] == 1)
    return columns.T


def error(net, x, truth):
    return float(((net(x) - truth).abs().max() / truth.abs().max()).detach())


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_symmetric_copy_is_stitched_exactly_by_phi_of_its_element_at_every_layer(kind):
    model, twin, sym, g, x = symmetric_copy(kind)
    pair, truth = Pair(model, twin, x), model(x)
    for tap, place in TAPS[kind].items():
        cut = pair.cut(tap)
        a = element(sym, g, place, cut.tap.c_in)
        assert PositiveMonomial(len(a)).contains(a)
        assert error(cut.stitch(Fixed(a)), x, truth) < 1e-12
        assert error(cut.stitch(Fixed(torch.linalg.inv(a))), x, truth) > 0.1  # the printed direction
        assert error(cut.stitch(Fixed(torch.eye(len(a)))), x, truth) > 0.1


@pytest.mark.parametrize("name", ["square", "abs"])
def test_behind_other_activations_it_is_phi_of_the_element_and_not_the_element(name):
    f = {"square": torch.square, "abs": torch.abs}[name]

    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 6), Function(f), nn.Linear(6, 3)).double()
    e, x = Monomial(6).random(generator=1), torch.randn(9, 4, dtype=torch.float64)
    phi = iw.intertwiner(name, n=6).phi(e)
    b = nn.Sequential(nn.Linear(4, 6), Function(f), nn.Linear(6, 3)).double()
    with torch.no_grad():
        b[0].weight.copy_(e.matrix() @ a[0].weight), b[0].bias.copy_(e.matrix() @ a[0].bias)
        b[2].weight.copy_(a[2].weight @ (~phi).matrix()), b[2].bias.copy_(a[2].bias)
    pair, truth = Pair(a, b, x), a(x)
    assert error(pair.cut("1").stitch(Fixed(phi.matrix())), x, truth) < 1e-12
    assert error(pair.cut("1").stitch(Fixed(e.matrix())), x, truth) > 0.1
    assert error(pair.cut("0").stitch(Fixed(e.matrix())), x, truth) < 1e-12  # before the activation


def test_the_residual_trio():
    """Inside a block A's skip unmodified errs, mapped by A_r it is exact, and B's own skip is exact too."""
    model, twin, sym, g, x = symmetric_copy("residual")
    pair, truth = Pair(model, twin, x), model(x)
    stream = element(sym, g, ("head.weight", 1), 6)
    for block, tap in enumerate(("relu.1", "relu.3")):
        inner = element(sym, g, (f"outer.{block}.weight", 1), 6)
        cut = lambda skip, tap=tap: pair.cut(tap, skip)
        assert error(cut("a").stitch(Fixed(inner)), x, truth) > 0.1
        assert error(cut("mapped").stitch(Fixed(inner), [Fixed(stream)]), x, truth) < 1e-12
        assert error(cut("mapped").stitch(Fixed(inner), [Fixed(torch.eye(6))]), x, truth) > 0.1
        assert error(cut("b").stitch(Fixed(inner)), x, truth) < 1e-12


def test_outside_the_blocks_one_element_along_the_stream_is_exact():
    model, twin, sym, g, x = symmetric_copy("residual")
    cut = Pair(model, twin, x).cut("relu.0")
    assert not cut.inside_block
    assert error(cut.stitch(Fixed(element(sym, g, ("head.weight", 1), 6))), x, model(x)) < 1e-12


@pytest.mark.parametrize("kind", ["mlp", "cnn", "residual"])
def test_penalty_is_zero_at_every_relu_of_a_symmetric_copy(kind):
    """Theorem 4.2 as a measurement: the closed-form element, found from features alone."""
    model, twin, _, _, _ = symmetric_copy(kind)
    x = torch.randn(200, *make(kind)[1].shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    before = fingerprint(model), fingerprint(twin)
    taps = [tap for tap in TAPS[kind] if tap not in ("6", "head")]
    study = stitch(
        model, twin, taps, ["g_relu", "full"], loader=labelled(model, x), method="direct",
        options=StitchOptions(recalibration=False),
    )  # fmt: skip
    for s in study.stitchings:
        assert s.penalty == 0.0, s
        assert s.drift.residual < 1e-12
        assert s.agreement in (None, 1.0)
    assert (fingerprint(model), fingerprint(twin)) == before


def test_penalty_inside_a_block_of_a_symmetric_copy_is_not_zero():
    """Remark 3.6: the same copy, the same closed form, A's skip as it is."""
    model, twin, *_ = symmetric_copy("residual")
    x = torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    penalties = {
        skip: stitch(
            model, twin, "relu.1", loader=labelled(model, x), method="direct", options=StitchOptions(skip=skip)
        ).penalty
        for skip in ("a", "mapped", "b")
    }
    assert penalties["a"] > 0.1
    assert penalties["mapped"] == penalties["b"] == 0.0


def test_the_worked_example_of_appendix_c():
    """Two networks of one function; the paper prints [[0, 2], [1, 0]] and computes with [[0, 1], [2, 0]]."""

    def network(first, second):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor(first)), model[2].weight.copy_(torch.tensor(second))
        return model

    f = network([[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 1.0]])
    g = network([[0.0, 2.0], [1.0, 0.0]], [[0.0, 3.0], [1.0, 0.0]])
    x = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(f(x), g(x))
    cut, swap = Pair(f, g, x).cut("1"), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert error(cut.stitch(Fixed(swap)), x, f(x)) < 1e-15
    assert error(cut.stitch(Fixed(torch.eye(2))), x, f(x)) > 0.1
    for printed in ([[0.0, 2.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]]):
        assert PositiveMonomial(2).contains(torch.tensor(printed))
