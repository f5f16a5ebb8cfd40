"""Random programs: no element changes what they compute, nothing moves that they do not read, nothing is left changed.

``benchmarks/random_programs.py`` runs thousands; here are some of every operation, and engines that were made wrong on
purpose, which the oracle must notice.
"""

import functools

import pytest
import random_programs
import torch
from random_programs import OPERATIONS, draw, vacuous_spaces, worst_change

from intertwine.symmetry import symmetries
from intertwine.symmetry.detection.rules import registry

SEEDS = range(120)
drawn_once = functools.cache(draw)


@pytest.mark.parametrize("block", range(4))
def test_no_wrong_answer(block):
    moving = 0
    for seed in SEEDS[block::4]:
        model, inputs = drawn_once(seed)
        sym = symmetries(model, inputs[0])
        assert model.calls == 0, f"seed {seed}: an attribute was left changed"
        assert not model.cache, f"seed {seed}: a cache was left behind"
        assert not vacuous_spaces(sym, model, inputs), f"seed {seed} {model.names}"
        change = worst_change(sym, model, inputs)
        assert change.error < (1e-6 if sym.dtype == torch.float64 else 1e-2), f"seed {seed} {model.names} {change}"
        moving += bool(sym.spaces)
    assert moving > len(SEEDS[block::4]) / 3  # of all more than half


def test_programs_reach_every_operation():
    assert {name for seed in SEEDS for name in drawn_once(seed)[0].names} == set(OPERATIONS)


def test_a_seed_gives_one_program():
    for seed in range(5):
        a, b = draw(seed)[0], draw(seed)[0]
        assert a.names == b.names
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))


def passes_everything(engine, call):
    """A wrong rule: the result moves as the first argument does."""
    return engine.value(call.inputs[0])


@pytest.mark.parametrize(
    ("op", "drawn"),
    [
        ("aten::tanh", "linear_then_activation"),
        ("aten::gelu", "linear_then_activation"),
        ("aten::roll", "reshape"),
        ("aten::_softmax", "hand_written_norm"),
        ("aten::cumsum", "hand_written_norm"),
        ("aten::relu", "two_layers_residual"),
        ("aten::leaky_relu", "linear_then_activation"),
    ],
)
def test_a_wrong_rule_is_noticed(monkeypatch, op, drawn):
    monkeypatch.setitem(registry.RULES, op, passes_everything)
    assert any(_wrong(seed) for seed in _seeds_with(drawn))


def _seeds_with(operation):
    return [seed for seed in SEEDS if operation in drawn_once(seed)[0].names]


def _wrong(seed):
    model, inputs = drawn_once(seed)
    return worst_change(symmetries(model, inputs[0]), model, inputs).error > 1e-2


def test_an_unread_part_is_noticed():
    """The oracle for what is not read sees a space that only lives there, where nothing else hides it."""
    programs = [draw for draw in map(drawn_once, SEEDS) if "unused" in draw[0].names][:10]
    seen = [any(bool(mask.any()) for mask in random_programs._unread(*one).values()) for one in programs]
    assert sum(seen) >= 8
