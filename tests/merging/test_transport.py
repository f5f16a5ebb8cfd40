"""Optimal transport between widths: couplings, exact widening, equal widths, and what is refused."""

import pytest
import torch
from made import Made
from scipy.optimize import linprog
from torch import nn

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.lab import networks
from intertwine.merging import barrier, merge, transport
from intertwine.merging.transport import coupling
from intertwine.symmetry.action import tensors_of

X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def cheapest(cost):
    """The transport cost by linear programming."""
    n, m = cost.shape
    rows = [[1.0 if k // m == i else 0.0 for k in range(n * m)] for i in range(n)]
    columns = [[1.0 if k % m == j else 0.0 for k in range(n * m)] for j in range(m)]
    return linprog(cost.flatten().numpy(), A_eq=rows + columns, b_eq=[1 / n] * n + [1 / m] * m).fun


@pytest.mark.parametrize(("n", "m"), [(3, 3), (6, 4), (5, 7), (1, 4)])
def test_couplings_are_optimal(n, m):
    cost = torch.rand(n, m, dtype=torch.float64)
    plan = coupling(cost)
    assert torch.allclose(plan.sum(1), torch.full((n,), 1 / n).double())
    assert torch.allclose(plan.sum(0), torch.full((m,), 1 / m).double())
    assert float((plan * cost).sum()) == pytest.approx(cheapest(cost))


def test_entropy_smooths_and_costs():
    cost = torch.rand(8, 6, dtype=torch.float64)
    exact, smooth = coupling(cost), coupling(cost, entropy=0.5)
    assert torch.allclose(smooth.sum(1), torch.full((8,), 1 / 8).double(), atol=1e-6)
    assert float((smooth * cost).sum()) > float((exact * cost).sum())
    assert (smooth > 0).all() and (exact == 0).any()
    near = coupling(cost, entropy=0.02)
    assert float((near * cost).sum()) == pytest.approx(float((exact * cost).sum()), rel=0.05)


@pytest.mark.parametrize(
    ("wide", "narrow"), [("mlp:widths=12-18", "mlp:widths=6-9"), ("digits_cnn:width=8", "digits_cnn:width=4")]
)
def test_widening_by_whole_copies_keeps_the_function(wide, narrow):
    a, b = networks.build(wide).double().eval(), networks.build(narrow).double().eval()
    moved = transport(a, b, X.double()).apply(b)
    assert iw.testing.function_error(b, moved, X.double()) < 1e-12
    assert {n: t.shape for n, t in tensors_of(moved).items()} == {n: t.shape for n, t in tensors_of(a).items()}


def net(units, use, sizes=(3,), act=torch.relu):
    """Units written by a linear layer and used in some other way, with a parameter that the state dict has first."""
    return Made(
        lambda m, x: use(m, act(m.lift(x))), lift=nn.Linear(3, units), p=nn.Parameter(torch.randn(units, *sizes)),
    )  # fmt: skip


class Inner(nn.Module):
    """A module between the layer that writes units and the one that reads them."""

    def __init__(self, first, inner, last, act):
        super().__init__()
        self.first, self.inner, self.last, self.act = first, inner, last, act

    def forward(self, x):
        h = self.act(self.first(x))
        return self.last(self.act(self.inner(h, h) if isinstance(self.inner, nn.Bilinear) else self.inner(h)))


class Tied(nn.Module):
    def __init__(self, n, gain=False):
        super().__init__()
        self.embed, self.norm = nn.Linear(3, n, bias=False), nn.LayerNorm(n, elementwise_affine=gain)

    def forward(self, x):
        return nn.functional.linear(self.norm(self.embed(x)), self.embed.weight.mT)


def conv(n, m):
    return nn.Conv1d(n, m, 1)


USES = {
    "matrix": lambda n, act: net(n, lambda s, h: h @ s.p, act=act),
    "vector": lambda n, act: net(n, lambda s, h: h @ s.p, (), act),
    "gain and sum": lambda n, act: net(n, lambda s, h: (h * s.p).sum(-1), (), act),
    "square": lambda n, act: net(n, lambda s, h: (h * s.p).sum(-1) ** 2, (), act),
    "transposed": lambda n, act: net(n, lambda s, h: torch.einsum("bi,io->bo", h, s.p), act=act),
    "bilinear reads once": lambda n, act: Inner(nn.Linear(3, 3), nn.Bilinear(3, 3, n), nn.Linear(n, 2), act),
    "bilinear reads twice": lambda n, act: Inner(nn.Linear(3, n), nn.Bilinear(n, n, 4), nn.Linear(4, 2), act),
    "bilinear": lambda n, act: Inner(nn.Linear(3, n), nn.Bilinear(n, n, n), nn.Linear(n, 2), act),
    "depthwise": lambda n, act: Inner(conv(3, n), nn.Conv1d(n, n, 3, groups=n), conv(n, 2), act),
    "depthwise transposed": lambda n, act: Inner(conv(3, n), nn.ConvTranspose1d(n, n, 3, groups=n), conv(n, 2), act),
    "layer norm": lambda n, act: Inner(nn.Linear(3, n), nn.LayerNorm(n), nn.Linear(n, 2), act),
    "tied, with a gain between": lambda n, act: Tied(n, gain=True),
}


@pytest.mark.parametrize("act", [nn.ReLU(), nn.GELU()], ids=["scales", "no scales"])
@pytest.mark.parametrize("use", USES)
def test_copies_share_what_reads_them_whatever_module_or_operation_does(use, act):
    x = torch.randn(5, 3, 4) if "depthwise" in use else torch.randn(5, 3)
    a, b = (USES[use](n, act).double().eval() for n in (8, 4))
    found = transport(a, b, x.double())
    assert iw.testing.function_error(b, found.apply(b), x.double()) < 1e-12
    writer = next(name for name in tensors_of(a) if name.endswith("weight") and "inner" not in name)
    assert not any(key[0] == writer and key[1] == 0 for key in found.degrees)  # hidden features are not rescaled


def normed(n):
    """Queries and keys of one head, normed, with gains."""
    return Made(
        lambda m, x: torch.softmax(m.q(x) @ m.k(x).mT / m.q[0].out_features ** 0.5, -1) @ x,
        q=nn.Sequential(nn.Linear(3, n), nn.LayerNorm(n)), k=nn.Sequential(nn.Linear(3, n), nn.LayerNorm(n)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "build",
    [
        normed,
        Tied,
        lambda n: net(n, lambda s, h: (h + s.p).sum(-1), (), torch.tanh),
        lambda n: net(n, lambda s, h: nn.functional.normalize(h, dim=-1) @ s.p),
        lambda n: net(n, lambda s, h: h @ s.p / len(s.p)),
        lambda n: net(n, lambda s, h: h @ s.p.softmax(-1), act=torch.tanh),
        lambda n: nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(n, 2))),
    ],
    ids=["products of units", "tied", "sum", "norm", "width", "softmax", "weight norm"],
)
def test_units_whose_copies_would_compute_something_else_are_refused(build):
    x = torch.randn(4, 5, 3)
    with pytest.raises(ValueError, match="units must be ones whose copies compute the same function"):
        transport(build(8), build(4), x)
    assert transport(build(4), build(4), x).sizes  # of one width nothing is shared out


spectral = nn.utils.parametrizations.spectral_norm


@pytest.mark.parametrize(
    "build",
    [
        lambda n: net(n, lambda s, h: h @ s.p + h.sum(-1, keepdim=True)),
        lambda n: net(n, lambda s, h: h @ s.p + h.square().sum(-1, keepdim=True)),
        lambda n: nn.Sequential(spectral(nn.Linear(3, n)), nn.ReLU(), nn.Linear(n, 2)),
        lambda n: nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(n, 2))),
        lambda n: nn.Sequential(spectral(nn.Linear(3, n)), nn.ReLU(), spectral(nn.Linear(n, 2))),
    ],
    ids=["sum", "sum of squares", "spectral norm writes", "spectral norm reads", "both"],
)
def test_scales_go_with_the_copies_where_that_keeps_the_function(build):
    a, b, x = build(8).double().eval(), build(4).double().eval(), torch.randn(5, 3).double()
    wide = transport(a, b, x).apply(b)
    assert iw.testing.function_error(b, wide, x) < 1e-12
    for model in (wide, b):  # in training singular vectors are made unit vectors
        model.train()(x)
    assert all(torch.allclose(v.norm(), torch.ones(1).double()) for v in wide.buffers())
    assert iw.testing.function_error(b, wide, x) < 1e-12


def test_widths_without_a_common_factor_behind_a_norm_are_checked_or_refused():
    norm = nn.functional.layer_norm
    x, affine = (
        torch.randn(5, 3).double(),
        lambda n: Inner(nn.Linear(3, n), nn.LayerNorm(n), nn.Linear(n, 2), nn.ReLU()),
    )
    assert transport(affine(7).double(), affine(5).double(), x).sizes
    spectra = lambda n: nn.Sequential(nn.Linear(3, n), nn.ReLU(), spectral(nn.Linear(n, 2)))
    assert transport(spectra(7).double(), spectra(5).double(), x).sizes
    for power in (0.5, 1):
        built = [net(n, lambda s, h, k=power: norm(h, (len(s.p),)) @ s.p / len(s.p) ** k).double() for n in (7, 5)]
        for a, b in (built, built[::-1]):
            with pytest.raises(ValueError, match="units must be ones whose copies compute the same function"):
                transport(a, b, x)


def test_other_widths_do_not_keep_it():
    a, b = (networks.build(f"mlp:widths={w}").eval() for w in ("20-30", "13-7"))
    assert iw.testing.function_error(b, transport(a, b, X).apply(b), X) > 1e-3


def test_equal_widths_give_the_planted_permutation():
    a = networks.build("mlp:widths=12-9").eval()
    sym = iw.symmetries(a, X)
    b = sym.act(sym.random(seed=1, kinds={"permutation"}), a)
    back = transport(a, b, X).apply(b)
    assert all(torch.allclose(p, q) for p, q in zip(a.parameters(), back.parameters()))


def test_a_wide_network_helps_a_narrow_one(trained, digits):
    a, b = trained["mlp"][0], trained["mlp"][1]
    narrow = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 36), nn.ReLU(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 10)
    ).eval()
    found = transport(narrow, b, X)
    shrunk = found.apply(b)
    loader = digits.loader("test")
    assert evaluate(shrunk, loader).accuracy > 0.6 > evaluate(narrow, loader).accuracy
    assert found.sizes == {"1.weight[0]": (36, 48), "3.weight[0]": (36, 48)}
    merged = merge(a, b, transport(a, b, X))
    assert evaluate(merged, loader).accuracy > 0.8
    path = barrier(narrow, b, loader, points=3, alignment=found)
    assert path.before != path.before and path.after == path.heights("aligned")[0]
    assert f"Barrier {path.after:.4f} after alignment" in repr(path)  # no direct path joins other widths


class Heads(nn.Module):
    def __init__(self, heads, width, hidden=10):
        super().__init__()
        self.heads, self.embed = heads, nn.Linear(3, 8)
        self.qkv, self.proj = nn.Linear(8, 3 * heads * width), nn.Linear(heads * width, 8)
        self.up, self.down, self.out = nn.Linear(8, hidden), nn.Linear(hidden, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.embed(x)
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, -1)
        x = x + self.proj(y)
        return self.out(x + self.down(nn.functional.gelu(self.up(x))))


def test_inner_widths_of_a_transformer():
    x = torch.randn(4, 5, 3).double()
    a, b = Heads(2, 4, hidden=20).double().eval(), Heads(2, 4, hidden=10).double().eval()
    assert iw.testing.function_error(b, transport(a, b, x).apply(b), x) < 1.0
    a.load_state_dict(
        {**a.state_dict(), **{k: v for k, v in b.state_dict().items() if not k.startswith(("up", "down"))}}
    )
    assert iw.testing.function_error(b, transport(a, b, x).apply(b), x) < 1e-10


def test_refusals():
    transformers = pytest.importorskip("transformers")
    x = torch.randn(4, 5, 3)
    with pytest.raises(ValueError, match=r"heads, groups .* equal .*'groups of qkv, proj' with 2 in a and 4 in b"):
        transport(Heads(2, 4), Heads(4, 4), x)
    with pytest.raises(ValueError, match=r"'within each group: .*' with 4 in a and 6 in b.*size of a head"):
        transport(Heads(2, 4), Heads(2, 6), x)
    with pytest.raises(ValueError, match=r"but for widths\. Got 2 tensors of one alone, .* of b: other depths"):
        transport(networks.build("mlp:widths=8"), networks.build("mlp:widths=8-8"), X)
    llama = lambda keys: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=keys,
            vocab_size=9, use_cache=False,
        )
    )  # fmt: skip
    for one, other in ((llama(4), llama(2)), (Heads(1, 4), Heads(2, 4))):  # heads share keys, or are no heads
        inputs = x if isinstance(one, Heads) else torch.arange(8)[None]
        with pytest.raises(ValueError, match=r"Got '.*' of [ab] alone: heads that .* Give b the numbers of heads and"):
            transport(one, other, inputs)
    words = [nn.Sequential(nn.Embedding(n, 6), nn.ReLU(), nn.Linear(6, 2)) for n in (50, 60)]
    with pytest.raises(ValueError, match=r"Got 50 in a and 60 in b for '0.weight' \(vocabulary\).* Bring b to 50 "):
        transport(*words, torch.arange(8)[None])
    one, other = (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, k)) for k in (3, 4))
    with pytest.raises(ValueError, match=r"outputs and tables must be equal\. Got 3 in a and 4 in b .*\(output\)"):
        transport(one, other, X)
    with pytest.raises(ValueError, match="entropy must not be negative"):
        transport(one, one, X, entropy=-1)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ValueError, match=r"have the same widths.*merging\.transport"):
        iw.align(one, wide, X)
    with pytest.raises(RuntimeError, match="entropy must be large enough"):
        coupling(torch.rand(9, 7), entropy=1e-9)
