"""Channels within groups on a residual stream: both sides of a projection have groups, each channel knows its own."""

from math import factorial, log

import pytest
import torch
from made import Made
from torch import Tensor, nn
from torch.nn import functional as F

from intertwine.matching import same
from intertwine.symmetry import symmetries
from intertwine.testing import function_error

GROUPS = 3


def grouped(width: int, out: int):
    """A grouped convolution on the stream, added to a projection of the stream."""
    return Made(
        lambda m, x: F.leaky_relu(m.grouped(x) + m.skip(x)),
        grouped=nn.Conv2d(width, out, 3, padding=1, groups=GROUPS, bias=False),
        skip=nn.Conv2d(width, out, 1, bias=False),
    )  # fmt: skip


def inside(width: int):
    """A grouped convolution on the stream, inside a residual branch."""
    return Made(
        lambda m, x: x + m.back(F.leaky_relu(m.grouped(x))),
        grouped=nn.Conv2d(width, width, 3, padding=1, groups=GROUPS, bias=False),
        back=nn.Conv2d(width, width, 1, bias=False),
    )  # fmt: skip


STREAMS = {  # blocks, and the channels of each group on either side of them
    "projected": (lambda: [grouped(6, 9)], [2, 3]),
    "twice": (lambda: [grouped(6, 6), grouped(6, 9)], [2, 2, 3]),
    "inside": (lambda: [inside(6)], [2, 2]),
}


def network(blocks: list[nn.Module], width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(7, 6, 1), nn.LeakyReLU(), *blocks, nn.Conv2d(width, 3, 1)).double()


def images(seed: int) -> Tensor:
    return torch.randn(8, 7, 4, 4, generator=torch.Generator().manual_seed(seed)).double()


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    blocks, sizes = STREAMS[name]
    return network(blocks(), 6 if name == "inside" else GROUPS * sizes[-1])


@pytest.mark.parametrize("name", STREAMS)
def test_channels_permute_and_scale_within_each_group(name):
    """One scale for each channel, one order of the groups, one order of the channels of each group."""
    model, sizes = made(name), STREAMS[name][1]
    sym = symmetries(model, images(0))
    assert sym.dim == GROUPS * sum(sizes)
    assert sym.log_size == pytest.approx(log(factorial(GROUPS)) + GROUPS * sum(log(factorial(n)) for n in sizes))
    for seed in range(3):
        assert function_error(model, sym.act(sym.random(seed), model), (images(1 + seed),)) < 1e-11


def test_channels_that_change_groups_change_the_function():
    model = made("projected")
    sym = symmetries(model, images(0))
    g = sym.random(0, {"permutation"})
    twin = sym.act(g, model)
    with torch.no_grad():  # the first channels of two groups exchanged wherever the stream is read and written
        swap = torch.tensor([2, 1, 0, 3, 4, 5])
        for tensor in (twin[0].weight, twin[0].bias):
            tensor.copy_(tensor[swap])
        twin[2].skip.weight.copy_(twin[2].skip.weight[:, swap])
    assert function_error(model, twin, (images(1),)) > 1e-3


@pytest.mark.parametrize("name", STREAMS)
def test_a_moved_copy_is_recognised(name):
    model = made(name)
    sym = symmetries(model, images(0))
    assert same(model, sym.act(sym.random(5), model), images(0))


class Met(nn.Module):
    """Units within groups that also meet on the axis of other groups, by ``function(h, v, y)``."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, size = function, 4
        self.write = nn.Parameter(torch.randn(5, GROUPS, size))
        self.v, self.y = nn.Parameter(torch.randn(GROUPS * size)), nn.Parameter(torch.randn(GROUPS))
        self.first = nn.Parameter(torch.randn(GROUPS, size, 2))
        self.second = nn.Parameter(torch.randn(GROUPS, GROUPS * size, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,igk->ngk", x, self.write)
        one = F.leaky_relu((h + self.v.view(h.shape[1:])) * self.y[:, None])
        two = F.leaky_relu(self.function(h, self.v, self.y))
        out = torch.einsum("ngk,gko->ngo", one, self.first) + torch.einsum("ngk,gko->ngo", two, self.second)
        return F.leaky_relu(out).sum(1)


MEETINGS = {
    "added": lambda h, v, y: h.repeat(1, 1, GROUPS) + v,
    "multiplied": lambda h, v, y: h.repeat(1, 1, GROUPS) * y.repeat_interleave(h.shape[-1]),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_units_beside_the_groups_of_another_tensor_are_alike_in_all_groups(name):
    torch.manual_seed(0)
    model = Met(MEETINGS[name]).double()
    x = torch.randn(9, 5).double()
    sym = symmetries(model, x)
    assert [s.size for s in sym.spaces if s.group.permutes and not s.parents] == [GROUPS, 4]
    for seed in range(3):
        assert function_error(model, sym.act(sym.random(seed), model), (x,)) < 1e-11
