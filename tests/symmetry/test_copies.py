"""How parameters scale where every unit becomes several: by the operations that run, not by the kinds of modules."""

from fractions import Fraction

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.symmetry.find import copy_degrees


class Net(nn.Module):
    """Six units, written by ``lift``, used by a function of them and of the parameters ``p`` and ``q``."""

    def __init__(self, act, use, late=True):
        super().__init__()
        self.p, self.q, self.lift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6)), nn.Linear(3, 6)
        self.act, self.use, self.late = act, use, late

    def forward(self, x):
        early = None if self.late else 2 * self.p
        h = self.act(self.lift(x))
        return self.use(self, h, self.p if early is None else early)


def degrees(act, use, **options):
    model = Net(act, use, **options)
    found = copy_degrees(iw.symmetries(model, torch.randn(4, 3)).origin.program)
    return {name: degree for (name, axis, space), degree in found.items() if axis == 0 and name != "lift.bias"}


@pytest.mark.parametrize("act", [torch.relu, torch.tanh])
@pytest.mark.parametrize(
    ("use", "p", "q"),
    [
        (lambda s, h, p: h @ p, -1, 0),
        (lambda s, h, p: (h * s.q) @ p, -1, 0),
        (lambda s, h, p: (torch.tanh(h * s.q) * p).sum(-1), -1, 0),
        (lambda s, h, p: (h * p) @ (h * s.q).mT, 0, -1),
        (lambda s, h, p: (h * p) @ (h * p).mT, Fraction(-1, 2), 0),
        (lambda s, h, p: nn.functional.layer_norm(h, [6], s.q) @ p, -1, 0),
    ],
)
def test_every_sum_over_units_is_paid_for_once(act, use, p, q):
    assert degrees(act, use) == {"p": p, "q": q, "lift.weight": 0}
    assert degrees(act, use, late=False) == {"p": p, "q": q, "lift.weight": 0}  # in whatever order parameters are read


def test_what_no_power_makes_up_for_is_not_known():
    assert degrees(torch.tanh, lambda s, h, p: h @ p.softmax(0)) == {"p": None, "q": 0, "lift.weight": None}
    assert degrees(torch.relu, lambda s, h, p: h @ p.exp())["lift.weight"] == -1  # a scale of the units can
    gain = lambda s, h, p: (h * s.q) @ nn.functional.softplus(p)
    assert degrees(torch.relu, gain) == {"p": 0, "q": -1, "lift.weight": 0}  # a gain rather than what writes them
