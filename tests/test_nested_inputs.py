"""Inputs of any nesting: they keep their classes and their values, whoever runs the model."""

from collections import OrderedDict, namedtuple
from collections.abc import MutableMapping
from types import MappingProxyType

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine._nested import map_tensors, tensors_in
from intertwine.features.batches import join
from intertwine.features.evaluate import evaluate
from intertwine.merging import barrier
from intertwine.symmetry import verify
from intertwine.testing import function_error

Pair = namedtuple("Pair", "left right")
Output = namedtuple("Output", "loss logits")


class OfPairs(nn.Module):
    """Two images of one stack, given as fields of one argument or as two arguments."""

    def __init__(self):
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, left, right=None):
        left, right = (left.left, left.right) if right is None else (left, right)
        return self.leave(torch.relu(self.enter(self.norm(left)) + self.enter(self.norm(right))))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = OfPairs().eval()
        nn.init.normal_(made.norm.weight)
        return made


X = Pair(*torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)))


def test_named_tuples_are_inputs_of_verify_fold_and_prune_channels(model):
    example = (X,)
    sym = iw.symmetries(model, example)
    assert verify(sym, model, example).passed
    fold = iw.fold(model, example)
    assert function_error(model, fold.model, example) < 1e-5
    small = iw.exchange.prune_channels(sym, "enter.weight[0]", range(5), model, example)
    assert small(X).shape == (6, 3) and small.enter.weight.shape == (5, 4)


def test_containers_keep_their_classes():
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutput

    x = torch.ones(2)
    for value in ({"a": x}, OrderedDict(a=x), BatchEncoding({"a": x}), [x], (x, {"b": [x]}), Pair(x, (x, None))):
        doubled = map_tensors(value, lambda t: 2 * t)
        assert type(doubled) is type(value)
        assert str(map_tensors(doubled, lambda t: t / 2)) == str(value)
    assert map_tensors(BatchEncoding({"a": x}), torch.zeros_like).a.tolist() == [0, 0]
    assert map_tensors(BaseModelOutput(last_hidden_state=x), torch.zeros_like).last_hidden_state.tolist() == [0, 0]
    assert map_tensors(MappingProxyType({"a": x}), torch.zeros_like)["a"].tolist() == [0, 0]
    assert x.tolist() == [1, 1]


class Shared(MutableMapping):
    """A mapping whose shallow copies share what they hold."""

    def __init__(self, **items):
        self.items_ = items

    __getitem__ = lambda self, key: self.items_[key]
    __setitem__ = lambda self, key, item: self.items_.update({key: item})
    __delitem__ = lambda self, key: self.items_.pop(key)
    __iter__ = lambda self: iter(self.items_)
    __len__ = lambda self: len(self.items_)


class Couple(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))


def test_containers_of_any_class_are_left_as_they_are():
    x = torch.ones(2)
    for value in (Shared(a=x), Couple(x, x)):
        assert [t.tolist() for t in tensors_in(map_tensors(value, torch.zeros_like))] == [[0, 0]] * len(value)
        assert all(t is x for t in tensors_in(value))


def test_batches_are_joined_by_their_keys():
    a, b = torch.zeros(2, 1), torch.ones(2, 1)
    joined = join([{"a": a, "b": b, "names": ["x", "y"]}, {"names": ["z", "w"], "b": b, "a": a}])
    assert not joined["a"].any() and joined["b"].all() and len(joined["a"]) == 4 and joined["names"] == [*"xyzw"]


def test_what_batches_share_is_joined_once():
    x, place, step = torch.randn(5, 3), torch.arange(3), torch.tensor(2)
    joined = join([{"x": x[:2], "place": place, "step": step}, {"x": x[2:], "place": place, "step": step}])
    assert torch.equal(joined["x"], x) and torch.equal(joined["place"], place) and joined["step"] == 2
    with pytest.raises(ValueError, match="must agree in tensors without a row per example"):
        join([{"x": x[:2], "step": step}, {"x": x[2:], "step": step + 1}])


class InPlace(nn.Module):
    def forward(self, x, labels=None):
        logits = x.mul_(2).exp_()
        return logits if labels is None else Output(nn.functional.cross_entropy(logits, labels), logits)


def test_models_that_begin_in_place_leave_the_data_alone():
    x, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    before = x.clone()
    first, second = (evaluate(InPlace(), [{"x": x, "labels": labels}]) for _ in range(2))
    assert first == second and function_error(InPlace(), InPlace(), x) == 0
    assert torch.equal(x, before)


def test_barriers_of_models_with_several_inputs(model):
    loader = [((X.left, X.right), model(*X).argmax(1))]
    sym = iw.symmetries(model, tuple(X))
    found = barrier(model, sym.act(sym.random(seed=1), model), loader, points=3)
    assert max(found.curves[-1].loss) == pytest.approx(found.curves[-1].loss[0], rel=1e-4)
