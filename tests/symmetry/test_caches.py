"""Models that keep things between runs: nothing is kept of ours, and a twin keeps nothing of the old weights."""

import pytest
import torch
from torch import nn

from intertwine.programs import capture
from intertwine.symmetry import Symmetry, symmetries
from intertwine.testing import assert_same_function, function_error


class Store:
    """A plain object in which a model keeps things."""

    def __init__(self):
        self.kept, self.hits = None, 0


class Cached(nn.Module):
    """Two layers; ``how`` says where the activated weight of the first is kept."""

    def __init__(self, how):
        super().__init__()
        self.how, self.calls, self.log = how, 0, []
        self.w = nn.Parameter(torch.randn(6, 4))
        self.head = nn.Linear(6, 2)
        self.cache, self.items, self.slot, self.store = {}, [], None, Store()
        self.register_buffer("table", None, persistent=False)

    def weight(self):
        made = torch.relu(self.w)
        if self.how == "dict":
            return self.cache.setdefault(str(self.w.device), made)
        if self.how == "nested":
            return self.cache.setdefault("by shape", {}).setdefault((2, 3), (made,))[0]
        if self.how == "list":
            self.items = self.items or [made]
            return self.items[0]
        if self.how == "grown list":
            if not self.items:
                self.items.append(made)
            return self.items[0]
        if self.how == "new attribute":
            if not hasattr(self, "late"):
                self.late = made
            return self.late
        if self.how == "object":
            self.store.kept = made if self.store.kept is None else self.store.kept
            return self.store.kept
        if self.how == "buffer":
            self.table = made if self.table is None else self.table
            return self.table
        self.slot = made if self.slot is None else self.slot
        return self.slot

    def forward(self, x):
        self.calls += 1
        self.log.append(len(x))
        self.store.hits += 1
        return self.head(torch.relu(x @ self.weight().T))


PLACES = ("dict", "nested", "list", "grown list", "new attribute", "object", "buffer", "slot")


def held(model):
    own = {k: v for k, v in model.__dict__.items() if "hook" not in k}
    return {**own, "cache": dict(model.cache), "items": list(model.items), "log": list(model.log),
            "store": dict(vars(model.store)), "_buffers": dict(model._buffers)}  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", PLACES)
def test_a_capture_leaves_every_attribute_as_it_was(how, fails):
    model = Cached(how)
    before = held(model)
    if fails:
        with pytest.raises(Exception, match="model must run"):
            capture(model, (torch.zeros(2, 5),))
    else:
        capture(model, (torch.zeros(2, 4),))
    assert held(model) == before


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("how", PLACES)
def test_a_twin_keeps_nothing_of_the_old_weights(how, gradients):
    model, x = Cached(how).double(), torch.randn(3, 4).double()
    cold = symmetries(model, x)
    assert [s.size for s in cold.spaces] == [6]
    with torch.set_grad_enabled(gradients):
        expected = model(x)  # the user's own run fills the cache
    warm = symmetries(model, x)
    assert warm.spaces == (() if how == "buffer" else cold.spaces)  # a buffer is taken for a table of the model
    for sym in (cold, warm, Symmetry.from_dict(cold.to_dict())):
        twin = sym.act(sym.random(seed=0), model)
        fresh = Cached(how).double()
        fresh.load_state_dict(twin.state_dict(), strict=False)
        for other in (twin, fresh):
            assert torch.allclose(other(x), expected) and function_error(model, other, x) < 1e-12
        assert bool(sym.spaces) != torch.allclose(twin.weight(), model.weight())


def test_verification_sees_through_a_cache():
    model, x = Cached("dict").double(), torch.randn(5, 4).double()
    model(x)
    sym = symmetries(model, x)
    assert sym.verify(model, x).passed and model.calls == 1


class Written(nn.Module):
    """Writes into a tensor that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.memory = nn.Linear(4, 4), torch.ones(2, 4)

    def forward(self, x):
        self.memory.mul_(0.5).add_(self.a(x))
        return self.memory * 2


def test_tensors_that_a_run_writes_get_their_contents_back():
    model = Written()
    capture(model, (torch.zeros(2, 4),))
    assert torch.equal(model.memory, torch.ones(2, 4))


def test_comparing_functions_fills_no_cache():
    model = Cached("dict")
    assert_same_function(model, model, torch.zeros(2, 4))
    assert not model.cache and model.calls == 0
