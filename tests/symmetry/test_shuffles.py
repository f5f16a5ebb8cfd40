"""Shuffles and other fixed rearrangements: one space in two orders, against every permutation and random networks."""

import random
from itertools import permutations
from math import exp

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made import Made
from sandwich import prove
from torch import nn

from intertwine.programs import capture
from intertwine.symmetry import symmetries
from intertwine.symmetry.spaces import Leaf, Part, Sum

ORDER = [2, 0, 5, 1, 4, 3]
REARRANGED = {
    "shuffled": lambda h: h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6),
    "shuffled as a channel": lambda h: F.channel_shuffle(h[:, :, None, None], 3).flatten(1),
    "in three": lambda h: h.view(-1, 1, 2, 3).permute(0, 3, 1, 2).contiguous().view(-1, 6),
    "picked by a list": lambda h: h[:, ORDER],
    "picked by a tensor": lambda h: h.index_select(1, torch.tensor(ORDER)),
    "reversed": lambda h: h.flip(1),
    "rotated": lambda h: torch.roll(h, 2, 1),
    "several": lambda h: torch.roll(h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6), 1, 1).flip(-1)[:, ORDER],
}


def rearranged(rearrange, groups=1):
    """Six units, rearranged, and read in groups."""
    return Made(
        lambda m, x: m.b(m.read(rearrange(F.gelu(m.a(x)))[..., None]).flatten(1).tanh()), a=nn.Linear(3, 6),
        read=nn.Conv1d(6, 2 * groups, 1, groups=groups), b=nn.Linear(2 * groups, 2),
    )  # fmt: skip


def inputs(seed):
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)).double()


def group(model):
    """The symmetry of a model, of which every element keeps the function."""
    return prove(model.double(), inputs(0), range(3), 1e-12, inputs)


def readable(order, groups):
    """The number of permutations of six units, rearranged by ``order``, that readers of groups of them can follow.

    A reader sees a set of units: what it sees after the units moved must be what one of the readers sees. For each way
    in which readers follow, their two outputs each may change places and signs too (``tanh``).
    """
    seen = {frozenset(order[k : k + 6 // groups]) for k in range(0, 6, 6 // groups)}
    moved = ({frozenset(p[unit] for unit in some) for some in seen} for p in permutations(range(6)))
    return sum(some == seen for some in moved) * 8**groups


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("name", REARRANGED)
def test_all_permutations_are_found(name, groups):
    torch.manual_seed(0)
    order = REARRANGED[name](torch.arange(6.0)[None])[0].long().tolist()
    sym = group(rearranged(REARRANGED[name], groups))
    assert round(exp(sym.log_size)) == readable(order, groups)


def test_a_layout_says_in_which_order_the_units_come():
    torch.manual_seed(0)
    sym = group(rearranged(REARRANGED["picked by a list"]))
    (part,) = sym.layouts["read.weight"].axes[1].parts
    assert part == Part(tuple((ORDER.index(k), ORDER.index(k) + 1) for k in range(6)), part.axis)
    assert isinstance(part.axis, Leaf) and part.axis.space == "a.weight[0]" and not isinstance(part.axis, Sum)


def test_random_orders_are_none():
    """Numbers drawn in the run are others in the next one; what is made of them alone is random too."""
    drawn = lambda h: h[:, torch.randperm(6)]
    made = lambda h: h[:, torch.rand(6).argsort()]
    written = lambda h: h[:, torch.zeros(6, dtype=torch.long).copy_(torch.randperm(6))]
    for rearrange in (drawn, made, written):
        model = rearranged(rearrange)
        assert any(value.drawn for value in capture(model, (inputs(0).float(),)).values)
        assert {space.name for space in symmetries(model, inputs(0).float()).spaces} == {"read.weight[0]"}


def test_units_that_meet_themselves_in_another_order_stay():
    for rearrange in (lambda h: h + h.flip(1), lambda h: h * torch.roll(h, 1, 1), lambda h: h - h[:, ORDER]):
        assert {space.name for space in group(rearranged(rearrange)).spaces} == {"read.weight[0]"}


def test_a_table_in_a_buffer_is_no_fixed_order():
    """Another checkpoint may hold another one."""
    model = rearranged(lambda h: h[:, model.order])
    model.register_buffer("order", torch.tensor(ORDER))
    assert {space.name for space in symmetries(model, inputs(0).float()).spaces} == {"read.weight[0]"}


def test_rows_that_nothing_reads_stay():
    torch.manual_seed(0)
    model = rearranged(lambda h: torch.cat((h[:, [4, 1, 3]], h[:, [1, 3, 4]]), 1))
    sym = group(model)
    assert sorted(space.size for space in sym.spaces) == [2, 3]
    for seed in range(3):
        twin = sym.act(sym.random(seed=seed), model)
        assert torch.equal(twin.a.bias[[0, 2, 5]], model.a.bias[[0, 2, 5]])


class Drawn(nn.Module):
    """A network of few units, rearranged, cut, joined, read in groups and added to each other at random."""

    def __init__(self, seed):
        super().__init__()
        self.rng, self.w, self.steps, widths = random.Random(seed), nn.ParameterList(), [], [3]
        self.draw(self.linear, widths)
        for _ in range(self.rng.randint(2, 7)):
            moves = [self.shuffle, self.order, self.part, self.joined]
            self.draw(self.rng.choice([*moves, self.pair, self.unary, self.linear, self.grouped]), widths)
        self.draw(self.linear, widths)

    def draw(self, make, widths):
        i = self.rng.randrange(1, len(widths)) if len(widths) > 2 and self.rng.random() < 0.4 else len(widths) - 1
        step = make(i, widths)
        if step is not None:
            self.steps.append(step[0])
            widths.append(step[1])

    def weight(self, *shape):
        self.w.append(nn.Parameter(torch.randn(*shape) / 2))
        return len(self.w) - 1

    def parted(self, c):
        return [g for g in range(2, c) if c % g == 0]

    def linear(self, i, widths):
        k = self.weight(n := self.rng.choice([4, 6, 8, 12]), widths[i])
        return lambda v, w: F.linear(v[i], w[k]), n

    def shuffle(self, i, widths):
        if not (divisors := self.parted(c := widths[i])):
            return None
        g = self.rng.choice(divisors)
        return lambda v, _: v[i].view(-1, g, c // g).transpose(1, 2).reshape(-1, c), c

    def order(self, i, widths):
        order, shift = self.rng.sample(range(c := widths[i]), c), self.rng.randrange(1, c)
        f = self.rng.choice([lambda x: x.flip(1), lambda x: torch.roll(x, shift, 1), lambda x: x[:, order]])
        return lambda v, _: f(v[i]), c

    def part(self, i, widths):
        if (c := widths[i]) < 4:
            return None
        some, start = self.rng.sample(range(c), self.rng.randint(2, c - 1)), self.rng.randrange(2)
        cuts = [lambda x: x[:, some], lambda x: x[:, start::2], lambda x: x[:, start : c - 1], lambda x: x[:, ::3]]
        f = self.rng.choice(cuts)
        return lambda v, _: f(v[i]), f(torch.zeros(1, c)).shape[1]

    def joined(self, i, widths):
        j = self.rng.randrange(1, len(widths))
        return (lambda v, _: torch.cat((v[i], v[j]), 1), n) if (n := widths[i] + widths[j]) < 25 else None

    def pair(self, i, widths):
        j = self.rng.choice([k for k, n in enumerate(widths) if n == widths[i]])
        f = self.rng.choice([torch.add, torch.mul, lambda x, y: torch.stack((x, y), -1).flatten(1)])
        return (lambda v, _: f(v[i], v[j]), f(*torch.zeros(2, 1, widths[i])).shape[1]) if widths[i] < 13 else None

    def unary(self, i, widths):
        gain = self.weight(widths[i])
        if self.rng.random() < 0.2:
            return lambda v, w: v[i] * w[gain], widths[i]
        f = self.rng.choice([torch.relu, torch.tanh, torch.square, lambda x: x.softmax(1)])
        return lambda v, _: f(v[i]), widths[i]

    def grouped(self, i, widths):
        if not (divisors := [*self.parted(c := widths[i]), c]):
            return None
        g, o = self.rng.choice(divisors), self.rng.choice([1, 2])
        k = self.weight(g * o, c // g, 1)
        return (lambda v, w: F.conv1d(v[i][..., None], w[k], groups=g)[..., 0], g * o) if 1 < g * o < 25 else None

    def forward(self, x):
        values = [x]
        for step in self.steps:
            values.append(step(values, self.w))  # its own weights: steps are shared by its copies
        return values[-1]


@pytest.mark.parametrize("block", range(4))
def test_no_element_of_a_drawn_network_changes_it(block):
    moving = changed = 0
    for seed in range(block, 240, 4):
        torch.manual_seed(seed)
        model = Drawn(seed).double()
        sym, x = symmetries(model, inputs(0)), inputs(1)
        y = model(x)
        for k in range(2):
            moved = sym.act(sym.random(seed=k), model)
            assert (moved(x) - y).abs().max() <= 1e-8 * y.abs().max(), f"seed {seed}"
            changed += any(not torch.equal(p, q) for p, q in zip(model.parameters(), moved.parameters()))
        with torch.no_grad():
            moved.w[-1].zero_()
        assert not torch.equal(moved(x), y)  # copies compute with weights of their own
        moving += bool(sym.spaces)
    assert moving > 45 and changed > 90


def joined_with_zeros(h):
    return torch.cat((h[:, :3], torch.zeros_like(h[:, 3:])), 1).roll(2, 1) + h


def picked_twice(h):
    return torch.cat((h[:, [2]], h[:, [2, 5, 1, 0, 3]]), 1).tanh()


def rolled_and_padded(h):
    return h.tanh().roll(4, 1) + F.pad(h.tanh()[:, [3]], (0, 5))


def drawn_by_torch(h):
    return h[:, torch.randperm(6).tolist()]


def drawn_by_numpy(h):
    return h[:, np.random.permutation(6)]  # noqa: NPY002


def drawn_by_python(h):
    return h[:, random.sample(range(6), 6)]


def rolled_by_chance(h):
    return h.roll(int(torch.randint(1, 6, ())), 1)


def between(function):
    """A function of hidden units between two layers."""
    return Made(lambda m, x: m.b(torch.tanh(function(m.a(x)))), a=nn.Linear(3, 6), b=nn.Linear(6, 2))


@pytest.mark.parametrize("function", [joined_with_zeros, picked_twice, rolled_and_padded])
def test_units_that_meet_others_of_their_space_stay_what_they_are(function):
    torch.manual_seed(0)
    model, x = between(function).double(), torch.randn(5, 3, dtype=torch.double)
    sym = symmetries(model, torch.randn(4, 3, dtype=torch.double))
    for k in range(4):
        torch.testing.assert_close(sym.act(sym.random(seed=k), model)(x), model(x), atol=1e-10, rtol=0)


def test_units_in_bounds_that_were_drawn_stay_what_they_are():
    def cut(h):
        start = random.randrange(4)
        return h[:, start : start + 3].repeat(1, 2)

    model, x = between(cut).double(), torch.randn(5, 3, dtype=torch.double)
    sym = symmetries(model, x)
    for k in range(16):
        random.seed(k)
        expected = model(x)
        random.seed(k)
        torch.testing.assert_close(sym.act(sym.random(seed=k), model)(x), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("function", [drawn_by_torch, drawn_by_numpy, drawn_by_python, rolled_by_chance])
def test_an_order_that_was_drawn_is_no_order_of_the_code(function):
    assert not any(s.group.permutes for s in symmetries(between(function), torch.randn(4, 3)).spaces)
