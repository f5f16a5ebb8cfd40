"""What a run does not constrain is fixed: parts that nothing reads, and parameters that meet nothing but zeros."""

import pytest
import torch
import torch.nn.functional as F
from made import Made
from torch import nn

from intertwine import Examples
from intertwine.errors import PathWarning
from intertwine.groups import GeneralLinear, Semidirect
from intertwine.symmetry import symmetries
from intertwine.symmetry.blocks import blocks
from intertwine.symmetry.spaces import Space
from intertwine.symmetry.transformation import random
from intertwine.testing import function_error


class Head(nn.Module):
    """A hidden layer that ``function`` computes with the parameters ``w``, ``u`` and ``v``, and a head."""

    def __init__(self, function):
        super().__init__()
        self.function, self.head = function, nn.Linear(4, 2)
        self.w, self.u, self.v = (nn.Parameter(torch.randn(n, m)) for n, m in ((4, 5), (4, 4), (4, 9)))
        self.packed = nn.Parameter(torch.randn(12, 5))

    def forward(self, x):
        return self.head(torch.relu(self.function(self, x)))


CUTS = {
    "chunk": lambda t: t.chunk(3)[1], "split": lambda t: t.split(4)[1], "slice": lambda t: t[4:8],
    "view": lambda t: t.view(3, 4, -1)[1], "unbind": lambda t: t.view(3, 4, -1).unbind()[1],
    "narrow": lambda t: t.narrow(0, 4, 4), "copy": lambda t: t.clone().chunk(3)[1],
    "normalised": lambda t: F.normalize(t, dim=1).chunk(3)[1],
    "dead readers": lambda t: (t.chunk(3)[2].relu(), t.chunk(3)[1])[1],
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_parts_that_nothing_reads_are_fixed(name):
    model, x = Head(lambda m, x: x @ CUTS[name](m.packed).T).double(), torch.randn(3, 5).double()
    sym = symmetries(model, x)
    assert [(s.name, s.size) for s in sym.spaces] == [("packed[0].1", 4)]
    assert sym.explain("packed", 0).count("not used by the outputs") == 2
    twin = sym.act(sym.random(seed=0), model)
    moved = (twin.packed != model.packed).any(1)
    assert function_error(model, twin, x) < 1e-12 and not moved[:4].any() and not moved[8:].any()


ZEROS = {
    "a state that begins with zeros": lambda m, x: x @ m.w.T + torch.zeros(len(x), 4, dtype=x.dtype) @ m.u.T,
    "zeros like the input": lambda m, x: x @ m.w.T + x.new_zeros(len(x), 4) @ m.u.T,
    "joined with the input": lambda m, x: torch.cat([x, x.new_zeros(len(x), 4)], 1) @ m.v.T,
    "padding": lambda m, x: F.pad(x, (0, 4)) @ m.v.T,
    "a gate of a state": lambda m, x: x @ m.w.T + x.new_zeros(len(x), 4) * (x @ m.w.T @ m.u).sigmoid(),
    "times the number zero": lambda m, x: x @ m.w.T + 0.0 * (x @ m.w.T @ m.u),
    "never chosen": lambda m, x: torch.where(torch.zeros(len(x), 4, dtype=torch.bool), x @ m.w.T @ m.u, x @ m.w.T),
    "no rows": lambda m, x: x @ m.w.T + (x[:0] @ m.w.T @ m.u).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", ZEROS)
def test_parameters_that_meet_nothing_but_zeros_are_fixed_with_what_they_would_carry(name):
    model, x = Head(ZEROS[name]).double(), torch.randn(3, 5).double()
    sym = symmetries(model, x)
    assert not sym.spaces
    unread = "v" if name in ("joined with the input", "padding") else "u"
    for axis in (0, 1):
        assert "fixed" in sym.explain(unread, axis) and "moved" not in sym.explain(unread, axis)


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_one_step_from_a_zero_state_says_nothing_of_three(cell):
    model, three = Recurrent(cell).double(), torch.randn(2, 3, 3).double()
    sym = symmetries(model, three[:, :1])
    assert function_error(model, sym.act(sym.random(seed=1), model), three) < 1e-12
    assert symmetries(model, three).spaces


def test_a_group_too_large_for_memory_is_refused():
    with pytest.raises(ValueError, match=r"matrices of a random element must fit in memory. Got GL₁₀₀₀₀₀₀₀"):
        random((Space("fc.weight[1]", Semidirect(GeneralLinear(10_000_000))),))


class Experts(nn.Module):
    """Every example goes to the expert that its largest feature names; only experts that are named run."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(4))
        self.side = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h, out = self.stem(x), torch.zeros_like(x)
        chosen = x.argmax(1)
        for k in chosen.unique().tolist():
            out[chosen == k] = self.experts[k](h[chosen == k])
        return self.head(out + self.side(x[:, :3]))


def to_experts(*which):
    return (torch.eye(4) * 9)[list(which)].double() + torch.randn(len(which), 4).double()


def test_what_unvisited_experts_may_meet_is_fixed():
    model, every = Experts().double(), to_experts(0, 1, 2, 3, 0, 2)
    sym = symmetries(model, to_experts(0, 0, 2))
    assert {s.name for s in sym.spaces} >= {"experts.0.0.weight[0]", "experts.2.0.weight[0]", "side.0.weight[0]"}
    assert "not read on the path of the example" in sym.explain("stem.weight", 0)
    assert len(sym.unread) == 8 and "8 tensors not read there" in sym.summary()
    g = sym.random(seed=0)
    assert "certified for inputs that take the path" in repr(g) and "certified" in repr(~g @ g)
    with pytest.warns(PathWarning, match="8 tensors not read"):
        twin = sym.act(g, model)
    assert function_error(model, twin, every) < 1e-12


def test_several_examples_together_read_all_experts():
    model = Experts().double()
    examples = Examples(to_experts(0, 0, 2), to_experts(1, 3))
    one, all_of_them = symmetries(model, examples.inputs[0]), symmetries(model, examples)
    whole = symmetries(model, to_experts(0, 1, 2, 3))
    assert not all_of_them.unread and {s.name for s in one.spaces} < {s.name for s in all_of_them.spaces}
    assert [(s.name, s.size, s.symbol) for s in all_of_them.spaces] == [
        (s.name, s.size, s.symbol) for s in whole.spaces
    ]
    with pytest.warns(PathWarning):
        twin = all_of_them.act(all_of_them.random(seed=0), model)
    assert function_error(model, twin, Examples(to_experts(3, 1, 0), to_experts(2, 2))) < 1e-12
    assert all_of_them.verify(model, examples).passed


def test_examples_are_not_empty():
    with pytest.raises(ValueError, match="at least one example"):
        Examples()


@pytest.mark.parametrize("whole", [True, False])
def test_a_single_key_gets_all_of_the_attention(whole):
    """What queries and keys do where there are several, this run says nothing of."""

    def run(m, x):
        q, k, v = m.q(x), m.k(x.mean(1, keepdim=True)), m.v(x.mean(1, keepdim=True))
        if whole:
            return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return (q @ k.mT).softmax(-1) @ v

    sym = symmetries(Made(run, q=nn.Linear(6, 6), k=nn.Linear(6, 6), v=nn.Linear(6, 6)), torch.randn(2, 5, 6))
    assert {fixed.tensor for fixed in sym.fixed if "not used" in fixed.reason} >= {"q.weight", "k.weight"}
    assert not any(name.startswith(("q.", "k.")) for name in moved_tensors(sym))


def moved_tensors(sym):
    return [name for name, layout in sym.layouts.items() if any(block.carried for block in blocks(layout))]
