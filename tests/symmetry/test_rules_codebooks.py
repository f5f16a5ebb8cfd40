"""Quantisation by the nearest entry of a codebook: entries may stand in any order, and their space turns."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from intertwine.groups import Permutation
from intertwine.symmetry import symmetries
from intertwine.testing import assert_same_function, function_error

ENTRIES, WIDTH = 7, 4


def expanded(z: Tensor, c: Tensor) -> Tensor:
    return z.square().sum(1, keepdim=True) + c.square().sum(1) - 2 * z @ c.T


DISTANCES = {
    "expanded": expanded,
    "as one product": lambda z, c: torch.addmm(c.pow(2).sum(1), z, c.T, alpha=-2),
    "cdist": torch.cdist,
    "differences": lambda z, c: (z[:, None] - c).square().sum(-1),
    "norm": lambda z, c: (z[:, None] - c[None]).norm(dim=-1).sqrt(),
    "products": lambda z, c: -z @ c.T,
}
TIES = {
    "no distance": lambda z, c: z @ c.T - z @ c.T,
    "a linear one": lambda z, c: c.sum(1) - c.sum(1) + z.sum(1, keepdim=True),
    "left out": lambda z, c: torch.addmm(c.pow(2).sum(1), z.relu() * 0, c.T, beta=0),
    "whole numbers": lambda z, c: torch.div(torch.cdist(z, c), 10, rounding_mode="floor"),
    "small ones": lambda z, c: torch.cdist(z, c).clamp(min=10),
    "how many differ": lambda z, c: torch.cdist(z, c, p=0),
}
READ = {
    "embedding": lambda i, c: F.embedding(i, c),
    "index": lambda i, c: c[i],
    "one hot": lambda i, c: F.one_hot(i, ENTRIES).to(c.dtype) @ c,
    "scattered": lambda i, c: torch.zeros(len(i), ENTRIES, dtype=c.dtype).scatter(1, i[:, None], 1) @ c,
}


class Quantised(nn.Module):
    def __init__(self, distance=expanded, read=READ["embedding"], codebooks: int = 1) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 5)
        self.codes = nn.ParameterList(torch.randn(ENTRIES, WIDTH) for _ in range(codebooks))
        self.distance, self.read = distance, read

    def forward(self, x: Tensor) -> Tensor:
        rest = z = self.encoder(x)
        for code in self.codes:
            rest = rest - self.read(self.distance(rest, code).argmin(1), code)
        quantised = z - rest
        return self.decoder(z + (quantised - z).detach())


def searched(*args, **settings):
    torch.manual_seed(0)
    model = Quantised(*args, **settings).double()
    x = torch.randn(30, 5, dtype=torch.float64)
    sym = symmetries(model, x)
    for seed in range(3):
        assert_same_function(model, sym.act(sym.random(seed), model), x)
    return model, x, sym


@pytest.mark.parametrize("distance", DISTANCES)
def test_entries_of_a_codebook_may_stand_in_any_order(distance):
    _, _, sym = searched(DISTANCES[distance])
    assert sym.space("codes.0[0]").group == Permutation(ENTRIES)


@pytest.mark.parametrize("read", READ)
def test_entries_are_looked_up_in_any_way(read):
    _, _, sym = searched(read=READ[read])
    assert sym.space("codes.0[0]").group == Permutation(ENTRIES)


def test_codes_turn_with_what_writes_and_what_reads_them():
    model, x, sym = searched(codebooks=3)
    assert [s.group.is_orthogonal for s in sym.spaces if s.size == WIDTH] == [True]
    assert [s.group for s in sym.spaces if s.size == ENTRIES] == [Permutation(ENTRIES)] * 3
    with torch.no_grad():  # a stretch is no symmetry
        stretched = {n: p.clone() for n, p in model.named_parameters()}
        stretched["encoder.weight"][0], stretched["encoder.bias"][0] = 2 * model.encoder.weight[0], 0
        for n in ("codes.0", "codes.1", "codes.2"):
            stretched[n][:, 0] *= 2
        stretched["decoder.weight"][:, 0] /= 2
        twin = Quantised(codebooks=3).double()
        twin.load_state_dict(stretched)
    assert function_error(model, twin, (x,)) > 0.01


@pytest.mark.parametrize("distance", TIES)
def test_a_tie_is_decided_by_places(distance):
    """Of equal distances the first is the smallest: entries may not change places."""
    _, _, sym = searched(TIES[distance])
    assert not [s for s in sym.spaces if s.size == ENTRIES]
