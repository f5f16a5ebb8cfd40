"""Graph networks of PyTorch Geometric, on random graphs with a fixed number of nodes and edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, generator

__all__ = ["CASES"]

CASES: list[Case] = []
NODES, EDGES, FEATURES = 9, 24, 5


def edges(seed: int) -> Tensor:
    """Random edges between the nodes, ``(2, e)``."""
    return torch.randint(NODES, (2, EDGES), generator=generator(seed + 100))


def features(seed: int, scale: float, rows: int = NODES, columns: int = FEATURES) -> Tensor:
    """Random features."""
    return scale * torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64)


def graph(seed: int, scale: float, batch: int) -> tuple[Tensor, Tensor]:
    """Node features and edges; the number of nodes stays."""
    return features(seed, scale), edges(seed)


def with_edge_features(seed: int, scale: float, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Node features, edges and edge features."""
    return *graph(seed, scale, batch), features(seed + 1, scale, EDGES, 3)


def add(name: str, make: Callable[[Any], nn.Module], inputs: Callable = graph) -> None:
    """Register one network; ``make`` is given ``torch_geometric.nn``."""

    def build() -> nn.Module:
        import torch_geometric.nn

        return make(torch_geometric.nn)

    CASES.append(Case(name, "torch_geometric", name.split(" ")[0], build, inputs, batches=()))


class Stack(nn.Module):
    """Two graph convolutions with a ReLU between them, and a sum over the nodes."""

    def __init__(self, first: nn.Module, second: nn.Module, pooled: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.pooled = first, second, pooled

    def forward(self, x: Tensor, index: Tensor, *more: Tensor) -> Tensor:
        """Features of the nodes, or of the graph."""
        y = self.second(self.first(x, index, *more).relu(), index, *more)
        return y.sum(0, keepdim=True) if self.pooled else y


def mlp(inputs: int, outputs: int) -> nn.Module:
    """A network for the messages or the nodes."""
    return nn.Sequential(nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, outputs))


BASIC = {"in_channels": FEATURES, "hidden_channels": 12, "num_layers": 3, "out_channels": 4}
add("GCN", lambda g: g.GCN(**BASIC))
add("GraphSAGE", lambda g: g.GraphSAGE(**BASIC, norm="batch"))
add("GIN", lambda g: g.GIN(**BASIC))
add("GAT", lambda g: g.GAT(**BASIC, heads=2))
add("GATv2", lambda g: g.GAT(**BASIC, v2=True, heads=3, jk="cat"))
add("EdgeCNN", lambda g: g.EdgeCNN(**BASIC))
add("PNA", lambda g: g.PNA(**BASIC, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
                           deg=torch.tensor([1, 2, 3, 2])))  # fmt: skip
add("ChebConv", lambda g: Stack(g.ChebConv(FEATURES, 12, K=3), g.ChebConv(12, 4, K=2)))
add("GraphConv", lambda g: Stack(g.GraphConv(FEATURES, 12), g.GraphConv(12, 4, aggr="max"), pooled=True))
add("SGConv", lambda g: Stack(g.SGConv(FEATURES, 12, K=2), g.SGConv(12, 4)))
add("TAGConv", lambda g: Stack(g.TAGConv(FEATURES, 12), g.TAGConv(12, 4)))
add("ARMAConv", lambda g: Stack(g.ARMAConv(FEATURES, 12, num_stacks=2), g.ARMAConv(12, 4)))
add("GatedGraphConv", lambda g: Stack(g.GatedGraphConv(12, 2), g.GCNConv(12, 4)))
add("TransformerConv", lambda g: Stack(g.TransformerConv(FEATURES, 6, heads=2, edge_dim=3),
                                       g.TransformerConv(12, 4, edge_dim=3)), with_edge_features)  # fmt: skip
add("GINEConv", lambda g: Stack(g.GINEConv(mlp(FEATURES, 12), edge_dim=3), g.GINEConv(mlp(12, 4), edge_dim=3)),
    with_edge_features)  # fmt: skip
add("NNConv", lambda g: Stack(g.NNConv(FEATURES, 12, mlp(3, FEATURES * 12)), g.NNConv(12, 4, mlp(3, 48))),
    with_edge_features)  # fmt: skip
add("GENConv", lambda g: Stack(g.GENConv(FEATURES, 12, edge_dim=3), g.GENConv(12, 4, edge_dim=3)), with_edge_features)
add("ResGatedGraphConv", lambda g: Stack(g.ResGatedGraphConv(FEATURES, 12), g.ResGatedGraphConv(12, 4)))
add("EGConv", lambda g: Stack(g.EGConv(FEATURES, 16, num_heads=4), g.EGConv(16, 4, num_heads=2)))
