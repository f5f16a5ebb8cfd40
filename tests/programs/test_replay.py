"""Work that is recorded on a GPU and launched whole: elsewhere it is called; on a GPU it gives what calls give."""

import random

import pytest
import torch
from torch import nn

from intertwine.lab.networks import build
from intertwine.lab.training import Recipe
from intertwine.lab.training.engines import Engine
from intertwine.programs import Replayed
from intertwine.programs.part import called

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_a_cpu_every_call_is_a_call():
    seen = []
    work = Replayed(lambda x: (seen.append(len(x)) or x * 2,))
    for n in (2, 2, 3, *[2] * 10):
        assert torch.equal(work(torch.ones(n))[0], torch.full((n,), 2.0))
    work.join()
    assert seen == [2, 2, 3, *[2] * 10]


def test_what_draws_on_the_host_is_noticed():
    x = torch.ones(3)
    drops = lambda x: (x if random.random() < 0.5 else 2 * x,)
    assert [called(work, x)[1] for work in (lambda x: (x,), lambda x: (x + torch.rand(3),), drops)] == [
        False,
        True,
        True,
    ]


@GPU
def test_layers_dropped_at_random_are_not_frozen():
    random.seed(0)
    work = Replayed(lambda x: (x if random.random() < 0.5 else 2 * x,))
    found = {float(work(torch.ones(1, device="cuda"))[0]) for _ in range(40)}
    assert found == {1.0, 2.0}


@GPU
def test_on_a_gpu_it_is_recorded_and_gives_the_same():
    calls = []
    layer = nn.BatchNorm1d(3).cuda()
    work = Replayed(lambda x: (calls.append(1) or layer(x),))
    twin = nn.BatchNorm1d(3).cuda()
    for k in range(20):
        x = torch.randn(4 + k % 2, 3, device="cuda") * k
        found = work(x)[0].clone()
        work.join()
        assert torch.allclose(found, twin(x), atol=1e-5)
    assert torch.allclose(layer.running_mean, twin.running_mean)
    assert len(calls) == 2 * (Replayed.calls_first + 1)  # of each shape, the recording counted


@GPU
def test_work_that_reads_a_number_back_goes_on_being_called():
    work = Replayed(lambda x: (x * float(x.sum()),))
    for k in range(10):
        x = torch.full((2,), float(k), device="cuda")
        assert work(x)[0].tolist() == [2.0 * k * k] * 2


@GPU
def test_training_takes_the_same_steps(monkeypatch):
    def losses(first):
        monkeypatch.setattr(Replayed, "calls_first", first)
        torch.manual_seed(0)
        engine = Engine([build("digits_cnn:width=8").cuda().train()], Recipe())
        random = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(1, 32, 1, 8, 8, device="cuda", generator=random)
        y = torch.randint(10, (1, 32), device="cuda", generator=random)
        return torch.cat([engine.step(x[:, : 32 - k % 2], y[:, : 32 - k % 2], 1e-2 / (1 + k)) for k in range(30)])

    assert torch.allclose(losses(10**9), losses(5), rtol=1e-3)
