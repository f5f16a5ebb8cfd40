"""Rows of several axes in turn: channel shuffles between unlike halves, every second unit, and what moves then."""

import pytest
import torch
from completeness import completeness
from made import Made
from sandwich import Sandwich, example, group, prove
from torch import nn

from intertwine.symmetry import symmetries
from intertwine.symmetry.spaces import Sum


def shuffled(x, groups=2):
    n, c = x.shape[:2]
    return x.view(n, groups, c // groups, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


def halves(use, out=8, activation=torch.relu):
    """Unlike halves side by side, shuffled; ``use`` makes of the eight channels what the last layer reads."""

    def run(m, x):
        h = torch.cat((activation(m.a(x)), activation(m.b(x))), 1)
        return m.c(use(m, shuffled(h)))

    return Made(run, a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(out, 2))


def kept(model, *shape):
    """The symmetry of a model, of which every element keeps the function."""
    make = lambda seed: torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()
    return prove(model.double(), make(0), range(3), 1e-11, make)


def sizes(sym):
    return sorted(space.size for space in sym.spaces if space.group.permutes)


GAINS = torch.tensor([1.0, 2.0] * 4)
BOTH, EACH = [4, 4], [2, 2, 2, 2]
# name -> (what is made of the shuffled channels, how many there are then, sizes of permuted spaces, dimension)
FUNCTIONS = {
    "read": (lambda m, h: h, 8, BOTH, 8),
    "cut in halves": (lambda m, h: torch.cat((h[:, :4], h[:, 4:].tanh()), 1), 8, EACH, 4),
    "cut within a turn": (lambda m, h: h[:, 1:6], 5, [2, 3], 5),
    "shuffled back": (lambda m, h: torch.cat((h[:, ::2], 2 * h[:, 1::2]), 1), 8, BOTH, 8),
    "concatenated again": (lambda m, h: h.view(-1, 4, 2).transpose(1, 2).reshape(-1, 8), 8, BOTH, 8),
    "one half by one number": (lambda m, h: h.view(-1, 4, 2).transpose(1, 2).reshape(-1, 8)[:, :4] + 1, 4, [4], 0),
    "a gain for every second": (lambda m, h: h * GAINS, 8, [], 8),
    "products of pairs": (lambda m, h: h[:, ::2] * h[:, 1::2].sigmoid(), 4, [4], 4),
    "numbers for all": (lambda m, h: h + 1, 8, BOTH, 0),
    "running sums": (lambda m, h: h.cumsum(1), 8, [], 0),
    "sum of squares": (lambda m, h: h / h.square().sum(1, keepdim=True), 8, BOTH, 0),
    "softmax": (lambda m, h: h.softmax(1), 8, BOTH, 0),
    "zeros between": (lambda m, h: torch.stack((h, torch.zeros_like(h)), -1).flatten(1), 16, BOTH, 8),
    "both orders": (lambda m, h: h + h.view(-1, 4, 2).flip(2).reshape(-1, 8), 8, None, None),
    "shuffled twice": (lambda m, h: h + shuffled(h), 8, None, None),
    "turns and runs": (lambda m, h: h + torch.cat((h[:, ::2], h[:, 1::2]), 1), 8, None, None),
    "runs and turns": (lambda m, h: torch.cat((h[:, ::2], h[:, 1::2]), 1) - h, 8, None, None),
    "tied halves": (lambda m, h: h[:, ::2] + h[:, 1::2], 4, [4], 4),
    "other groups": (lambda m, h: shuffled(h, 4), 8, None, None),
    "every third": (lambda m, h: h[:, :6][:, ::3], 2, None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shuffled_halves(name):
    torch.manual_seed(0)
    use, out, permuted, dimension = FUNCTIONS[name]
    sym = kept(halves(use, out), 5, 3)
    if permuted is not None:
        assert (sizes(sym), sym.dim) == (permuted, dimension)


def test_layouts_say_which_rows():
    torch.manual_seed(0)
    sym = symmetries(halves(FUNCTIONS["read"][0]), torch.zeros(5, 3))
    columns = sym.layouts["c.weight"].axes[1]
    assert isinstance(columns, Sum) and [part.axis.space for part in columns.parts] == ["a.weight[0]", "b.weight[0]"]
    assert [part.ranges[1] for part in columns.parts] == [(2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("function", "out", "dimension"),
    [
        (lambda a, c, w: a[..., ::2] * torch.tanh(c[..., 1::2]), 3, 3),
        (lambda a, c, w: a[..., ::2] * a[..., 1::2].relu(), 3, 6),
        (lambda a, c, w: torch.stack((a[..., 1::2], -a[..., ::2]), -1).flatten(-2).relu(), 6, 6),
        (lambda a, c, w: torch.stack((a[..., 1::2], -a[..., ::2]), -1).flatten(-2) * c + a * w, 6, 6),
        (lambda a, c, w: torch.cat((a[..., ::3], c[..., 2::3]), -1).relu(), 4, 4),
    ],
)
def test_every_second_unit(function, out, dimension):
    group(function, out)
    torch.manual_seed(0)
    assert symmetries(Sandwich(function, out), example(0).float()).dim >= dimension


class Shuffle(nn.Module):
    """Blocks of a ShuffleNetV2: half of the channels pass, the other half is convolved, both are shuffled."""

    def __init__(self, width, blocks) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.blocks = nn.ModuleList(nn.Linear(width // 2, width // 2) for _ in range(blocks))
        self.last = nn.Linear(width, 2)

    def forward(self, x):
        x = self.first(x).relu()
        for block in self.blocks:
            left, right = x.chunk(2, 1)
            x = shuffled(torch.cat((left, block(right).relu()), 1))
        return self.last(x)


@pytest.mark.parametrize(("width", "blocks", "single"), [(8, 1, 0), (16, 2, 0), (8, 3, 4), (12, 3, 2)])
def test_every_unit_of_a_shuffle_net_has_its_scale(width, blocks, single):
    torch.manual_seed(0)
    model = Shuffle(width, blocks)
    sym = kept(model, 5, 3)
    # units that are read one by one (their runs were halved often enough) are not described
    assert sym.dim == width + blocks * width // 2 - single
    report = completeness(sym, model, torch.randn(300, 3).double())
    assert report.nullity >= report.detected == sym.dim
