"""Methods that look at data give the same bits for one seed, though the loader shuffles by global random numbers."""

import copy

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.matching import StraightThrough
from intertwine.merging import recalibrate_, repair_
from intertwine.similarity import Resampling

X = torch.ones(2, 4)


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


def shuffled():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(list(zip(x, x[:, :3].argmax(1))), batch_size=8, shuffle=True)


def bits(model):
    return [tensor.tolist() for tensor in model.state_dict().values()]


WORK = {
    "activations": lambda a, b, data: bits(iw.align(a, b, X, "activations", data).apply(b)),
    "straight-through": lambda a, b, data: bits(iw.align(a, b, X, StraightThrough(epochs=2), data).apply(b)),
    "recalibrate": lambda a, b, data: bits(recalibrate_(a, data)),
    "repair": lambda a, b, data: bits(repair_(a, a, b, data)),
    "barrier": lambda a, b, data: iw.barrier(a, b, data, points=3).to_dict(),
    "compare": lambda a, b, data: iw.compare(a, b, data, resampling=Resampling(null=2, bootstrap=2, seed=3)).to_dict(),
}


@pytest.mark.parametrize("name", WORK)
def test_the_order_follows_from_the_seed(name):
    models, found = (net(0), net(1)), []
    for start in (1, 2):
        torch.manual_seed(start)  # what a fresh process begins with is anybody's guess
        before = torch.get_rng_state()
        found.append(WORK[name](*copy.deepcopy(models), shuffled()))
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]
