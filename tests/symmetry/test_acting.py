"""Running a model as an element moves it, without a copy of its weights."""

from dataclasses import replace

import pytest
import torch
import zoo
from torch import Tensor, nn

import intertwine as iw
from intertwine.symmetry.action import acting
from intertwine.testing import outputs, relative_error


@pytest.mark.parametrize("name", ["mlp_identity", "resnet18", "gpt_tied", "llama", "lstm_deep", "weight_norm"])
def test_the_run_is_that_of_the_moved_copy(name: str) -> None:
    model, x, sym = zoo.found(name)
    g, before, state = sym.random(seed=3), outputs(model, x), {n: t.clone() for n, t in model.state_dict().items()}
    with acting(sym, g, model):
        moved = outputs(model, x)
    assert relative_error(outputs(sym.act(g, model), x), moved) < 1e-14
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(model, x)))
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


def test_an_element_that_fits_no_weights_shows() -> None:
    model, x, sym = zoo.found("resnet18")
    named = next(n for n, layout in sym.layouts.items() if len(layout.spaces) == 2)
    short = replace(sym, layouts={n: layout for n, layout in sym.layouts.items() if n != named})
    with acting(short, sym.random(seed=3), model):
        assert relative_error(outputs(model, x), outputs(model, x)) == 0.0
        moved = outputs(model, x)
    assert relative_error(outputs(model, x), moved) > 1e-3


class _Reader(nn.Module):
    """Reads one weight as numbers, another through a view, and notes what it computed of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.noted: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.noted is None:
            self.noted = self.second.weight.data.t() * 1.0
        return torch.relu(nn.functional.linear(x, self.first.weight.data, self.first.bias)) @ self.noted


def test_weights_read_as_numbers_and_caches() -> None:
    model, x = _Reader().double(), torch.randn(5, 4, dtype=torch.float64)
    sym = iw.symmetries(model, x)
    g = sym.random(seed=1)
    model(x)
    noted = model.noted
    state = {n: t.clone() for n, t in model.state_dict().items()}
    with acting(sym, g, model):
        moved = outputs(model, x)
    assert sym.dim and relative_error(outputs(sym.act(g, model), x), moved) < 1e-12
    assert model.noted is noted and all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


def test_scripted_parts_move() -> None:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    model, x = nn.Sequential(torch.jit.script(part), nn.Linear(6, 3)).double().eval(), torch.randn(5, 4).double()
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=1), model)
    assert relative_error(outputs(model, x), outputs(twin, x)) < 1e-12
    assert not torch.equal(twin.state_dict()["0.0.weight"], model.state_dict()["0.0.weight"])
