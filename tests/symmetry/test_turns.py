"""Turns of rotary pairs: found in every layout, proved, counted by the Jacobian, refused where nothing turns."""

import math

import pytest
import torch
from completeness import completeness
from noise import shaken
from torch import nn
from torch.nn import functional as F
from upstream import runs_on_meta

import intertwine as iw
from intertwine.groups import Orthogonal
from intertwine.symmetry.detection.rules.fused_calls import fused
from intertwine.testing import function_error

HEADS, SIZE = 4, 4


def halves(x, c, s):
    y, z = x.chunk(2, -1)
    return x * torch.cat([c, c], -1) + torch.cat([-z, y], -1) * torch.cat([s, s], -1)


def halves_by_hand(x, c, s):
    y, z = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat([y * c - z * s, z * c + y * s], -1)


def neighbours(x, c, s):
    y, z = x[..., ::2], x[..., 1::2]
    return torch.stack([y * c - z * s, y * s + z * c], -1).flatten(-2)


def as_complex(x, c, s):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(c, s)).flatten(-2)


def partial(x, c, s):
    turned, rest = x.split(2, -1)
    return torch.cat([halves(turned, c[..., :1], s[..., :1]), rest], -1)


class Attention(nn.Module):
    """Attention with positions that turn queries and keys; fewer key heads are shared by groups of queries."""

    def __init__(self, turn, keys=HEADS, width=6, angles=None):
        super().__init__()
        self.turn, self.keys = turn, keys
        self.q, self.k = (nn.Linear(width, n * SIZE) for n in (HEADS, keys))
        self.v = nn.Linear(width, keys * SIZE, bias=False)
        self.o = nn.Linear(HEADS * SIZE, width)
        self.angles = angles

    def tables(self, x):
        places = torch.arange(1.0, x.shape[1] + 1, dtype=x.dtype)[:, None]
        angles = places * (self.angles if self.angles is not None else torch.tensor([0.7, 0.3], dtype=x.dtype))
        return 1.5 * angles.cos(), angles.sin()  # c^2 + s^2 need not be one

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (self.q, self.k, self.v))
        tables = self.tables(x)
        q, k = (self.turn(y, *tables) for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // self.keys, 1) for y in (k, v))
        return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


def made(*arguments, **options):
    torch.manual_seed(0)
    model = Attention(*arguments, **options).double()
    return model, torch.randn(24, 5, 6, dtype=torch.float64)


def turns_of(sym):
    return [space for space in sym.spaces if space.group.turns]


LAYOUTS = [halves, halves_by_hand, neighbours, as_complex]


@pytest.mark.parametrize("keys", [HEADS, 2])
@pytest.mark.parametrize("turn", LAYOUTS)
def test_every_pair_of_every_head_has_its_turns(turn, keys):
    model, x = made(turn, keys)
    sym = iw.symmetries(model, x)
    (plane,) = turns_of(sym)
    assert plane.group.linear == Orthogonal(2, special=True) and plane.symbol == "SO₂ each"
    heads, pairs = (sym.space(name) for name in plane.parents)
    assert (heads.size, pairs.size, pairs.group.scales) == (keys, SIZE // 2, 1)
    assert not pairs.group.permutes and not plane.group.permutes
    for kinds in (None, {"linear"}):
        twin = sym.act(sym.random(seed=1, kinds=kinds), model)
        assert not torch.allclose(twin.q.weight, model.q.weight, rtol=1e-2)
        assert function_error(model, twin, x) < 1e-10
    assert sym.verify(model, x)


@pytest.mark.parametrize("keys", [HEADS, 2])
@pytest.mark.parametrize("turn", LAYOUTS)
def test_the_dimension_is_that_of_the_null_space(turn, keys):
    model, x = made(turn, keys)
    sym = iw.symmetries(model, x)
    assert sym.dim == 2 * keys * SIZE // 2 + keys * SIZE**2  # a turn and a scale of each pair, a basis of values
    reading = completeness(sym, model, x)
    assert reading.detected == sym.dim and reading.gap == 0 and reading.leak < 1e-8, reading


def test_half_turns_connect_the_signs_of_pairs():
    model, x = made(halves)
    order, values = math.lgamma(HEADS + 1), HEADS * math.log(2)  # of heads, and a sign of the values of each
    assert iw.symmetries(model, x).log_size == pytest.approx(order + values)


def test_what_is_not_turned_stays_linear():
    model, x = made(partial)
    sym = iw.symmetries(model, x)
    assert turns_of(sym)
    rest = [space for space in sym.spaces if space.group.is_general and space.size == SIZE - 2]
    assert len(rest) == 1  # of queries and keys
    assert function_error(model, sym.act(sym.random(seed=1), model), x) < 1e-10


def hyperbolic(x, c, s):
    y, z = x.chunk(2, -1)
    return torch.cat([y * c + z * s, z * c + y * s], -1)


def uneven(x, c, s):
    y, z = x.chunk(2, -1)
    return torch.cat([y * c - z * s, z * (2 * c) + y * s], -1)


def read_elsewhere(x, c, s):
    y, z = x.chunk(2, -1)
    crossed = torch.cat([-z, y], -1)
    return x * torch.cat([c, c], -1) + crossed * torch.cat([s, s], -1) + 0.1 * crossed.abs()


def gained(x, c, s):
    return halves(F.rms_norm(x, x.shape[-1:], torch.linspace(0.5, 1.5, SIZE, dtype=x.dtype)), c, s)


@pytest.mark.parametrize("turn", [hyperbolic, uneven, read_elsewhere, gained])
def test_where_pairs_are_not_turned_alone_they_do_not_turn(turn):
    model, x = made(turn)
    sym = iw.symmetries(model, x)
    assert not turns_of(sym)
    assert function_error(model, sym.act(sym.random(seed=1), model), x) < 1e-10
    turned, _ = made(halves)
    found = iw.symmetries(turned, x)
    by_hand = found.act(found.random(seed=1, kinds={"linear"}), turned)
    by_hand.turn = turned.turn = turn  # the same weights in the network that does not turn
    assert (by_hand(x) - turned(x)).abs().max() > 1e-3 * turned(x).abs().max()


def test_angles_that_are_learned_are_not_those_of_positions():
    model, x = made(halves, angles=nn.Parameter(torch.tensor([0.7, 0.3])))
    sym = iw.symmetries(model, x)
    assert not any(call.op == "intertwine::turn" for call in fused(sym.origin.program))
    assert function_error(model, sym.act(sym.random(seed=1), model), x) < 1e-10


def test_angles_kept_in_a_saved_buffer_stay():
    model, x = made(halves)
    del model.angles
    model.register_buffer("angles", torch.tensor([0.7, 0.3], dtype=torch.float64))
    sym = iw.symmetries(model, x)
    assert turns_of(sym) and "angles" in {fixed.tensor for fixed in sym.fixed}


_SIZES = {
    "vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 12,
    "use_cache": False,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}
# class -> settings, and whether pairs turn: gains of norms of queries and keys forbid it
CODES = {
    "Llama": (_GROUPED, True),
    "Gemma": (_GROUPED, True),
    "Gemma2": (_GROUPED, True),
    "Qwen2": (_GROUPED, True),
    "Qwen3": (_GROUPED, False),
    "GPTNeoX": ({**_SIZES, "rotary_pct": 1.0}, True),
    "GPTJ": ({**_SIZES, "n_positions": 16, "rotary_dim": 2}, True),
}


@runs_on_meta
@pytest.mark.parametrize("name", CODES)
def test_code_of_others(name, monkeypatch):
    transformers = pytest.importorskip("transformers")
    settings, turn = CODES[name]
    config = getattr(transformers, f"{name}Config")(**settings)
    make = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    model, x = make(config).double().eval(), {"input_ids": torch.randint(13, (2, 5))}
    shaken(model, 0.3)
    sym = iw.symmetries(model, x)
    assert bool(turns_of(sym)) == turn
    with torch.device("meta"):
        unloaded = iw.symmetries(make(config).eval(), {"input_ids": torch.zeros(2, 5, dtype=torch.int64)})
    assert [(s.name, s.group, s.parents) for s in unloaded.spaces] == [(s.name, s.group, s.parents) for s in sym.spaces]
    monkeypatch.setattr(torch, "float32", torch.float64)  # norms and softmax are computed there
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    expected = model(**x).logits
    for kinds in (None, {"linear"}):
        found = sym.act(sym.random(seed=1, kinds=kinds), model)(**x).logits
        assert found.dtype == torch.float64 and (found - expected).abs().max() < 1e-10 * expected.abs().max()


@pytest.mark.parametrize("noise", [0.0, 1e-2])
@pytest.mark.parametrize("turn", [halves, neighbours])
def test_planted_turns_are_recovered(turn, noise):
    model, x = made(turn, 2)
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=2, kinds={"linear"}), model)
    shaken(twin, noise, torch.std)
    found = iw.same(model, twin, x)
    assert found.verdict.startswith("the same network" if not noise else "related")
    assert found.residual < 5 * noise + 1e-9
    planted = [e for name, e in sym.random(seed=2).elements.items() if sym.space(name).group.turns]
    fitted = [e for name, e in found.transformation.elements.items() if sym.space(name).group.turns]
    for one, other in zip(planted, fitted, strict=True):
        signs = (one.linear * other.linear).sum((-2, -1)).sign()[..., None, None]  # a half turn is a sign of the pair
        assert (one.linear - signs * other.linear).abs().max() < 20 * noise + 1e-9
    aligned = iw.align(model, twin, x, chance=False)
    assert aligned.after < 0.1 * aligned.before
