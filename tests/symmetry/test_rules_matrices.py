"""Inverses, exponentials and vector products between linear maps: which group passes, and that the function is kept."""

import pytest
import torch
from made import Made
from sandwich import group
from torch import nn

from intertwine.symmetry import symmetries
from intertwine.testing import function_error


@pytest.mark.parametrize(
    ("function", "out", "found"),
    [
        (lambda a, c, w: torch.linalg.inv(a.mT @ c), 4, "monomial"),
        (lambda a, c, w: torch.linalg.inv(c.mT @ a).mT, 4, "monomial"),
        (lambda a, c, w: torch.linalg.inv(a.mT @ a), 4, "held"),
        (lambda a, c, w: a @ torch.linalg.inv(a.mT @ a), 4, "monomial"),
        (lambda a, c, w: torch.linalg.inv(a.mT @ c).sum(1, keepdim=True) * a, 4, "monomial"),
        (lambda a, c, w: torch.linalg.cross(a[:, :3], c[:, 1:4], dim=1), 4, "monomial"),
        (lambda a, c, w: torch.linalg.cross(a[:, :3].relu(), c[:, 1:4].relu(), dim=1), 4, "positive"),
        (lambda a, c, w: torch.linalg.cross(a[..., :3], c[..., 1:4]), 3, "held"),
        (lambda a, c, w: torch.linalg.cross(a[:, :3], c[:, 1:2].sum(-1, keepdim=True).expand(-1, 3, -1), dim=1), 4,
         "general"),
    ],
)  # fmt: skip
def test_between_linear_maps(function, out, found):
    assert group(function, out, width=4) == found


def flow(f=torch.relu, left=False):
    """A linear flow ``exp(u)`` on hidden units."""

    def run(m, x):
        h = f(m.a(x))
        return m.b(h @ torch.matrix_exp(m.u.T if left else m.u))

    return Made(run, a=nn.Linear(3, 4), b=nn.Linear(4, 2), u=nn.Parameter(torch.randn(4, 4) / 2))


@pytest.mark.parametrize(
    ("f", "left", "dimension"), [(torch.relu, False, 4), (torch.relu, True, 4), (torch.tanh, False, 0)]
)
def test_exponential_of_a_parameter(f, left, dimension):
    torch.manual_seed(0)
    model, x = flow(f, left).double(), torch.randn(5, 3).double()
    sym = symmetries(model, x)
    assert sym.dim == dimension and [s.size for s in sym.spaces if s.group.permutes] == [4]
    for kind in ("permutation", "scale", "sign"):
        twin = sym.act(sym.random(1, {kind}), model)
        assert function_error(model, twin, (torch.randn(6, 3).double(),)) < 1e-12, kind
