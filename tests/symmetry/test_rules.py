"""Every rule alone between two linear maps: what must pass does, what must not does not, the function is kept."""

import math

import pytest
import torch
import torch.nn.functional as F
from made import Made
from sandwich import NZ, G, M, O, P, S, group_of, moving, prove
from torch import nn

from intertwine.symmetry import register_rule, symmetries
from intertwine.testing import function_error


def between(function, out=6):
    """A function of ``(N, 6, 8)`` features between two pointwise convolutions."""
    return Made(
        lambda m, x: m.b(function(m.a(x), m.w)), a=nn.Conv1d(3, 6, 1), b=nn.Conv1d(out, 2, 1),
        w=nn.Parameter(torch.rand(6) + 0.5),
    )  # fmt: skip


column = lambda w: w[None, :, None]

PLACES = torch.tensor([3, 0, 0, 7, 2])
OTHERS = torch.arange(30).reshape(6, 5) % 8
GRID = torch.rand(4, 1, 5, 2, generator=torch.Generator().manual_seed(0)).double() - 0.5

# name -> (function of features and a vector of six parameters, the group of the hidden space, channels out)
CASES = {
    "identity": (lambda h, w: h, G), "neg": (lambda h, w: -h, G), "scalar times": (lambda h, w: 2.5 * h, G),
    "scalar plus": (lambda h, w: h + 1, P), "sum of copies": (lambda h, w: h + h, G),
    "relu": (lambda h, w: F.relu(h), M), "leaky_relu": (lambda h, w: F.leaky_relu(h, 0.2), M),
    "leaky -1": (lambda h, w: F.leaky_relu(h, -1.0), NZ), "leaky 1": (lambda h, w: F.leaky_relu(h, 1.0), G),
    "abs": (lambda h, w: h.abs(), NZ), "square": (lambda h, w: h.pow(2), NZ), "cube": (lambda h, w: h**3, NZ),
    "self product": (lambda h, w: h * h, NZ), "sign": (lambda h, w: h.sign(), NZ), "tanh": (lambda h, w: h.tanh(), S),
    "sin": (lambda h, w: h.sin(), S), "cos": (lambda h, w: h.cos(), S), "sigmoid": (lambda h, w: h.sigmoid(), P),
    "gelu": (lambda h, w: F.gelu(h), P), "silu": (lambda h, w: F.silu(h), P),
    "softplus": (lambda h, w: F.softplus(h), P),
    "hardtanh": (lambda h, w: F.hardtanh(h), S), "relu6": (lambda h, w: F.relu6(h), P),
    "exp": (lambda h, w: h.exp(), P),
    "clamp 0": (lambda h, w: h.clamp(min=0), M), "softsign": (lambda h, w: F.softsign(h), S),
    "mish": (lambda h, w: F.mish(h), P), "hardshrink": (lambda h, w: F.hardshrink(h), S),
    "threshold": (lambda h, w: F.threshold(h, 0.1, 0.0), P), "reciprocal": (lambda h, w: 1 / (h.abs() + 1), S),
    "relu squared": (lambda h, w: F.relu(h).square(), M), "prelu": (lambda h, w: F.prelu(h, w), M),
    "sqrt": (lambda h, w: h.abs().sqrt(), NZ), "gain": (lambda h, w: h * column(w), NZ),
    "bias": (lambda h, w: h + column(w), G),
    "divided": (lambda h, w: h / column(w), NZ), "mask": (lambda h, w: h * (h > 0), M),
    "where": (lambda h, w: torch.where(h > 0, h, torch.zeros_like(h)), M),
    "where two": (lambda h, w: torch.where(h > 0, h, 0.3 * h), M), "compared": (lambda h, w: h * (h > 0.1), P),
    "maximum": (lambda h, w: torch.maximum(h, 0.2 * h), M),
    "maximum number": (lambda h, w: torch.maximum(h, torch.tensor(0.3)), P),
    "step": (lambda h, w: torch.ops.aten.threshold_backward(h, h, 0), M),
    "late step": (lambda h, w: torch.ops.aten.threshold_backward(h, h, 0.1), P),
    "leaky step": (lambda h, w: torch.ops.aten.leaky_relu_backward(h, h, 0.2, False), M),
    "derivative of tanh": (lambda h, w: torch.ops.aten.tanh_backward(h, h.tanh()), S),
    "derivative of shrinking": (lambda h, w: torch.ops.aten.softshrink_backward(h, h, 0.1), S),
    "derivative of silu": (lambda h, w: torch.ops.aten.silu_backward(h, h), P),
    "derivative of softplus": (lambda h, w: torch.ops.aten.softplus_backward(h, h, 1, 20), P),
    "softmax": (lambda h, w: h.softmax(1), P), "softmax over space": (lambda h, w: h.softmax(2), P),
    "log_softmax": (lambda h, w: h.log_softmax(1), P), "glu": (lambda h, w: F.glu(torch.cat([h, h], 1), 1), P),
    "layer_norm": (lambda h, w: F.layer_norm(h.transpose(1, 2), (6,)).transpose(1, 2), P),
    "rms_norm": (lambda h, w: F.rms_norm(h.transpose(1, 2), (6,)).transpose(1, 2), O),
    "rms by hand": (lambda h, w: h * torch.rsqrt(h.pow(2).mean(1, keepdim=True) + 1e-6), O),
    "rms gain": (lambda h, w: F.rms_norm(h.transpose(1, 2), (6,), w).transpose(1, 2), NZ),
    "normalize": (lambda h, w: F.normalize(h, dim=1), O), "instance": (lambda h, w: F.instance_norm(h), S),
    "group 1": (lambda h, w: F.group_norm(h, 1), P), "std": (lambda h, w: h / (h.std(1, keepdim=True) + 1), P),
    "batch statistics": (lambda h, w: F.batch_norm(h, None, None, training=True), S),
    "max_pool": (lambda h, w: F.max_pool1d(h, 2), M), "avg_pool": (lambda h, w: F.avg_pool1d(h, 2), G),
    "adaptive": (lambda h, w: F.adaptive_avg_pool1d(h, 1), G),
    "mean over space": (lambda h, w: h.mean(2, keepdim=True), G),
    "amax over space": (lambda h, w: h.amax(2, keepdim=True), M),
    "interpolate": (lambda h, w: F.interpolate(h, scale_factor=2), G),
    "pad": (lambda h, w: F.pad(h, (1, 1)), G), "reflect": (lambda h, w: F.pad(h, (1, 1), "reflect"), G),
    "flip over space": (lambda h, w: h.flip(2), G), "cumsum over space": (lambda h, w: h.cumsum(2), G),
    "roll over space": (lambda h, w: h.roll(1, 2), G), "every second place": (lambda h, w: h[:, :, ::2], G),
    "view and back": (lambda h, w: h.transpose(1, 2).reshape(-1, 6).view(-1, 8, 6).transpose(1, 2), G),
    "excite": (lambda h, w: h * torch.sigmoid(h.mean((1, 2), keepdim=True)), P),
    "gate by one": (lambda h, w: h * h.pow(2).mean(1, keepdim=True), O),
    "masked_fill": (lambda h, w: h.masked_fill(h < 0, 0.0), M),
    "gram": (lambda h, w: h @ (h.transpose(1, 2) @ h), O),
    "cast": (lambda h, w: h.to(torch.float64), G), "dropout": (lambda h, w: F.dropout(h, 0.5, False), G),
    "concatenated": (lambda h, w: torch.cat([h, F.relu(h)], 1), M, 12),
    "padded": (lambda h, w: F.pad(h, (0, 0, 2, 2)), G, 10),
    "stacked": (lambda h, w: torch.stack([h, h], 1).sum(1), G), "repeated": (lambda h, w: h.repeat(1, 2, 1), G, 12),
    "einsum": (lambda h, w: torch.einsum("bcx,bcy->bxy", h, h) @ torch.ones(8, 1).double(), O, 8),
    "triu": (lambda h, w: h.unflatten(2, (2, 4)).triu().flatten(2), G),
    "triu over channels": (lambda h, w: h.triu(), "held"),
    "moments": (lambda h, w: (lambda v, m: h * v + m)(*torch.var_mean(h, 2, keepdim=True)), S),
    "moments over channels": (lambda h, w: (lambda v, m: h * v + m)(*torch.std_mean(h, 1, keepdim=True)), P),
    "sort over space": (lambda h, w: h.sort(2).values, M),
    "sort over channels": (lambda h, w: h.sort(1).values, "held"),
    "topk over space": (lambda h, w: h.topk(3, 2).values, M),
    "places over space": (lambda h, w: h.sort(2, descending=True).indices.double(), M),
    "gather over space": (lambda h, w: h.gather(2, PLACES.expand(4, 6, 5)), G),
    "gather by channel": (lambda h, w: h.gather(2, OTHERS.expand(4, 6, 5)), "held"),
    "gather over channels": (lambda h, w: h.gather(1, h.abs().sort(1).indices), "held"),
    "index over space": (lambda h, w: h[:, :, PLACES], G), "index_select": (lambda h, w: h.index_select(2, PLACES), G),
    "unfold": (lambda h, w: h.unfold(2, 3, 2).mean(3), G),
    "im2col": (lambda h, w: F.unfold(h[:, :, None], (1, 3)).unflatten(1, (6, 3)).amax(2), M),
    "fold": (lambda h, w: F.fold(F.unfold(h[:, :, None], (1, 3)), (1, 8), (1, 3))[:, :, 0], G),
    "grid_sample": (lambda h, w: F.grid_sample(h[:, :, None], GRID, align_corners=False)[:, :, 0], G),
    "shape of a part": (lambda h, w: torch.cat([h, torch.full_like(h[:, :1], 0.3)], 1), G, 7),
    "round": (lambda h, w: h.round(), S), "to integers": (lambda h, w: h.long().double(), P),
    "a number along an axis": (lambda h, w: h.relu() * w.sum().sum(0).amax(0).cumsum(0).logsumexp(0), M),
    "addcmul": (lambda h, w: torch.addcmul(h, h, h), P), "erf": (lambda h, w: h.erf(), S),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    function, expected, out = (*CASES[name], 6)[:3]
    torch.manual_seed(0)
    model, x = between(function, out).double(), torch.randn(4, 3, 8).double()
    sym = prove(model, x)
    assert moving(sym) == expected and not sym.unknown_ops


def test_a_user_can_teach_an_operation():
    @torch.library.custom_op("intertwine_tests::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    model, x = between(lambda h, w: halve(h)).double(), torch.randn(4, 3, 8).double()
    before = symmetries(model, x)
    assert not before.spaces and before.unknown_ops == ("intertwine_tests::halve",)

    @register_rule("intertwine_tests::halve")
    def rule(engine, call):
        return engine.value(call.args["x"])

    after = symmetries(model, x)
    assert [s.group.is_general for s in after.spaces] == [True] and not after.unknown_ops


@pytest.mark.parametrize(("mode", "expected"), [("sum", G), ("mean", G), ("max", M)])
def test_bags_of_embeddings(mode, expected):
    torch.manual_seed(0)
    bags = Made(lambda m, x: m.out(m.table(x)), table=nn.EmbeddingBag(9, 6, mode=mode), out=nn.Linear(6, 3))
    model, x = bags.double(), torch.randint(9, (4, 5))
    sym = prove(model, x)
    assert [group_of(s) for s in sym.spaces] == [expected] and not sym.unknown_ops


def test_packed_projections_do_not_tie_their_parts():
    def run(m, x):
        q, k, v = m.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(4)).softmax(-1)
        return m.o((scores @ v).transpose(1, 2).flatten(2))

    sym = symmetries(Made(run, qkv=nn.Linear(4, 24), o=nn.Linear(8, 3)), torch.randn(2, 5, 4))
    assert sorted(s.group.is_general for s in sym.spaces) == [False, True, True]
    assert sym.dim == 2 * 2 * 16


def test_groups_of_a_fixed_input_still_have_their_own_units():
    model = nn.Sequential(nn.Conv1d(4, 6, 1, groups=2), nn.ReLU(), nn.Conv1d(6, 2, 1))
    sym = symmetries(model, torch.randn(2, 4, 3))
    moving = next(s for s in sym.spaces if s.size == 3)
    assert len(moving.parents) == 1 and sym.dim == 6
    assert function_error(model.double(), sym.act(sym.random(0), model), torch.randn(2, 4, 3).double()) < 1e-12


@pytest.mark.parametrize(
    ("layer", "op", "dim"),
    [
        (nn.LeakyReLU(0.2), "leaky_relu", 4),
        (nn.LeakyReLU(0.2, True), "leaky_relu_", 4),
        (nn.ELU(inplace=True), "elu_", 0),
    ],
)
def test_activations_that_older_releases_of_torch_do_not_tag_have_their_rule(layer, op, dim, monkeypatch):
    monkeypatch.setattr(getattr(torch.ops.aten, op).default, "_tags", [])
    sym = symmetries(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)), torch.randn(2, 3))
    assert not sym.unknown_ops
    assert sym.dim == dim and len(sym.spaces) == 1
