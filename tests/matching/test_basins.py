"""Streams that rotate: planted elements, no solver worse than its start, what is learned, many networks, bad input."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from upstream import dtype_name, stacked_experts, unscaled_t5

import intertwine as iw
from intertwine.matching import FrankWolfe, Gates, Learned, Sinkhorn, StraightThrough, gather
from intertwine.matching.coordinates.networks import Networks, gauge_of
from intertwine.matching.solvers import METHODS
from intertwine.matching.solvers.coordinate_descent import cooled, descend, profiles
from intertwine.symmetry.transformation import KINDS

transformers = pytest.importorskip("transformers")

_SIZES = {"vocab_size": 40, "use_cache": False}
_LLAMA = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, **_SIZES,
}  # fmt: skip
_T5 = {
    "d_model": 32, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "d_kv": 8,
    "feed_forward_proj": "gated-gelu", **_SIZES,
}  # fmt: skip


class Logits(nn.Module):
    """What a model returns beside its logits would fix the basis of its streams."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.net(**tokens).logits


# what its group is like -> the model, and what it is called with besides tokens
CASES = {
    "layer norms, tied": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=16, **_SIZES)
    ),
    "rotary, grouped queries, gates": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA)),
    "RMS norms, tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_LLAMA, tie_word_embeddings=True)
    ),
    "gains 1 + w": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**_LLAMA, head_dim=8)),
    "parallel blocks": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, **_SIZES
        )
    ),
    "encoder and decoder": lambda: Logits(transformers.T5ForConditionalGeneration(transformers.T5Config(**_T5))),
    "experts": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**_LLAMA, num_local_experts=3, num_experts_per_tok=3)
    ),
}

_OLDER = {"encoder and decoder": unscaled_t5, "experts": stacked_experts}  # of transformers: other programs
_NAMES = [pytest.param(name, marks=_OLDER.get(name, ())) for name in CASES]


def trained_like(name: str, seed: int = 0) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A network whose gains and biases differ from one another, and inputs."""
    torch.manual_seed(seed)
    model = CASES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim < 2 else 0.2
            parameter.add_(spread * torch.randn(parameter.shape))
    tokens = {"input_ids": torch.randint(40, (2, 9))}
    return model, {**tokens, "decoder_input_ids": tokens["input_ids"]} if "decoder" in name else tokens


def planted(model: nn.Module, x: object, noise: float = 0.0) -> tuple[nn.Module, nn.Module]:
    """A folded network, and a copy of it under a random element of its group."""
    gauge = gauge_of([model], x, iw.symmetries(model, x))
    assert gauge is not None
    moved = gauge.sym.act(gauge.kept(gauge.sym.random(seed=1)), gauge(model))
    with torch.no_grad():
        for parameter in moved.parameters() if noise else ():
            if parameter.ndim > 1:
                parameter += noise * parameter.std() * torch.randn(parameter.shape)
    return gauge(model), moved


@pytest.mark.parametrize("name", _NAMES)
def test_planted_rotations_are_recovered_with_heads_units_and_experts(name):
    model, x = trained_like(name)
    a, b = planted(model, x)
    iw.testing.assert_same_function(model, a, x)
    iw.testing.assert_same_function(model, b, x, rtol=1e-3)
    found = iw.align(a, b, x, chance=False)
    assert found.after < 0.02 * found.before, (found.before, found.after)
    iw.testing.assert_same_function(b, found.apply(b), x, rtol=1e-3)


# a stream of 32; heads (a scale for queries and keys, one for values) and bases in them; hidden units
_HEADS, _GATED = "S₄ ⋉ (R₊² × Z₂²)⁴", "S₂₄ ⋉ (R₊ × Z₂)²⁴"
# groups of queries, queries in them, turns of each pair, scales of the pairs, values
_ROTARY = {"O₃₂", "S₂ ⋉ (R₊² × Z₂²)²", "S₂ each", "SO₂ each", "(R₊ × Z₂)⁴ each", "GL₈ each"}
GROUPS = {
    "layer norms, tied": {"O₃₂", _HEADS, "GL₈ each", "S₁₂₈"},
    "rotary, grouped queries, gates": {*_ROTARY, _GATED},
    "RMS norms, tied": {*_ROTARY, _GATED},
    "gains 1 + w": {*_ROTARY, _GATED},
    "parallel blocks": {"O₃₂", "S₄ ⋉ Z₂⁴", "SO₂ each", "GL₆ each", "GL₈ each", "S₂₄"},  # two of eight dimensions rotate
    "encoder and decoder": {"O₃₂", _HEADS, "GL₈ each", _GATED},
    "experts": {*_ROTARY, "S₃", f"{_GATED} each"},
}


@pytest.mark.parametrize("name", _NAMES)
def test_the_group_of_every_architecture_is_found(name):
    model, x = trained_like(name)
    gauge = gauge_of([model], x, iw.symmetries(model, x))
    assert {space.symbol for space in gauge.sym.spaces} == GROUPS[name]
    layer_norms = name in ("layer norms, tied", "parallel blocks")
    (stream,) = (s.name for s in gauge.sym.spaces if s.group.is_orthogonal and not s.group.turns)
    assert gauge.ones == ({stream} if layer_norms else set())  # RMS norms take no mean that a rotation must keep
    ends = [n for n, axes in gauge.sym.layouts.items() if axes.spaces == {stream} and 40 in model.state_dict()[n].shape]
    assert len(ends) == 2  # one rotation fits the embedding and the unembedding, tied or not


# Gains and ties fold away before the search: what is left is one of these.
@pytest.mark.parametrize("name", [p for p in _NAMES if p.values[0] in ("layer norms, tied", "experts")])
def test_noisy_copies_are_recovered_up_to_the_noise(name):
    model, x = trained_like(name)
    a, b = planted(model, x, noise=0.1)
    found = iw.align(a, b, x, chance=False)
    assert found.after < 0.2 * found.before


@pytest.fixture(scope="module")
def aligned():
    """Two networks of other seeds, inputs, and their alignment."""
    (a, x), (b, _) = (trained_like("layer norms, tied", seed) for seed in (0, 1))
    a, b = a.double(), b.double()
    return a, b, x, iw.align(a, b, x, chance=False)


@pytest.mark.parametrize("name", ["rotary, grouped queries, gates", "gains 1 + w"])
def test_results_that_were_loaded_take_folded_networks_alone(name, tmp_path):
    """They know no more how to fold, and rotate streams whose gains would have to turn with them."""
    (a, x), (b, _) = (trained_like(name, seed) for seed in (0, 1))
    found = iw.align(a.double(), b.double(), x, chance=False)
    again = iw.Alignment.load(found.save(tmp_path / "found.safetensors"))
    assert again.gains == found.gains and set(again.gains.values()) == {0.0 if "1 + w" in name else 1.0}
    with pytest.raises(ValueError, match=r"gains of norms must be folded.*iw.fold"):
        again.apply(b)
    with pytest.raises(ValueError, match="gains of norms must be folded"):
        again.apply(b.state_dict())
    for folded in (found.folded(b), iw.fold(b, x).model):
        iw.testing.assert_same_function(b, again.apply(folded), x, rtol=1e-5)


def test_an_alignment_is_one_of_the_networks_as_they_came(aligned):
    a, b, x, found = aligned
    assert found.gauge is not None and found.after < found.before
    moved = found.apply(b)
    iw.testing.assert_same_function(a, found.a, x)
    iw.testing.assert_same_function(b, moved, x)
    assert type(moved) is type(b) and not moved.config.tie_word_embeddings and b.config.tie_word_embeddings
    turned = found.transformation["transformer.wte.weight[1]"].linear
    assert torch.allclose(turned.sum(1), torch.ones(32).double(), atol=1e-9)  # the mean that layer norms take
    merged = iw.merge(a, b, found, ratio=0.0)
    iw.testing.assert_same_function(a, merged, x)


def test_trained_gpt2_merge_in_their_own_architecture(aligned, tmp_path):
    a, b, x, found = aligned
    assert all(net.transformer.ln_f.bias.abs().max() > 0.1 and net.lm_head.bias is None for net in (a, b))
    for net, folded in ((a, found.a), (b, found.apply(b))):
        iw.testing.assert_same_function(net, folded, x, rtol=1e-10)
        assert torch.allclose(folded.transformer.ln_f.bias, torch.ones(32).double())
    merged = iw.merge(a, b, found)
    folder = iw.merging.export(merged, tmp_path / "merged")
    kind = transformers.GPT2LMHeadModel
    loaded, info = kind.from_pretrained(folder, output_loading_info=True, **{dtype_name: torch.float64})
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    iw.testing.assert_same_function(merged, loaded, x, rtol=1e-10)


def test_the_bias_of_a_norm_is_a_bias_of_the_output_on_the_line_between_two_networks(aligned):
    a, b, _, found = aligned
    merged = iw.merge(a, b, found)

    def said(net):  # what the bias of the last norm adds to the logits
        return (net.lm_head.weight @ net.transformer.ln_f.bias).detach()

    assert torch.allclose(said(merged), (said(a) + said(b)) / 2, atol=1e-4)


def test_without_rotations_nothing_is_folded():
    (a, x), (b, _) = (trained_like("layer norms, tied", seed) for seed in (0, 1))
    found = iw.align(a, b, x, kinds={"permutation"}, chance=False)
    assert found.gauge is None and found.a is a


def test_starts_under_falling_noise_end_higher_than_those_without():
    reached = {True: 0.0, False: 0.0}
    for seed in range(4):
        torch.manual_seed(seed)
        nets = [Turning(12) for _ in "ab"]
        gauge = gauge_of(nets, (x := torch.randn(8, 4)), iw.symmetries(nets[0], x))
        stated = Networks(*map(gauge, nets), gauge.sym, gauge.sym, KINDS, gauge=gauge).stated
        for cold in reached:
            start = profiles(stated) if cold else next(cooled(stated, 0, fast=False))
            reached[cold] += descend(stated, start, torch.Generator().manual_seed(0)).history[-1] / stated.size
    assert reached[False] > reached[True]


def test_several_networks_meet_in_one_basis_and_merge():
    model, x = trained_like("rotary, grouped queries, gates")
    a, b = planted(model, x)
    found = gather([a, b, copy.deepcopy(a)], x, kinds=KINDS, sweeps=2)
    with pytest.raises(ValueError, match="gains of norms must be folded"):
        replace(found, gauge=None).apply([model, b, a])
    assert found.distances[-1] < 0.05 * found.distances[0]
    iw.testing.assert_same_function(b, found.apply([a, b, a])[1], x, rtol=1e-3)


SHORT = {
    **METHODS,
    "frank-wolfe": FrankWolfe(steps=5, restarts=1),
    "sinkhorn": Sinkhorn(steps=5),
    "straight-through": StraightThrough(epochs=1, rate=1.0),
    "learned": Learned(steps=6, every=3, rate=1.0),
}


class Turning(nn.Module):
    """A stream that rotates once the gains of its norms are folded."""

    def __init__(self, units: int = 7) -> None:
        super().__init__()
        sizes = (4, 6), (6, units), (units, 6), (6, 3)
        self.lift, self.up, self.down, self.head = (nn.Linear(n, m) for n, m in sizes)
        self.norms = nn.ModuleList(nn.RMSNorm(6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A block beside the stream, then the head."""
        x = self.lift(x)
        x = x + self.down(self.up(self.norms[0](x)).tanh())
        return self.head(self.norms[1](x))


@pytest.mark.parametrize("method", [*SHORT, "gates"])
def test_no_solver_ends_worse_than_it_starts(method):
    for seed in range(6):
        torch.manual_seed(seed)
        act = nn.ReLU() if method == "gates" else nn.Tanh()
        nets = [nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 6), act, nn.Linear(6, 3)) for _ in "ab"]
        turns = method != "gates" and seed % 3 == 0
        nets = [Turning() for _ in "ab"] if turns else nets
        x = torch.randn(32, 4)
        loader = [(x, nets[0](x).argmax(1))]
        sym = iw.symmetries(nets[0], x)
        gauge = gauge_of(nets, x, sym) if turns else None
        assert (gauge is not None) == turns
        if gauge is not None:
            sym, nets = gauge.sym, [gauge(net) for net in nets]
        solver = SHORT.get(method) or Gates(*(iw.gates.gate_patterns(net, x) for net in nets))
        found = solver.solve(Networks(*nets, sym, sym, KINDS, loader, seed, gauge))
        assert found.objective >= found.start - 1e-9 * abs(found.start)
        moved = sym.act(found.transformation, nets[1])
        points = {"straight-through": (0.5,), "learned": (0.25, 0.5, 0.75)}.get(method)
        if points is not None:
            before, after = (_barrier(nets[0], b, loader, points) for b in (nets[1], moved))
            assert after <= max(before, 0.0) + 1e-6


def _barrier(a, b, loader, ratios):
    """The largest loss above the line between the ends."""
    middle, (x, y) = copy.deepcopy(a), loader[0]
    loss = lambda net: float(F.cross_entropy(net(x), y))
    heights = []
    for t in ratios:
        with torch.no_grad():
            for p, one, other in zip(middle.parameters(), a.parameters(), b.parameters()):
                p.copy_(torch.lerp(one, other, t))
            heights.append(loss(middle) - (1 - t) * loss(a) - t * loss(b))
    return max(heights)


def case(deep=False):
    torch.manual_seed(0)
    deeper = lambda: (nn.Linear(6, 32), nn.RMSNorm(32), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 3))
    plain = lambda: (nn.Linear(6, 16), nn.RMSNorm(16), nn.Linear(16, 3))
    a, b = (nn.Sequential(*(deeper() if deep else plain())) for _ in "ab")
    x = torch.randn(256, 6)
    y = (x[:, :3] * x[:, 3:] if deep else x[:, :3]).argmax(1)
    for net in (a, b):
        adam = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(60):
            adam.zero_grad()
            F.cross_entropy(net(x), y).backward()
            adam.step()
    return a.eval(), b.eval(), x, [(x[k::8], y[k::8]) for k in range(8)]


def test_what_is_learned_is_the_same_again_and_goes_on_where_it_stopped(tmp_path):
    a, b, x, loader = case()
    path = str(tmp_path / "search.safetensors")
    whole = iw.align(a, b, x, Learned(steps=30, every=10), loader, seed=3)
    again = iw.align(a, b, x, Learned(steps=30, every=10), loader, seed=3)
    assert whole.history == again.history and whole.transformation.allclose(again.transformation)
    steps = iter(range(25))
    with pytest.raises(StopIteration):
        iw.align(a, b, x, Learned(30, every=10, loss=lambda *p: (next(steps), _plain(*p))[1], checkpoint=path), loader)
    other = iw.align(a, b, x, Learned(steps=30, every=10, checkpoint=path), loader)
    fresh = iw.align(a, b, x, Learned(steps=30, every=10), loader)
    assert other.history == pytest.approx(fresh.history, abs=1e-5)
    assert whole.objective >= whole.history[0]
    with pytest.raises(ValueError, match="another search"):
        iw.align(a, b, x, Learned(steps=30, every=10, checkpoint=path), loader, seed=3)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        Learned(checkpoint="search.json")


def _plain(output, batch):
    return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize(("bad", "falls", "ends"), [((32, 34), 2, False), (range(15, 10**6), 6, True)])
def test_where_the_loss_is_nan_the_search_goes_back_and_on_a_few_times(bad, falls, ends):
    a, b, x, loader = case()
    calls = iter(range(10**6))
    loss = lambda output, batch: _plain(output, batch) * (float("nan") if next(calls) in bad else 1.0)
    found = iw.align(a, b, x, Learned(steps=100, every=10, loss=loss), loader)
    heights = [-value for value in found.history]
    assert sum(height != height for height in heights) == falls and (heights[-1] != heights[-1]) == ends
    assert len(heights) == (7 if ends else 11)
    assert any("NaN" in note and ("and ended" in note) == ends for note in found.notes)
    iw.testing.assert_same_function(b, found.apply(b), x)


@pytest.mark.parametrize("what", ["gradient", "basis"])
def test_a_search_goes_back_where_a_gradient_or_a_basis_is_lost(what, monkeypatch):
    a, b, x, loader = case()
    calls = iter(range(10**6))

    def loss(output, batch):
        value = _plain(output, batch)
        if value.requires_grad and next(calls) == 30 and what == "gradient":
            value.register_hook(lambda grad: grad * float("inf"))
        return value

    if what == "basis":
        monkeypatch.setattr("intertwine.matching.solvers.learned._CONDITION", 0.5)
    found = iw.align(a, b, x, Learned(steps=100, every=10, loss=loss), loader)
    assert sum(value != value for value in found.history) == {"gradient": 1, "basis": 6}[what]


def test_without_labels_the_networks_between_answer_as_both_ends_do():
    """As with the mean softmax of both in their place, whatever form batches have; the barrier falls, too."""
    a, b, x, loader = case(deep=True)
    bare = [inputs for inputs, _ in loader]
    with torch.no_grad():
        answered = [(x, (a(x).softmax(-1) + b(x).softmax(-1)) / 2) for x in bare]
    learn = lambda batches: iw.align(a, b, x, Learned(steps=60, every=10), batches, seed=3)
    found, other = learn(bare), learn(answered)
    assert found.history == pytest.approx(other.history, abs=1e-5)
    assert found.transformation.allclose(other.transformation, 1e-4)
    assert any("no labels" in note for note in found.notes) and not any("no labels" in note for note in other.notes)
    start, end = (_barrier(found.a, net, loader, (0.5,)) for net in (iw.align(a, b, x).apply(b), found.apply(b)))
    assert end < start


@pytest.mark.parametrize(
    ("options", "loader", "said"),
    [
        ({}, None, "loader must yield batches, with or without labels"),
        ({}, [(torch.zeros(4, 6), torch.randn(4, 3))], "pass loss="),
        ({}, [(torch.zeros(4, 6), torch.rand(4))], "pass loss="),
    ],
)
def test_learning_says_what_it_needs(options, loader, said):
    a, b, x, _ = case()
    with pytest.raises(ValueError, match=said):
        iw.align(a, b, x, Learned(**options), loader)
    with pytest.raises(ValueError, match="must be positive"):
        Learned(rate=0)
