"""Code that asks yes-or-no questions of tensors: every path is followed, and what moves may move on all of them."""

import logging
import warnings

import pytest
import torch
from made import Made
from torch import Tensor, nn

from intertwine.groups import PositiveMonomial
from intertwine.programs import capture, capture_paths
from intertwine.symmetry import symmetries
from intertwine.testing import function_error


def asking(ask):
    """Two layers; ``ask(model, x, h)`` gives what the second one reads."""
    return Made(lambda m, x: m.b(ask(m, x, m.a(x))), a=nn.Linear(3, 6), b=nn.Linear(6, 2), c=nn.Linear(3, 6))


def found(ask):
    torch.manual_seed(0)
    model = asking(ask).double()
    sym = symmetries(model, inputs(1.0))
    for x in (inputs(1.0), inputs(-1.0), inputs(0.0)):
        for kind in ("permutation", "scale", "sign", "linear"):
            twin = sym.act(sym.random(1, {kind}), model)
            assert function_error(model, twin, (x,)) < 1e-11 or sym.path_only, kind
    return sym


def inputs(mean: float) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double() + 5 * mean


def warned(model, x, h):
    if (x == 0).any():
        logging.getLogger("asking").error("zeros among the inputs")
        warnings.warn("zeros among the inputs", stacklevel=2)
    return h.relu()


def test_a_question_that_only_decides_a_warning(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sym = found(warned)
    assert not sym.path_only and not sym.notes and not caplog.records
    assert sym.dim == 6 and sym.space("a.weight[0]").group.permutes
    program = capture_paths(asking(warned).double(), (inputs(1.0),), {})
    assert "intertwine::read" not in [call.op for call in program.calls]


@pytest.mark.parametrize("mean", [1.0, -1.0])
def test_both_branches_are_seen(mean):
    branch = lambda model, x, h: h.relu() if (mean * x).sum() > 0 else h.tanh()
    sym = found(branch)
    assert not sym.path_only and sym.dim == 0 and sym.space("a.weight[0]").group.permutes


def test_a_layer_on_another_path_moves_with_the_rest():
    sym = found(lambda model, x, h: h.relu() if x.mean() > 0 else model.c(x))
    assert not sym.path_only and {a.space for n in "ac" for a in sym.layouts[f"{n}.weight"].axes[:1]} == {"a.weight[0]"}


def test_what_is_asked_of_units_holds_them():
    assert not found(lambda model, x, h: h.relu() if h[0, 0] > 0 else h.relu() + 1).spaces
    assert not found(lambda model, x, h: h if (h[:, 2] > 0).all() else h.relu()).spaces
    scaled = found(lambda model, x, h: h if (h > 0).any() else h.relu())
    assert scaled.dim == 6 and scaled.space("a.weight[0]").group == PositiveMonomial(6)


def test_questions_after_questions():
    def nested(model, x, h):
        if x.sum() > 0:
            return h.relu() if x.max() > 3 else h.tanh()
        return h.sin() if (x < -100).all() else h.relu()

    program = capture_paths(asking(nested).double(), (inputs(1.0),), {})
    ops = [call.op for call in program.calls]
    assert {"aten::relu", "aten::tanh", "aten::sin"} <= set(ops) and not program.reads


def guarded(model, x, h):
    assert not h.isnan().any(), f"numbers are missing in {h}"
    torch._assert((x > -100).all(), "inputs must be larger")
    for number in (x, h):
        if not torch.isfinite(number).all():
            raise ValueError(number)
    return h.relu()


def test_a_guard_is_no_path():
    """What raises gives no outputs; what it asks must stay as it is, lest a copy raises."""
    sym = found(guarded)
    assert not sym.path_only and not sym.notes
    assert sym.space("a.weight[0]").group == PositiveMonomial(6)


def test_a_guard_holds_what_it_asks():
    def small(model, x, h):
        if (h > 1e6).any():
            raise OverflowError
        return h.relu()

    sym = found(small)
    assert not sym.path_only and sym.dim == 0 and sym.space("a.weight[0]").group.permutes


def test_distributions_check_their_values():
    def drawn(model, x, h):
        posterior = torch.distributions.Normal(h, torch.nn.functional.softplus(h))
        return posterior.mean.relu() - posterior.log_prob(x[:, :1])

    assert not found(drawn).path_only


def test_what_is_asked_before_an_error_may_lead_elsewhere():
    def second(model, x, h):
        if (x > -100).all():
            return h.relu()
        if (x > 0).all():
            raise ValueError
        return h.tanh()

    sym = found(second)
    assert not sym.path_only and sym.dim == 0

    def number(model, x, h):
        if not (x > -100).all() and x.sum().item() < 0:
            raise ValueError
        return h.relu()

    assert found(number).path_only


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, x, h: h.relu() * x.max().item(),
        lambda model, x, h: h.relu() if (x > 0).any() and x.sum().item() > 0 else h.tanh(),
        lambda model, x, h: h.relu() if (x > -100).all() else h.missing(),
        lambda model, x, h: h.relu() if all(bool((x > k).any()) for k in range(-9, 0)) else h,
    ],
    ids=["a number", "a question and a number", "another answer fails", "too many questions"],
)
def test_other_paths_stay_open(ask):
    model = asking(ask).double()
    program = capture_paths(model, (inputs(1.0),), {})
    assert program.reads == capture(model, (inputs(1.0),)).reads != ()
    assert symmetries(model, inputs(1.0)).path_only
