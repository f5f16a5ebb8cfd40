"""Correspondence of programs: pairs of one function in other code, near misses, random rewrites, odd models."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from rewritten_networks import PAIRS, Pair, rewritten
from torch import Tensor, nn

import intertwine as iw
from intertwine.matching.judgement.verdict import APART, DIFFERENT, PART, SAME

pytestmark = pytest.mark.filterwarnings("ignore")


def carried(pair: Pair, found: iw.Correspondence) -> nn.Module:
    """A with B's weights."""
    twin = copy.deepcopy(pair.a)
    state = twin.state_dict()
    for name, tensor in found.convert(pair.b.state_dict()).items():
        state[name].copy_(tensor)
    return twin


@pytest.mark.parametrize("name", list(PAIRS))
def test_one_function_in_other_code_corresponds(name: str):
    pair = PAIRS[name]()
    found = iw.correspond(pair.a, pair.b, pair.x, pair.xb)
    assert found.verdict == "the same program", found.summary()
    assert found.proved
    twin, x = carried(pair, found), pair.x
    ours, theirs = (iw.testing.outputs(m.double(), _double(i)) for m, i in ((twin, x), (pair.b, pair.x_of_b)))
    assert iw.testing.relative_error(theirs, ours) < 1e-5  # tables of the code may be in float32


def _double(x):
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


SMALL = ["sequential against named", "conv1x1 against linear", "packed attention by hand", "gpt against fused"]


@pytest.mark.parametrize("name", SMALL)
def test_a_moved_copy_in_other_code_is_the_same(name: str):
    pair = PAIRS[name]()
    found = iw.correspond(pair.a, pair.b, pair.x)
    twin = carried(pair, found)
    sym = iw.symmetries(twin, pair.x)
    moved = sym.act(sym.random(seed=1, kinds={"permutation", "sign"}), twin)
    assert iw.correspond(pair.b, moved, pair.x).proved
    match = iw.same(moved, pair.b, pair.x)
    assert match.verdict == SAME, match.summary()
    assert match.correspondence
    assert match.moved


def test_other_weights_in_other_code_are_different():
    pair = PAIRS["packed attention by hand"]()
    with torch.no_grad():
        for p in pair.a.parameters():
            p.copy_(torch.randn_like(p))
    match = iw.same(pair.a, pair.b, pair.x)
    assert match.verdict not in (SAME, PART)
    assert not match


class Tower(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x):
        return self.head(self.body(x))


def test_a_backbone_is_part_of_the_network_with_a_head():
    body = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5), nn.Tanh())
    whole, x = Tower(copy.deepcopy(body), nn.Linear(5, 3)), torch.randn(4, 6)
    found = iw.correspond(body, whole, x)
    assert (found.verdict, found.part) == ("a is part of b", "body")
    assert found.proved
    match = iw.same(body, whole, x)
    assert match.verdict == PART
    assert "body" in match.reason
    back = iw.correspond(whole, body, x)
    assert back.verdict == "b is part of a"
    assert back.unread == ("head.weight", "head.bias")


def test_weights_that_make_up_for_a_setting_are_not_called_different():
    class Scaled(nn.Module):
        def __init__(self, scale: float):
            super().__init__()
            self.scale, self.first, self.last = scale, nn.Linear(4, 6, bias=False), nn.Linear(6, 3)

        def forward(self, x):
            return self.last((self.first(x) * self.scale).tanh())

    a, b = Scaled(1.0), Scaled(2.0)
    b.load_state_dict(a.state_dict())
    x = torch.randn(5, 4)
    assert iw.same(a, b, x).verdict == DIFFERENT
    with torch.no_grad():
        b.first.weight.div_(2)
    match = iw.same(a, b, x)
    assert match.verdict not in (SAME, DIFFERENT), match.summary()


FORMS = {
    "relu": (F.relu, lambda x: torch.maximum(x, torch.zeros(()))),
    "tanh-GELU": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x))),
    ),
    "shuffled pixels": (
        lambda x: F.pixel_unshuffle(x[:, None], 2),
        lambda x: x.view(len(x), 2, 2, 4, 2).permute(0, 2, 4, 1, 3).reshape(len(x), 4, 2, 4),
    ),
}


@pytest.mark.parametrize("name", list(FORMS))
def test_functions_written_out_are_those_of_torch(name: str):
    class Mapped(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.first, self.form = nn.Linear(8, 8), form

        def forward(self, x):
            return self.form(self.first(x))

    assert iw.correspond(*map(Mapped, FORMS[name]), torch.randn(3, 4, 8)).proved


def test_a_norm_of_all_tokens_is_the_norm_of_the_one_that_is_read():
    class Pooled(nn.Module):
        def __init__(self, first: bool):
            super().__init__()
            self.body, self.norm, self.head, self.first = (
                rewritten("attention"),
                nn.LayerNorm(8),
                nn.Linear(8, 2),
                first,
            )

        def forward(self, x):
            x = self.body(x)
            return self.head(self.norm(x[:, 0]) if self.first else self.norm(x)[:, 0])

    assert iw.correspond(Pooled(True), Pooled(False), torch.randn(3, 5, 8)).proved


def mlp(**changed) -> nn.Module:
    return rewritten("mlp", **changed)


def after(one: nn.Module, other: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 6), one), nn.Sequential(nn.Linear(4, 6), other)


NEAR = {
    "epsilon": lambda: after(nn.LayerNorm(6), nn.LayerNorm(6, 1e-3)),
    "activation": lambda: after(nn.GELU(), nn.GELU("tanh")),
    "relu and gelu": lambda: after(nn.ReLU(), nn.GELU()),
    "leak": lambda: after(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
    "norm before": lambda: (rewritten("mlp", norm="before"), rewritten("mlp", norm="after")),
    "missing residual": lambda: (rewritten("mlp", residual=True), rewritten("mlp", residual=False)),
    "swapped branches": lambda: (rewritten("mlp", swapped=False), rewritten("mlp", swapped=True)),
    "tied": lambda: (rewritten("mlp", tied=True), rewritten("mlp", tied=False)),
    "scale of attention": lambda: (rewritten("attention"), rewritten("attention", scale=0.3)),
    "heads": lambda: (rewritten("attention"), rewritten("attention", heads=2)),
    "causal": lambda: (rewritten("attention"), rewritten("attention", causal=True)),
    "norm of rms": lambda: after(nn.LayerNorm(6, bias=False), nn.RMSNorm(6, 1e-5)),
}  # fmt: skip
IMAGE = {
    "stride": ({"stride": 2, "padding": 1}, {"stride": 1, "padding": 1}),
    "padding": ({"padding": 1}, {"padding": 1, "padding_mode": "circular"}),
    "dilation": ({"padding": 2, "dilation": 2}, {"padding": 1}),
    "groups": ({"groups": 1}, {"groups": 4}),
}


def _never_same(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    shared = {n: t for n, t in a.state_dict().items() if n in b.state_dict() and b.state_dict()[n].shape == t.shape}
    b.load_state_dict(shared, strict=False)
    assert not iw.correspond(a, b, x)
    match = iw.same(a, b, x)
    assert match.verdict not in (SAME, PART), match.summary()
    if match.verdict == APART:
        with pytest.raises(ValueError, match="comparable"):
            bool(match)


@pytest.mark.parametrize("name", list(NEAR))
def test_near_misses_are_never_the_same(name: str):
    torch.manual_seed(0)
    a, b = NEAR[name]()
    _never_same(
        a.eval(),
        b.eval(),
        torch.randn(3, 5, 8)
        if "weight" not in dict(a.named_parameters()) and hasattr(a, "wide")
        else torch.randn(3, 5, 4),
    )


@pytest.mark.parametrize("name", list(IMAGE))
def test_near_misses_of_convolutions(name: str):
    torch.manual_seed(0)
    one, other = (nn.Sequential(nn.Conv2d(4, 8, 3, **kw), nn.ReLU()) for kw in IMAGE[name])
    _never_same(one, other, torch.randn(2, 4, 8, 8))


def test_the_setting_that_differs_is_named():
    a, b = NEAR["epsilon"]()
    b.load_state_dict(a.state_dict())
    x = torch.randn(3, 4)
    assert "0.001" in iw.correspond(a, b, x).reason
    match = iw.same(a, b, x)
    assert match.verdict == DIFFERENT
    assert "0.001" in match.reason


@pytest.mark.parametrize("seed", range(24))
def test_random_chains_of_rewrites_keep_the_correspondence(seed: int):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    spec = {"norm": rng.choice(["before", "after", None]), "residual": rng.random() < 0.7, "width": rng.choice([6, 8]),
                "activation": rng.choice(["relu", "gelu", "silu", "tanh"])}  # fmt: skip
    kind = rng.choice(["mlp", "attention"])
    ways = {"packed": rng.random() < 0.5, "turned": rng.random() < 0.5, "fused": rng.random() < 0.5,
                "reordered": rng.random() < 0.5, "wrapped": rng.random() < 0.5, "by_hand": rng.random() < 0.5}  # fmt: skip  # noqa: E501
    if kind == "attention":
        spec = {"causal": rng.random() < 0.5}
    a, b = rewritten(kind, **spec), rewritten(kind, **spec, **ways)
    x = torch.randn(3, 5, 8)
    found = iw.correspond(a, b, x)
    assert found.proved, found.summary()
    twin = copy.deepcopy(a)
    twin.load_state_dict(found.convert(b.state_dict()), strict=False)
    assert iw.same(twin, b, x).verdict == SAME


@pytest.mark.parametrize("seed", range(12))
def test_random_edits_never_correspond_as_one(seed: int):
    rng = random.Random(seed)
    base = {"norm": "before", "residual": True, "activation": "gelu"}
    edit = rng.choice(
        [{"norm": "after"}, {"residual": False}, {"activation": "relu"}, {"activation": "silu"}, {"norm": None}]
    )
    assert not iw.correspond(rewritten("mlp", **base), rewritten("mlp", **{**base, **edit}), torch.randn(2, 3, 8))


# ---- odd models


def test_on_meta_nothing_is_proved():
    with torch.device("meta"):
        a, b = nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4))
        found = iw.correspond(a, b, torch.randn(2, 3))
    assert found.verdict == "the same program"
    assert not found.proved
    assert "not proved" in found.summary()


DOORS = {
    "same": lambda m, x: iw.same(m, m, x), "align": lambda m, x: iw.align(m, m, x),
    "compare": lambda m, x: iw.compare(m, m, [(x, None)]), "canonical": lambda m, x: iw.canonical(m, x),
    "fingerprint": lambda m, x: iw.fingerprint(m, x), "fold": lambda m, x: iw.fold(m, x),
    "lineage": lambda m, x: iw.lineage(m, copy.deepcopy(m), x), "diff": lambda m, x: iw.diff(m, m, x),
    "merge": lambda m, x: iw.merge(m, m, iw.align(m, m, x)), "barrier": lambda m, x: iw.barrier(m, m, [(x, x.new_zeros(2).long())]),  # noqa: E501
    "stitch": lambda m, x: iw.stitch(m, m, "1", loader=[(x, x.new_zeros(2).long())]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DOORS))
def test_models_without_weights_are_refused_in_words(name: str):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises((ValueError, iw.IntertwineError), match="meta"):
        DOORS[name](model, torch.randn(2, 3))


def test_models_without_parameters_correspond():
    found = iw.correspond(nn.ReLU(), nn.Hardtanh(0.0, float("inf")), torch.randn(2, 3))
    assert found.entries == ()


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def __init__(self, first: bool):
            super().__init__()
            self.p, self.q, self.first = nn.Linear(3, 4), nn.Linear(3, 4), first

        def forward(self, x, y):
            return (self.p(x), self.q(y)) if self.first else (self.q(x), self.p(y))

    found = iw.correspond(Two(True), Two(False), (torch.randn(2, 3), torch.randn(2, 3)))
    assert {(e.a.name, e.b.name) for e in found.entries} == {
        ("p.weight", "q.weight"), ("p.bias", "q.bias"), ("q.weight", "p.weight"), ("q.bias", "p.bias"),
    }  # fmt: skip


def test_inputs_that_fit_one_model_only_name_it():
    with pytest.raises(iw.errors.CaptureError, match=r"^b: .*example_inputs_b"):
        iw.correspond(nn.Linear(3, 4), nn.Linear(5, 4), torch.randn(2, 3))


def test_what_does_not_correspond_converts_nothing():
    found = iw.correspond(
        nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 3)
    )
    other = iw.correspond(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Sequential(nn.Linear(3, 4), nn.GELU()), torch.randn(2, 3)
    )
    assert found.verdict == "a is part of b"
    with pytest.raises(ValueError, match="correspond"):
        other.convert({})


def test_a_correspondence_is_saved_and_read(tmp_path):
    pair = PAIRS["packed attention by hand"]()
    found = iw.correspond(pair.a, pair.b, pair.x)
    again = iw.Correspondence.load(found.save(tmp_path / "found.json"))
    assert [str(e) for e in again.entries] == [str(e) for e in found.entries]
    state = pair.b.state_dict()
    assert all(torch.equal(x, found.convert(state)[n]) for n, x in again.convert(state).items())
    assert len(found.to_frame()) == len(found.entries)
