"""Correspondence of programs: pairs of one function in other code, near misses, random rewrites, odd models."""

import copy
import random
import re
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from made import Made
from own_networks import UNJOINED, attended, causal, heads, turned
from rewritten_networks import PAIRS, Pair, rewritten
from torch import Tensor, nn

import intertwine as iw
from intertwine.matching.judgement.verdict import APART, DIFFERENT, PART, SAME, UNTOLD

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
    with _float64():
        ours, theirs = (iw.testing.outputs(m.double(), _double(i)) for m, i in ((twin, x), (pair.b, pair.x_of_b)))
    assert iw.testing.relative_error(theirs, ours) < 1e-5  # tables of the code may be in float32


@contextmanager
def _float64():
    """What code makes without a dtype is of it: transformers 4 fills float32 with float64's smallest number else."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _double(x):
    if isinstance(x, tuple):
        return tuple(map(_double, x))
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def test_there_are_forty_pairs():
    assert len(PAIRS) >= 40


# Once programs correspond, matching is that of one code: of families of packages two are matched whose code differs
# most, with rotary pairs and with matrices transposed; the others have blocks of the same groups.
_FAMILIES = {
    "BERT", "CLIP", "ConvNeXt", "DINO", "GPT", "Llama", "OPT", "Qwen", "RegNet", "ResNet", "Swin", "T5", "ViT",
    "Whisper",
}  # fmt: skip
_FIRST = {"Llama against own code, rotary pairs", "GPT-2 with its head against own code"}
MOVED = [n for n in PAIRS if n in _FIRST or not any(word in n for word in (*_FAMILIES, "of torchvision and timm"))]


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_copy_in_other_code_is_the_same(name: str):
    pair = PAIRS[name]()
    found = iw.correspond(pair.a, pair.b, pair.x, pair.xb)
    twin = carried(pair, found)
    sym = iw.symmetries(twin, pair.x)
    g = sym.random(seed=1)
    moved = sym.act(g, twin)
    match = iw.same(moved, pair.b, pair.x, example_inputs_b=pair.xb)
    assert match.verdict == SAME, match.summary()
    assert match.correspondence
    assert match.moved or g.is_identity()


@pytest.mark.parametrize("name", list(UNJOINED))
def test_what_no_normal_form_joins_is_never_called_different(name: str):
    pair = UNJOINED[name]()
    if pair.a.state_dict().keys() == pair.b.state_dict().keys():
        pair.b.load_state_dict(pair.a.state_dict())
    match = iw.same(pair.a, pair.b, pair.x)
    assert match.verdict in (APART, UNTOLD)
    assert "the programs part" in match.reason


@pytest.mark.parametrize("back", [False, True])
def test_where_programs_part_the_operation_and_its_weights_are_named(back: bool):
    """Not a weight that nothing in the other network is like, without its operation."""
    plain, biased = (nn.Sequential(nn.Linear(4, 8, bias), nn.Tanh(), nn.Linear(8, 3)) for bias in (False, True))
    found = iw.correspond(*((biased, plain) if back else (plain, biased)), torch.randn(5, 4))
    sides = "a has {} where b has {}".format(*(["add of 0.bias in 0", "tanh in 1"][:: 1 if back else -1]))
    assert re.sub(r" \([^)]*\)", "", found.reason) == f"the programs part: {sides}"


def test_an_adapter_that_is_not_merged_is_named():
    parts = {"base": nn.Linear(4, 8), "low": nn.Linear(4, 1), "up": nn.Linear(1, 8), "head": nn.Linear(8, 3)}
    adapted = Made(lambda s, x: s.head((s.base(x) + s.up(s.low(x))).tanh()), **parts)
    merged = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    adapted.merge_and_unload = lambda: merged
    for networks, name in (((adapted, merged), "a"), ((merged, adapted), "b")):
        found = iw.same(*networks, torch.randn(5, 4))
        assert found.verdict == APART and found.reason.endswith(f"give a copy after {name}.merge_and_unload()")


@pytest.mark.parametrize("first", ["a", "b"])
def test_where_weights_are_tied_in_one_network_alone_they_are_named(first: str):
    parts = lambda: {"table": nn.Embedding(11, 8), "mlp": nn.Linear(8, 8), "head": nn.Linear(8, 11, bias=False)}
    free, tied = (Made(lambda s, x: s.head(s.mlp(s.table(x)).relu()), **parts()) for _ in range(2))
    tied.head.weight = tied.table.weight
    found = iw.correspond(*((tied, free) if first == "a" else (free, tied)), torch.randint(11, (2, 5)))
    assert found.reason.endswith(f"differently; {first} alone ties weights: head.weight to table.weight")


def test_other_weights_in_other_code_are_different():
    pair = PAIRS["packed attention by hand"]()
    with torch.no_grad():
        for p in pair.a.parameters():
            p.copy_(torch.randn_like(p))
    match = iw.same(pair.a, pair.b, pair.x)
    assert match.verdict not in (SAME, PART)
    assert not match


def tower(body: nn.Module, head: nn.Module):
    return Made(lambda m, x: m.head(m.body(x)), body=body, head=head)


def test_descent_is_tested_in_other_code():
    def own(m: nn.Module, x: Tensor) -> Tensor:
        return F.linear(m.low(m.up(x[..., None])[..., 0].relu()).clamp(min=0), m.last)

    x = torch.zeros(2, 8)
    torch.manual_seed(0)
    start, other = (
        nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3, bias=False))
        for _ in range(2)
    )
    child = Made(own, up=nn.Conv1d(8, 40, 1), low=nn.Linear(40, 40), last=nn.Parameter(torch.zeros(3, 40)))
    found = iw.correspond(child, start, x)
    child.load_state_dict({n: t + 0.02 * torch.randn_like(t) for n, t in found.convert(start.state_dict()).items()})
    assert iw.lineage(start, child, x).verdict == "derived"
    assert iw.lineage(other, child, x).verdict == "no sign of descent"


def test_a_backbone_is_part_of_the_network_with_a_head():
    body = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5), nn.Tanh())
    whole, x = tower(copy.deepcopy(body), nn.Linear(5, 3)), torch.randn(4, 6)
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
    def scaled(scale: float):
        return Made(
            lambda m, x: m.last((m.first(x) * scale).tanh()), first=nn.Linear(4, 6, bias=False), last=nn.Linear(6, 3)
        )

    a, b = scaled(1.0), scaled(2.0)
    b.load_state_dict(a.state_dict())
    x = torch.randn(5, 4)
    assert iw.same(a, b, x).verdict == DIFFERENT
    with torch.no_grad():
        b.first.weight.div_(2)
    match = iw.same(a, b, x)
    assert match.verdict not in (SAME, DIFFERENT), match.summary()


def masked(x: Tensor, last: int = 3) -> Tensor:
    mask = x.new_zeros(x.shape[1:])
    mask[1:, :last] = -100.0
    return x + mask


PLACES = torch.tensor([[0, 2], [3, 0]])
BIAS = torch.arange(32.0).view(4, 8)
MASK = torch.zeros(4, 8).index_put((torch.tensor([[1], [2], [3]]), torch.arange(3)), torch.tensor(-100.0))

FORMS = {
    "patches by strided slices": (
        lambda x: torch.cat([x.view(3, 4, 4, 2)[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1).relu(),
        lambda x: x.view(3, 2, 2, 2, 2, 2).permute(0, 1, 3, 4, 2, 5).reshape(3, 2, 2, 8).relu(),
    ),
    "parts put together again": (lambda x: torch.cat([x[:, :1], x[:, 1:3], x[:, 3:]], 1).relu(), F.relu),
    "interpolation to the same size": (
        lambda x: F.interpolate(x[:, None], (4, 8), mode="bilinear")[:, 0].relu(),
        lambda x: F.pad(x, (0, 0, 0, 0)).relu(),
    ),
    "a mask written into zeros": (masked, lambda x: x + MASK),
    "strided slices across windows": (
        lambda x: torch.cat([(y := x.transpose(0, 1).flatten(0, 1))[0::2], y[1::2]], -1).relu(),
        lambda x: x.transpose(0, 1).flatten(0, 1).reshape(6, 16).relu(),
    ),
    "a mean of one": (
        lambda x: F.adaptive_avg_pool2d(x.view(3, 32, 1, 1), 1).flatten(1).relu(),
        lambda x: x.flatten(1).relu(),
    ),
    "rows of a table along another dimension": (
        lambda x: x[:, PLACES.flatten()].view(3, 2, 2, 8).relu(),
        lambda x: F.embedding(PLACES, x.movedim(1, 0).flatten(1)).view(2, 2, 3, 8).permute(2, 0, 1, 3).relu(),
    ),
    "a constant taken away": (lambda x: (x - BIAS).relu(), lambda x: (x + -BIAS).relu()),
    "nothing rolled": (lambda x: x.roll(0, 1).relu(), F.relu),
    "a table repeated for the batch": (
        lambda x: (x.view(12, 8) + BIAS.repeat(3, 1)).view(3, 4, 8).relu(),
        lambda x: (x + BIAS).relu(),
    ),
    "relu": (F.relu, lambda x: torch.maximum(x, torch.zeros(()))),
    "tanh-GELU": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x))),
    ),
    "log-softmax": (lambda x: x.log_softmax(-1), lambda x: x - x.logsumexp(-1, keepdim=True)),
    "gated linear unit": (F.glu, lambda x: x[..., :4] * x[..., 4:].sigmoid()),
    "shuffled pixels": (
        lambda x: F.pixel_unshuffle(x[:, None], 2),
        lambda x: x.view(len(x), 2, 2, 4, 2).permute(0, 2, 4, 1, 3).reshape(len(x), 4, 2, 4),
    ),
}


@pytest.mark.parametrize("name", list(FORMS))
def test_functions_written_out_are_those_of_torch(name: str):
    def mapped(form):
        return Made(lambda m, x: m.form(m.first(x)), first=nn.Linear(8, 8), form=form)

    assert iw.correspond(*map(mapped, FORMS[name]), torch.randn(3, 4, 8)).proved


def test_a_norm_of_all_tokens_is_the_norm_of_the_one_that_is_read():
    def pooled(first: bool):
        def run(m, x):
            x = m.body(x)
            return m.head(m.norm(x[:, 0]) if first else m.norm(x)[:, 0])

        return Made(run, body=rewritten("attention"), norm=nn.LayerNorm(8), head=nn.Linear(8, 2))

    assert iw.correspond(pooled(True), pooled(False), torch.randn(3, 5, 8)).proved


def mlp(**changed) -> nn.Module:
    return rewritten("mlp", **changed)


def after(one: nn.Module, other: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 6), one), nn.Sequential(nn.Linear(4, 6), other)


def twice(*forms) -> tuple[nn.Module, nn.Module]:
    one, other = (Made(form, p=nn.Linear(4, 4)) for form in forms)
    return one, other


def changed(one, other=lambda y: y) -> tuple[nn.Module, nn.Module]:
    return twice(lambda m, x: one(m.p(x)).tanh(), lambda m, x: other(m.p(x)).tanh())


def rotary(swapped: bool = False, window: int = 9, **turn) -> nn.Module:
    def run(m: nn.Module, x: Tensor) -> Tensor:
        q, k, v = map(heads, m.qkv(x).chunk(3, -1))
        q, k = (turned(y, **turn) for y in ((k, q) if swapped else (q, k)))
        near = torch.full((x.shape[1], x.shape[1]), -torch.inf).tril(-window)
        return x + attended(q, k, v, bias=causal(x.shape[1]) + near)

    return Made(run, qkv=nn.Linear(16, 48)).eval()


NEAR = {
    "strided slices across windows, the other first": lambda: changed(
        lambda y: torch.cat([(z := y[:, :4].transpose(0, 1).flatten(0, 1))[1::2], z[0::2]], -1),
        lambda y: y[:, :4].transpose(0, 1).flatten(0, 1).reshape(6, 8),
    ),
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
    "gain of silu": lambda: after(nn.SiLU(), nn.Hardswish()),
    "alpha": lambda: after(nn.ELU(), nn.ELU(0.9)),
    "beta": lambda: after(nn.Softplus(), nn.Softplus(2.0)),
    "limit": lambda: after(nn.Hardtanh(-3, 3), nn.Hardtanh(-2, 2)),
    "order of roll": lambda: twice(lambda m, x: x + m.p(x).roll(1, 1), lambda m, x: x + m.p(x).roll(-1, 1)),
    "axis of softmax": lambda: twice(lambda m, x: m.p(x).softmax(-1) * x, lambda m, x: m.p(x).softmax(1) * x),
    "order of slices": lambda: changed(lambda y: torch.cat([y[:, :4:2], y[:, 1:4:2]], 1), lambda y: y[:, :4]),
    "slices the other way round": lambda: changed(lambda y: torch.cat([y[:, 2:], y[:, :2]], 1)),
    "slices that overlap": lambda: changed(lambda y: torch.cat([y[:, :2], y[:, 1:3]], 1), lambda y: y[:, :4]),
    "slices of two": lambda: changed(lambda y: torch.cat([y[:, :2], y.sin()[:, 2:]], 1)),
    "interpolation by a scale": lambda: changed(
        lambda y: F.interpolate(y[:, None], scale_factor=1.1, mode="bilinear")[:, 0]
    ),
    "a shifted padding": lambda: changed(lambda y: F.pad(y, (0, 0, 1, -1))),
    "other rows": lambda: changed(lambda y: y[:, [0, 2, 3]], lambda y: y[:, [0, 3, 2]]),
    "another mask": lambda: changed(masked, lambda y: masked(y, 1)),
    "half a residual": lambda: twice(lambda m, x: x + m.p(x), lambda m, x: x + 0.5 * m.p(x)),
    "correction of the deviation": lambda: twice(
        *(lambda m, x, c=c: m.p(x) / m.p(x).std(1, correction=c, keepdim=True) for c in (0, 1))
    ),
    "base of rotary angles": lambda: (rotary(), rotary(base=500.0)),
    "rotary part": lambda: (rotary(), rotary(dims=2)),
    "window": lambda: (rotary(), rotary(window=2)),
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
    width = 16 if hasattr(a, "qkv") else 8 if hasattr(a, "wide") else 4
    _never_same(a.eval(), b.eval(), torch.randn(3, 5, width))


@pytest.mark.parametrize("name", list(IMAGE))
def test_near_misses_of_convolutions(name: str):
    torch.manual_seed(0)
    one, other = (nn.Sequential(nn.Conv2d(4, 8, 3, **kw), nn.ReLU()) for kw in IMAGE[name])
    _never_same(one, other, torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("change", [{"pairs": True}, {"swapped": True}])
def test_weights_of_one_name_that_mean_another_thing(change: dict):
    torch.manual_seed(0)
    a, b, x = rotary(), rotary(**change), torch.randn(2, 6, 16)
    b.load_state_dict(a.state_dict())
    found = iw.correspond(a, b, x)
    assert found.proved and found.renamed, found.summary()
    assert iw.same(a, b, x).verdict not in (SAME, PART)
    a.load_state_dict(found.convert(b.state_dict()))
    assert iw.same(a, b, x).verdict == SAME


HIDDEN = {
    "a limit that is not reached": lambda: (*after(nn.Hardtanh(-50, 50), nn.Hardtanh(-60, 60)), torch.randn(5, 4)),
    "pools of a constant image": lambda: (
        *(nn.Sequential(nn.Conv2d(3, 4, 3), pool) for pool in (nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2))),
        torch.ones(2, 3, 8, 8),
    ),
    "equal numbers": lambda: (*twice(lambda m, x: m.p(x) * (x > 0), lambda m, x: m.p(x) * (x >= 0)), torch.randn(5, 4)),
}


@pytest.mark.parametrize("name", list(HIDDEN))
def test_what_the_example_hides_is_not_called_the_same(name: str):
    a, b, x = HIDDEN[name]()
    b.load_state_dict(a.state_dict())
    assert not iw.correspond(a, b, x)
    match = iw.same(a, b, x)
    assert match.verdict == UNTOLD, match.summary()
    assert "other inputs may tell" in match.reason


def test_rounded_weights_hide_no_setting():
    a, b = after(nn.LayerNorm(6), nn.LayerNorm(6, 1e-3))
    a.load_state_dict({n: t.bfloat16().float() for n, t in a.state_dict().items()})
    b.load_state_dict({n: t + 0.001 * t.abs() for n, t in a.state_dict().items()})
    b.load_state_dict({n: t.bfloat16().float() for n, t in b.state_dict().items()})
    assert iw.same(a, b, torch.randn(3, 4)).verdict == DIFFERENT


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


def test_quantised_models_are_never_the_same_by_what_they_hide():
    plain = [nn.Sequential(nn.Linear(4, 6), nn.ReLU()) for _ in range(2)]
    a, b = (torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8) for model in plain)
    x = torch.randn(3, 4)
    assert iw.same(a, plain[0], x).verdict == APART
    assert not iw.correspond(a, b, x)
    assert iw.same(a, b, x).verdict == DIFFERENT


def test_buffers_that_are_read_correspond_and_those_that_are_not_do_not():
    def made(name: str) -> nn.Module:
        model = Made(lambda m, x: m.p(x) * getattr(m, name), p=nn.Linear(4, 4))
        model.register_buffer(name, torch.randn(4))
        model.register_buffer("idle", torch.randn(4))
        return model

    found = iw.correspond(made("scale"), made("size"), torch.randn(3, 4))
    assert found.proved
    assert "scale = size" in map(str, found.entries)
    assert "idle" not in {e.a.name for e in found.entries}


def test_tied_weights_convert_under_all_their_names():
    def made() -> nn.Module:
        model = Made(lambda m, ids: F.linear(m.words(ids).tanh(), m.last.weight), words=nn.Embedding(9, 4),
                     last=nn.Linear(4, 9, bias=False))  # fmt: skip
        model.last.weight = model.words.weight
        return model

    a, b, x = made(), made(), torch.randint(0, 9, (2, 3))
    converted = iw.correspond(a, b, x).convert(b.state_dict())
    assert converted.keys() == a.state_dict().keys()


def test_control_flow_that_depends_on_data_is_noticed():
    def branch(m: nn.Module, x: Tensor) -> Tensor:
        return m.p(x) if x.sum() > 0 else m.q(x)

    a, b = (Made(branch, p=nn.Linear(4, 4), q=nn.Linear(4, 4)) for _ in range(2))
    b.load_state_dict(a.state_dict())
    found = iw.correspond(a, b, torch.ones(2, 4))
    assert set(found.unread) == {"q.weight", "q.bias"}
    other = Made(lambda m, x: m.p(x) if x.sum() > 0 else m.q(x).relu(), p=nn.Linear(4, 4), q=nn.Linear(4, 4))
    other.load_state_dict({**b.state_dict(), "q.weight": torch.zeros(4, 4)})
    assert "nothing reads q.weight, q.bias of b on the example" in iw.same(a, other, torch.ones(2, 4)).reason


def test_two_single_numbers_are_two():
    class Scaled(nn.Module):
        def __init__(self, number: float):
            super().__init__()
            self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(number))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.inner(x) * self.scale)

    def model() -> nn.Sequential:
        return nn.Sequential(Scaled(0.5), Scaled(2.0))

    found = iw.correspond(model(), model(), torch.randn(5, 4))
    assert found.proved
    assert [str(e) for e in found.entries if "scale" in e.a.name] == ["0.scale = 0.scale", "1.scale = 1.scale"]


def test_halves_of_normalised_queries_correspond():
    def run(m, x):
        """Queries that are normalised whole and turned by halves, as in Qwen3."""
        q = m.query(x).unflatten(-1, (2, 4)).transpose(-2, -3)
        q = m.gain * q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        turned = torch.cat((-q[..., 2:], q[..., :2]), -1)
        return q * angles.cos() + turned * angles.sin()

    queries = Made(run, query=nn.Linear(8, 8, bias=False), gain=nn.Parameter(torch.rand(4) + 0.5))
    angles = torch.rand(5, 2).repeat(1, 2)
    found = iw.correspond(queries, copy.deepcopy(queries), torch.randn(3, 5, 8))
    assert found.proved
    assert sorted(map(str, found.entries)) == ["gain = gain", "query.weight = query.weight"]


def test_layers_that_get_no_rows_correspond():
    class ByKind(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 6) for _ in range(3))
            self.register_buffer("kinds", torch.tensor([0, 2, 2, 0, 2]))

        def forward(self, x: Tensor) -> Tensor:
            out = x.new_zeros(len(x), 6)
            for k, layer in enumerate(self.layers):  # no row is of kind 1
                rows = (self.kinds == k).nonzero()[:, 0]
                out = out.index_copy(0, rows, layer(x[rows]))
            return out

    found = iw.correspond(ByKind(), ByKind(), torch.randn(5, 4))
    assert found.verdict == "the same program" and found.proved
    read = {entry.a.name for entry in found.entries}
    assert {"layers.0.weight", "layers.2.weight"} <= read


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
