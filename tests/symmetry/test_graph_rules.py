"""Rows reduced at places that an index names, and the graph networks made of them: what moves, and that it may."""

import pytest
import torch
import torch.nn.functional as F
from completeness import completeness
from made import Made
from sandwich import prove
from torch import nn

from intertwine.symmetry import symmetries

INDEX = torch.tensor([3, 0, 0, 2, 1, 3, 3, 0])
UNLIKE = torch.arange(48).reshape(8, 6) % 4
LENGTHS = torch.tensor([3, 0, 1, 4])
OWN = torch.tensor([[2, 6], [3, 5], [4, 4], [1, 7], [7, 1], [5, 3]])  # lengths of runs, by unit


def added(h, how="sum", start=0.0, keep=True):
    """Eight rows of features reduced to four."""
    there = torch.full((4, 6), start).double()
    return there.scatter_reduce(0, INDEX[:, None].expand(-1, 6), h, how, include_self=keep)


# name -> (function of ``(8, 6)`` features, dimension of the group of six units, whether they are permuted)
CASES = {
    "scatter_add": (lambda h: h.new_zeros(4, 6).scatter_add(0, INDEX[:, None].expand(-1, 6), h), 36, True),
    "scatter_add in place": (lambda h: h.new_zeros(4, 6).scatter_add_(0, INDEX[:, None].expand(-1, 6), h), 36, True),
    "scatter_add into itself": (lambda h: h.scatter_add(0, INDEX[:, None].expand(-1, 6), h.relu()), 6, True),
    "scatter_add into ones": (lambda h: h.new_ones(4, 6).scatter_add(0, INDEX[:, None].expand(-1, 6), h), 0, True),
    "scatter_add by unit": (lambda h: h.new_zeros(4, 6).scatter_add(0, UNLIKE, h), 0, False),
    "scatter_add over units": (lambda h: h.new_zeros(8, 6).scatter_add(1, UNLIKE, h), 0, False),
    "scatter sum": (added, 36, True), "scatter mean": (lambda h: added(h, "mean"), 36, True),
    "scatter mean alone": (lambda h: added(h, "mean", keep=False), 36, True),
    "scatter amax": (lambda h: added(h, "amax"), 6, True), "scatter amin": (lambda h: added(h, "amin"), 6, True),
    "scatter amax over ones": (lambda h: added(h, "amax", 1.0), 0, True),
    "scatter prod": (lambda h: added(h, "prod", 1.0), 0, True),
    "index_add": (lambda h: h.new_zeros(4, 6).index_add(0, INDEX, h), 36, True),
    "index_add over units": (lambda h: h.new_zeros(8, 8).index_add(1, INDEX[:6], h)[:, :6], 0, False),
    "index_copy": (lambda h: h.relu().index_copy(0, INDEX[3:6], h[:3]), 6, True),
    "index_reduce": (lambda h: h.new_zeros(4, 6).index_reduce(0, INDEX, h, "amax"), 6, True),
    "index_fill": (lambda h: h.index_fill(0, INDEX[:3], 0.0), 36, True),
    "index_fill ones": (lambda h: h.index_fill(0, INDEX[:3], 1.0), 0, True),
    "segments": (lambda h: torch.segment_reduce(h, "mean", lengths=LENGTHS, initial=0), 36, True),
    "largest of segments": (lambda h: torch.segment_reduce(h, "max", lengths=LENGTHS, initial=0), 6, True),
    "segments of every unit": (lambda h: torch.segment_reduce(h.t(), "max", lengths=OWN, axis=1).t(), 0, False),
    "index_select": (lambda h: h.index_select(0, INDEX), 36, True),
    "gathered": (lambda h: h.gather(0, INDEX[:, None].expand(-1, 6)), 36, True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_by_an_index(name):
    torch.manual_seed(0)
    around = Made(lambda m, x: m.b(CASES[name][0](m.a(x))), a=nn.Linear(3, 6), b=nn.Linear(6, 2))
    model, x = around.double(), torch.randn(8, 3).double()
    sym = prove(model, x)
    assert (sym.dim, any(s.size == 6 and s.group.permutes for s in sym.spaces)) == CASES[name][1:]
    assert not sym.unknown_ops


NODES = 40
EDGES = torch.randint(NODES, (2, 120), generator=torch.Generator().manual_seed(0))


def spread(h, index, how="sum"):
    """Messages of edges reduced at their targets."""
    zeros = h.new_zeros(NODES, *h.shape[1:])
    return zeros.scatter_reduce(0, index.view(-1, *[1] * (h.dim() - 1)).expand_as(h), h, how, include_self=False)


def softmax(scores, index):
    """Scores of edges as shares of their target."""
    scores = (scores - spread(scores, index, "amax")[index]).exp()
    return scores / (spread(scores, index)[index] + 1e-16)


class Convolution(nn.Module):
    """Means of neighbours with symmetric degrees."""

    def __init__(self, a, b):
        super().__init__()
        self.w = nn.Linear(a, b)

    def forward(self, x, edges):
        source, target = edges
        degree = spread(x.new_ones(len(target)), target).clamp(min=1).pow(-0.5)
        return spread((degree[source] * degree[target])[:, None] * self.w(x)[source], target)


def sampled(a, b, how="mean"):
    """A node beside the mean (or maximum) of its neighbours."""
    return Made(
        lambda m, x, edges: m.own(x) + m.near(spread(x[edges[0]], edges[1], how)), own=nn.Linear(a, b),
        near=nn.Linear(a, b, bias=False),
    )  # fmt: skip


class Attention(nn.Module):
    """Heads that weigh neighbours by a learned score."""

    def __init__(self, a, b, heads=2):
        super().__init__()
        self.w, self.heads = nn.Linear(a, heads * b, bias=False), heads
        self.left, self.right = nn.Parameter(torch.randn(heads, b)), nn.Parameter(torch.randn(heads, b))

    def forward(self, x, edges):
        source, target = edges
        h = self.w(x).unflatten(1, (self.heads, -1))
        scores = (h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target]
        shares = softmax(F.leaky_relu(scores, 0.2), target)
        return spread(shares[..., None] * h[source], target).flatten(1)


class Edgewise(nn.Module):
    """The largest message of a small network on pairs of nodes."""

    def __init__(self, a, b):
        super().__init__()
        self.f, self.g = nn.Linear(2 * a, 5), nn.Linear(5, b)

    def forward(self, x, edges):
        pairs = torch.cat([x[edges[1]], x[edges[0]] - x[edges[1]]], -1)
        return spread(self.g(self.f(pairs).relu()), edges[1], "amax")


class Relations(nn.Module):
    """A matrix for every kind of edge."""

    def __init__(self, a, b):
        super().__init__()
        self.w, self.own = nn.Parameter(torch.randn(3, a, b)), nn.Linear(a, b)

    def forward(self, x, edges):
        out = self.own(x)
        for kind in range(3):
            some = edges[:, kind::3]
            out = out.index_add(0, some[1], x[some[0]] @ self.w[kind])
        return out


class Chebyshev(nn.Module):
    """Three steps along edges, each with its own matrix."""

    def __init__(self, a, b):
        super().__init__()
        self.w = nn.ModuleList(nn.Linear(a, b) for _ in range(3))

    def forward(self, x, edges):
        walk = lambda h: spread(h[edges[0]], edges[1], "mean")
        first = walk(x)
        return self.w[0](x) + self.w[1](first) + self.w[2](2 * walk(first) - x)


# name -> (layer, dimension of the group between two layers with six units and ReLU)
LAYERS = {
    "convolution": (Convolution, 6), "means of neighbours": (sampled, 6),
    "maxima of neighbours": (lambda a, b: sampled(a, b, "amax"), 6),
    "edges": (Edgewise, 5 + 6 + 5), "relations": (Relations, 6), "chebyshev": (Chebyshev, 6),
}  # fmt: skip


class Two(nn.Module):
    def __init__(self, first, second, norm=None, pool=None):
        super().__init__()
        self.first, self.second, self.norm, self.pool = first, second, norm, pool

    def forward(self, x, edges):
        h = self.first(x, edges)
        h = (h if self.norm is None else self.norm(h)).relu()
        if self.pool is None:
            return self.second(h, edges)
        bags = torch.arange(NODES) % 4
        return self.second(h.new_zeros(4, 6).scatter_reduce(0, bags[:, None].expand_as(h), h, self.pool))


def checked(model):
    """The symmetry of a graph network, after checking every kind of element on this graph and on another."""
    torch.manual_seed(1)
    model.double().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0) if "var" in name else tensor.add_(0.3 * torch.randn_like(tensor))
    x = torch.randn(NODES, 4).double()
    other = (x, EDGES.flip(1)[:, :90])
    sym = prove(model, (x, EDGES), (3, 4), unseen=lambda number: other if number % 2 else (x, EDGES))
    assert not sym.unknown_ops
    return sym


@pytest.mark.parametrize("name", LAYERS)
def test_graph_layers(name):
    layer, dimension = LAYERS[name]
    torch.manual_seed(0)
    sym = checked(Two(layer(4, 6), layer(6, 3)))
    assert sym.dim == dimension
    assert all(s.group.permutes for s in sym.spaces if s.size == 6)


def test_heads_of_graph_attention_have_scales_of_their_own():
    torch.manual_seed(0)
    sym = checked(Two(Attention(4, 3), Attention(6, 3, heads=1)))
    units = next(s for s in sym.spaces if s.size == 3 and s.group.permutes)
    assert len(units.parents) == 1 and sym.dim == 6


@pytest.mark.parametrize(("how", "dimension"), [("sum", 6), ("mean", 6), ("amax", 6), ("prod", 0)])
def test_pools_of_nodes(how, dimension):
    torch.manual_seed(0)
    assert checked(Two(Convolution(4, 6), nn.Linear(6, 3), pool=how)).dim == dimension


@pytest.mark.parametrize(("norm", "dimension"), [(nn.BatchNorm1d, 12), (nn.LayerNorm, 6)])
def test_norms_of_nodes(norm, dimension):
    torch.manual_seed(0)
    assert checked(Two(Convolution(4, 6), Convolution(6, 3), norm=norm(6))).dim == dimension


def test_nothing_is_missing_in_a_graph_network():
    torch.manual_seed(0)
    model = Two(Convolution(5, 4), Convolution(4, 3)).double()
    x = 3 * torch.randn(NODES, 5).double()  # every unit is sometimes on and sometimes off
    reading = completeness(symmetries(model, (x, EDGES)), model, (x, EDGES))
    assert reading.gap == 0 and reading.detected == 4
