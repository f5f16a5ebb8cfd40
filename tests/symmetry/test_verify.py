"""Verification passes on right symmetries, raises on wrong ones, and knows when it cannot see."""

import copy
from dataclasses import replace
from itertools import count

import pytest
import torch
from handmade import MAKERS, leaf, make, tensor
from made import Function, Made
from torch import nn

from intertwine.errors import VerificationError
from intertwine.groups import Monomial
from intertwine.symmetry import symmetries
from intertwine.symmetry.action import admissible, tensors_of
from intertwine.symmetry.proof import Verification, verify
from intertwine.testing import function_error


@pytest.mark.parametrize("name", MAKERS)
def test_right_symmetries_pass_and_controls_fail(name, tmp_path):
    model, sym, x = make(name)
    before = copy.deepcopy(model.state_dict())
    report = verify(sym, model.float(), x.float())
    assert report.worst < 1e-12 and report.dtype == torch.float64  # float32 models are compared in float64
    assert report.unseen == () and all(c.error > 1e-4 for c in report.controls)
    assert {c.space for c in report.checks} == {"all", *(s.name for s in sym.spaces)}
    assert all(torch.equal(t, before[n].to(t.dtype)) for n, t in model.state_dict().items())
    assert Verification.load(report.save(tmp_path / "v.json")) == report
    assert set(report.to_frame()["kind"]) >= {"permutation", "control"}
    assert str(report).startswith("passed: worst error")


def wrong_scale():
    model, sym, x = make("mlp")
    return model, replace(sym, layouts={**sym.layouts, "2.weight": tensor(leaf("b", 5, 1), leaf("a", 6, -2))}), x


def wrong_permutation():
    model, sym, x = make("mlp")
    nn.init.zeros_(model[0].bias)  # hides the mistake, unless the check randomises constant tensors
    return model, replace(sym, layouts={**sym.layouts, "0.bias": tensor(replace(leaf("x", 6), space="a"))}), x


def wrong_sign():
    model, sym, x = make("mlp")
    layouts = {name: replace(layout) for name, layout in sym.layouts.items()}
    layouts["0.weight"] = tensor(leaf("a", 6, 1, sign=(1,)), layouts["0.weight"].axes[1])
    return model, replace(sym, spaces=(replace(sym.spaces[0], group=Monomial(6)), sym.spaces[1]), layouts=layouts), x


def wrong_linear():
    model, sym, x = make("attention")
    spaces = tuple(s for s in sym.spaces if s.name != "vo")
    return model, replace(sym, spaces=(*spaces, replace(sym.space("vo"))), layouts=_transposed(sym)), x


def _transposed(sym):
    axis = sym.layouts["v.bias"].axes[0]
    same = replace(axis.factors[1], variance=1)
    wrong = tensor(sym.layouts["o.weight"].axes[0], replace(axis, factors=(axis.factors[0], same)))
    return {**sym.layouts, "o.weight": wrong}


@pytest.mark.parametrize(
    ("maker", "kind"),
    [(wrong_scale, "scale"), (wrong_permutation, "scale"), (wrong_sign, "sign"), (wrong_linear, "linear")],
)
def test_wrong_symmetries_raise(maker, kind):
    model, sym, x = maker()
    with pytest.raises(VerificationError, match=f"must keep the function.*{kind} of"):
        verify(sym, model, x)


def ignored():
    """The hidden space never reaches the output."""
    return Made(lambda m, x: x + 0 * m.net(x).sum(), net=make("mlp")[0])


def test_without_power_it_raises():
    _, sym, x = make("mlp")
    sym = replace(sym, layouts={f"net.{n}": lay for n, lay in sym.layouts.items()})
    with pytest.raises(VerificationError, match="a negative control must fail"):
        verify(sym, ignored(), x)


def test_spaces_that_are_not_seen_are_listed():
    model, sym, x = make("mlp")
    nn.init.zeros_(model[4].weight)
    report = verify(sym, model, x, randomise=False, strict=False)
    assert report.unseen == ("a", "b")
    nn.init.normal_(model[4].weight)
    nn.init.zeros_(model[2].weight)
    report = verify(sym, model, x, randomise=False)
    assert report.unseen == ("a",) and "not seen by these inputs: a" in str(report)


def lowering(lower):
    """Goes through float32 inside: by a cast, as some models do in their norms, or by a sum in float32."""
    return Made(lambda m, x: m.net[2:](lower(m.net[:2](x)).to(x.dtype)), net=make("mlp")[0])


def casting(lower):
    _, sym, x = make("mlp")
    sym = replace(sym, layouts={f"net.{n}": lay for n, lay in sym.layouts.items()})
    return verify(sym, lowering(lower), x)


def test_casts_inside_the_model_are_left_out():
    """What such a model computes is certified as tightly as by ``fold``."""
    report = casting(lambda x: x.float())
    assert report.dtype == torch.float64 and report.worst < report.rtol < 1e-10


class Buffered(nn.Module):
    """Writes into a buffer of low precision."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.relu(self.inner(x)).float()
        kept = torch.zeros(h.shape, dtype=torch.float32)
        kept[:] = h
        return (kept[:, None, :] * self.out.weight).sum(-1)


def test_writes_into_a_buffer_round_as_casts_do():
    model, x = Buffered(), torch.randn(5, 4)
    assert symmetries(model, x).verify(model, x).passed


def test_tolerance_comes_from_the_lowest_precision_seen():
    report = casting(lambda x: x[..., None].sum(-1, dtype=torch.float32))
    assert report.dtype == torch.float32 and 1e-12 < report.worst < report.rtol < 1e-4


class Noisy(nn.Module):
    calls = count(1)  # outside of the module, whose own attributes are put back after every run

    def forward(self, x):
        return x * next(self.calls)


def test_bad_input():
    model, sym, x = make("mlp")
    with pytest.raises(ValueError, match="same outputs twice"):
        verify(replace(sym, spaces=(), layouts={}), Noisy(), x)
    nn.init.constant_(model[4].weight, float("nan"))
    with pytest.raises(ValueError, match="finite numbers"):
        verify(sym, model, x, randomise=False)
    with pytest.raises(ValueError, match="on the meta device"):
        verify(sym, model.to("meta"), x)


def test_all_spaces_together_only():
    model, sym, x = make("grouped")
    report = verify(sym, model, x, per_space=False)
    assert {c.space for c in report.checks} == {"all"} and len(report.controls) == 1


@pytest.mark.parametrize("randomise", [True, False])
def test_batch_norm_without_a_gain_and_nearly_dead_channels(randomise):
    torch.manual_seed(0)
    conv, head = nn.Conv2d(2, 6, 3), nn.Linear(6, 3)
    model = (
        nn.Sequential(
            conv, nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.Flatten(2), Function(lambda x: x.mean(-1)), head
        )
        .double()
        .eval()
    )
    model[1].running_var.copy_(torch.tensor([1e-6, 0.0, 1.0, 2.0, 0.5, 1e-6]))
    x = torch.randn(4, 2, 6, 6).double()
    sym = symmetries(model, x)
    assert any(space.group.scales for space in sym.spaces)
    assert verify(sym, model, x, randomise=randomise).passed
    state = tensors_of(model)
    for seed in range(20):
        g = admissible(sym, sym.random(seed), state)
        assert function_error(model, sym.act(g, model), x) < 1e-9
        assert not g.restrict(kinds={"scale"}).is_identity(0.0)
    with pytest.raises(ValueError, match="admissible"):
        [sym.act(sym.random(seed), model) for seed in range(20)]
