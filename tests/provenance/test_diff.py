"""``diff`` names hand-made edits, and says nothing else."""

import copy
import re
from dataclasses import replace
from functools import cache
from math import isfinite
from types import SimpleNamespace

import pytest
import torch
from edits import (
    EDITS,
    VOCABULARY,
    convolutional,
    decoder,
    edited,
    hidden_units,
    kinds,
    lora,
    one_layer,
    perceptron,
    said,
    small,
    tokens,
)
from made import Made
from safetensors.torch import save_file
from torch import nn

import intertwine as iw
from intertwine.provenance import Diff
from intertwine.provenance.diff import with_configurations
from intertwine.symmetry import StoredState


@cache
def symmetry(start):
    return iw.symmetries(*start())


@pytest.fixture(scope="module")
def sym():
    return symmetry(small)


@pytest.mark.parametrize("name", EDITS)
def test_every_conversion_and_edit_is_named_and_nothing_else(name):
    e = EDITS[name]
    a, x = e.start()
    b = edited(a, e.change)
    for pair, says in (((a, b), e.says), ((b, a), e.back)):
        if says is not None:
            found = iw.diff(*pair, x, symmetry(e.start) if _shapes(a) == _shapes(b) else None)
            assert found.same_function is e.same and kinds(found) == says.keys(), str(found)
            assert all(words in said(found, kind) for kind, words in says.items()), str(found)
            assert not found.ambiguous


def _shapes(side):
    tensors = side if isinstance(side, dict) else side.state_dict()
    return {n: x.shape for n, x in tensors.items()}


def changed(name, sym):
    return iw.diff(decoder(), edited(decoder(), EDITS[name].change), tokens(), sym)


def test_the_rank_of_an_update_is_found_after_a_random_element():
    (a, x), sym = one_layer(), symmetry(one_layer)
    found = iw.diff(a, sym.act(sym.random(seed=3, kinds=["permutation", "sign"]), edited(a, lora)), x, sym)
    ranks = {t.name: t.rank for t in found.tensors if not t.settled}
    assert ranks == {f"blocks.0.{n}.weight": 4 for n in "qv"}
    assert {"permuted", "low rank"} <= kinds(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_rank_of_an_update_is_found_at_every_precision(dtype):
    a = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48)).to(dtype)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight += (torch.randn(96, 2) @ torch.randn(2, 64)).to(dtype) / 50
    found = iw.diff(a, b, torch.randn(3, 64, dtype=dtype))
    assert [(t.name, t.rank) for t in found.tensors if not t.settled] == [("0.weight", 2)]


def tuned(model, steps=15):
    """A copy after some steps of AdamW towards successors of tokens."""
    made = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(made.parameters(), lr=2e-3)
    for seed in range(steps):
        x = torch.randint(0, VOCABULARY, (8, 7), generator=torch.Generator().manual_seed(seed))
        loss = nn.functional.cross_entropy(made(x).flatten(0, 1), (x.flatten() * 3 + 1) % VOCABULARY)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.eval()


def relative(a, b):
    return {n: float((b.state_dict()[n] - x).norm() / x.norm()) for n, x in a.state_dict().items()}


def grown(model):
    """Training that mostly makes the head larger."""
    for p in model.parameters():
        p += 0.02 * p.square().mean().sqrt() * torch.randn_like(p)
    model.head.weight *= 1.5


@pytest.mark.parametrize("change", [tuned, grown])
def test_training_is_no_rescaling(change, sym):
    a, b = decoder(), edited(decoder(), grown) if change is grown else tuned(decoder())
    found = iw.diff(a, b, tokens(), sym)
    assert found.transformation.is_identity(0.0) and kinds(found) == {"changed"}, str(found)
    assert {t.name: t.relative for t in found.tensors} == pytest.approx(relative(a, b), rel=1e-4)


@pytest.mark.parametrize("kind", ["scale", "linear"])
def test_rescaling_before_training_is_named(kind):
    (a, x), sym = one_layer(), symmetry(one_layer)
    moved = sym.act(sym.random(seed=4, kinds=[kind]), a)
    found = iw.diff(a, tuned(moved, steps=3), x, sym)
    assert {"scale": "scaled", "linear": "basis changed"}[kind] in kinds(found), str(found)
    matrices = [t for t in found.tensors if len(t.shape) > 1]
    assert max(t.relative for t in matrices) < 0.1 < max(relative(a, moved)[t.name] for t in matrices)


def test_random_elements_leave_nothing(sym):
    twin = sym.act(sym.random(seed=5), decoder())
    found = iw.diff(decoder(), twin, tokens(), sym)
    assert found.same_function and {"permuted", "scaled", "basis changed"} <= kinds(found)
    words = [f.text for f in found.findings if f.kind == "permuted"]
    assert sum("heads" in text for text in words) == sum("units" in text for text in words) == 1, words
    iw.testing.assert_same_function(sym.act(found.transformation, decoder()), twin, tokens())


def test_random_elements_of_a_network_with_batch_norms():
    a, x = convolutional(), torch.randn(2, 3, 12, 12)
    sym = iw.symmetries(a, x)
    assert iw.diff(a, sym.act(sym.random(seed=2), a), x, sym).same_function


def test_the_same_weights_in_another_function_are_a_change():
    a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    b = nn.Sequential(a[0], nn.GELU(), a[2])
    found = iw.diff(a, b, torch.randn(5, 4))
    assert not found.same_function and "compute other functions" in found.reason


def test_an_approximate_activation_is_a_change():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    found = iw.diff(a, nn.Sequential(a[0], nn.GELU("tanh"), a[2]), 4 * torch.randn(5, 64))
    assert not found.same_function and "compute other functions" in found.reason


@pytest.mark.parametrize(("count", "size"), [(1, 0.8), (10, 0.3), (100, 3.0), (1, 1e-3)])
def test_single_entries_are_seen_and_named(count, size):
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight.view(-1)[torch.randperm(256 * 256)[:count]] += size
    found = iw.diff(a, b, torch.randn(8, 16))
    assert not found.same_function and "1 of 6 tensors differ" in found.reason
    assert f"2.weight {count} of 65,536 entries: (" in said(found, "entries")


def test_tensors_that_came_or_are_gone():
    a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    b = copy.deepcopy(a)
    b[2] = nn.Linear(8, 3, bias=False)
    with torch.no_grad():
        b[2].weight.copy_(a[2].weight)
    found = iw.diff(a, b, torch.randn(5, 4))
    assert not found.same_function
    assert [(t.name, t.kind) for t in found.tensors if not t.settled] == [("2.bias", "missing")]
    assert [t.kind for t in iw.diff(b, a, torch.randn(5, 4)).tensors if not t.settled] == ["new"]


def test_units_and_blocks_that_changed_most(sym):
    def one_unit(model):
        model.blocks[1].up.weight[7] += 0.5 * torch.randn(16)

    found = iw.diff(decoder(), edited(decoder(), one_unit), tokens(), sym)
    assert found.units[0].space == "layer 1: units of up" and found.units[0].unit == (7,)
    assert max(found.blocks, key=found.blocks.get) == "blocks.1" and found.blocks["blocks.0"] == 0


def test_a_merge_with_another_network_is_no_noise(sym):
    merged = decoder()
    with torch.no_grad():
        for p, q in zip(merged.parameters(), decoder(seed=5).parameters()):
            p.mul_(0.7).add_(q, alpha=0.3)
    assert kinds(iw.diff(decoder(), merged, tokens(), sym)) == {"changed"}  # what was added shrinks it


def test_bad_input(sym):
    good = decoder()
    with pytest.raises(TypeError, match="must be a module"):
        iw.diff(good.state_dict(), good.state_dict(), tokens())
    broken = edited(good, lambda model: model.head.weight.fill_(float("nan")))
    for pair in ((good, broken), (broken, good)):
        with pytest.raises(ValueError, match=r"must be finite. Got NaN or infinity in 'head.weight'"):
            iw.diff(*pair, tokens(), sym)
    state = {**good.state_dict(), "head.weight": good.head.weight.detach().to(torch.int8)}
    with pytest.raises(ValueError, match=r"head.weight of b must hold real numbers. Got int8: dequantise"):
        iw.diff(good, state, tokens(), sym)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.uint8).tril()  # old checkpoints of GPT-2 hold one
    assert kinds(iw.diff(good, {**good.state_dict(), "attn.bias": mask}, tokens(), sym)) == {"new"}
    del state["head.weight"]
    state["head.weight_packed"] = torch.zeros(4, 2, dtype=torch.int32)  # as compressed-tensors leaves it
    with pytest.raises(ValueError, match=r"b must hold plain weights. Got head.weight_packed int32: dequantise"):
        iw.diff(good, state, tokens(), sym)
    with pytest.raises(ValueError, match="must be of one architecture"):
        iw.diff(good, nn.Sequential(nn.Linear(4, 3)), torch.zeros(2, 4))
    found = iw.diff(good, good, tokens(), sym)  # one network twice
    assert found.same_function and "equal, bit by bit" in found.reason and not found.findings
    fewer = {n: x for n, x in good.state_dict().items() if "blocks.1.up" not in n}
    found = iw.diff(good, fewer, tokens(), sym)
    assert not found.same_function and [t.name for t in found.tensors if t.kind == "missing"] == [
        "blocks.1.up.weight", "blocks.1.up.bias",
    ]  # fmt: skip


def test_state_dicts_that_are_read_lazily(sym, tmp_path):

    for name, model in (("a", decoder()), ("b", edited(decoder(), hidden_units))):
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    a, b = (StoredState(tmp_path / f"{name}.safetensors") for name in "ab")
    found = iw.diff(a, b, None, sym)
    assert found.same_function and found.output_error is None and kinds(found) == {"permuted"}


def test_saved_and_shown(sym, tmp_path):
    found = changed("update of rank 4", sym)
    again = Diff.load(found.save(tmp_path / "d.json"))
    assert again.summary() == found.summary() and again.blocks == found.blocks
    assert len(found.to_frame()) == len(found.tensors)
    page = found.to_html(tmp_path / "d.html").read_text()
    assert "Relative change of each block" in page and re.search("update of rank 4", page)


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_scales_are_found_after_pruning_and_moving(share):
    a, x = perceptron()
    sym, b = symmetry(perceptron), copy.deepcopy(a)
    with torch.no_grad():
        for p in (p for p in b.parameters() if p.ndim > 1):
            p.mul_(p.abs() > p.abs().quantile(share))
    g = sym.random(seed=1, kinds=["permutation", "scale"])
    found = iw.diff(a, sym.act(g, b), x, sym)
    assert kinds(found) == {"permuted", "scaled", "pruned"}
    for name, e in found.transformation.elements.items():
        assert torch.equal(e.permutation, g[name].permutation)
        assert torch.allclose(e.scales, g[name].scales, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"rope": {"theta": 2.0}}, False),  # read on longer inputs alone, perhaps: no output tells
        ({"sliding_window": 4}, False),
        ({"dtype": "bfloat16", "attention_dropout": 0.1, "tie_word_embeddings": True}, True),
        ({"model_type": "other", "only_there": 1}, True),  # other code, the same outputs
        ({"text": {"id2label": {"0": "cat"}}}, True),
        ({"head_dim": 4}, True),  # absent or null, it is a quotient of two others
        ({}, True),
    ],
)
def test_settings_that_the_function_may_depend_on_are_a_change(settings, same):
    a, b = network(), network()
    own = {"model_type": "some", "rope": {"theta": 1.0}, "dtype": "float32"}
    for model, config in ((a, own), (b, own | settings)):
        model.config = SimpleNamespace(to_dict=lambda config=config: config)
    found = iw.diff(a, b, torch.randn(2, 4))
    assert found.same_function is same and ("configuration" in kinds(found)) is not same
    assert ("settings" in kinds(found)) is (same and bool(settings))
    assert "dtype" not in str(found) and "only_there" not in str(found)
    match = iw.same(a, b, torch.randn(2, 4))
    assert match and ("configurations differ" in match.reason) is not same


def test_a_window_that_other_code_does_not_know_is_a_change():
    found, window = iw.diff(network(), network(), torch.randn(2, 4)), {"model_type": "mistral", "sliding_window": 4}
    assert not with_configurations(found, {"model_type": "llama"}, window).same_function
    assert with_configurations(found, {"model_type": "llama"}, window | {"sliding_window": None}).same_function


def test_other_code_that_did_not_run_is_a_change():
    a, b = network(), network()
    found = iw.diff(a, b, torch.randn(2, 4))
    kind = ({"model_type": "llama"}, {"model_type": "mistral"})
    assert with_configurations(found, *kind).same_function
    assert not with_configurations(replace(found, output_error=None), *kind).same_function


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def tables(seed: int):
    """A network all of whose weights are tables in buffers."""
    torch.manual_seed(seed)
    return Made(lambda m, x: (x @ m.first.T).relu() @ m.last.T, first=torch.randn(8, 6), last=torch.randn(3, 8))


def test_networks_of_buffers_are_compared_as_they_stand():
    x = torch.randn(4, 6)
    assert iw.diff(tables(0), tables(0), x).same_function
    found = iw.diff(tables(0), tables(1), x)
    assert not found.same_function and {c.name for c in found.tensors if c.kind != "equal"} == {"first", "last"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.tensor([[2**30, 5], [2**29, 7]]), torch.tensor([[2**30 + 3, 5], [2**29, 7]])),  # packed, or indices
        (torch.tensor(500_000), torch.tensor(500_001)),
        (torch.ones(3, 3, dtype=torch.bool).tril(), torch.ones(3, 3, dtype=torch.bool).tril(-1)),
        (torch.full((3, 3), -torch.inf).triu(1), torch.full((3, 3), -torch.inf).triu(2)),
        (torch.tensor([[0.5, -torch.inf], [0.5, 0.5]]), torch.tensor([[0.7, -torch.inf], [0.5, 0.5]])),
    ],
)
def test_masks_and_whole_numbers_are_compared_exactly(before, after):
    make = lambda held: Made(lambda m, x: x @ m.first.T, first=torch.ones(3, 4), held=held)
    x = torch.randn(2, 4)
    assert iw.diff(make(before), make(before.clone()), x).same_function
    found = iw.diff(make(before), make(after), x)
    assert not found.same_function and [c.name for c in found.tensors if not c.settled] == ["held"]
    assert all(isfinite(x) for x in found.blocks.values())


def test_complex_weights_are_refused():
    make = lambda: Made(lambda m, x: (x * m.phase).abs(), phase=torch.randn(4, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"phase of a must hold real numbers. Got complex64"):
        iw.diff(make(), make(), torch.randn(2, 4))


def _with_zero_points(w, group):
    """Four bits: whole multiples of a step of each group, counted from an integer of its own."""
    t = w.reshape(-1, group)
    low, high = t.amin(1, keepdim=True).clamp_max(0), t.amax(1, keepdim=True).clamp_min(0)
    step = (high - low) / 15
    zero = (-low / step).round()
    return (((t / step + zero).round().clamp(0, 15) - zero) * step).reshape(w.shape)


def _about_zero(w, group, most=7):
    t = w.reshape(-1, group)
    step = t.abs().amax(1, keepdim=True) / most
    return ((t / step).round() * step).reshape(w.shape)


NF4 = torch.tensor(  # Dettmers et al., QLoRA, appendix E
    [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
     0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
)  # fmt: skip
FP4 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
FP4 = torch.cat([-FP4[1:].flip(0), FP4])


def _by_book(t, scale, book):
    """Each entry ``(G, n)`` as the nearest number of a book, times the scale of its group ``(G, 1)``."""
    return book[((t / scale)[..., None] - book).abs().argmin(-1)] * scale


def _normal_floats(w):
    t = w.reshape(-1, 64)
    largest = t.abs().amax(1, keepdim=True)
    mean = largest.mean()
    step = (largest - mean).abs().max() / 127  # scales are quantised too
    return _by_book(t, ((largest - mean) / step).round() * step + mean, NF4).reshape(w.shape)


def _micro_scaled(w):  # a power of two for 32 entries: MXFP4
    t = w.reshape(-1, 32)
    return _by_book(t, 2 ** (t.abs().amax(1, keepdim=True).log2().floor() - 2), FP4).reshape(w.shape)


def _blocks_of_float8(w):
    t = w.reshape(len(w) // 128, 128, -1, 128)
    scale = t.abs().amax((1, 3), keepdim=True) / 448
    return ((t / scale).to(torch.float8_e4m3fn).float() * scale).reshape(w.shape)


def _two_of_four(w):
    t = w.reshape(-1, 4)
    return t.scatter(1, t.abs().argsort(1)[:, :2], 0.0).reshape(w.shape)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda w: _with_zero_points(w, 32), "quantised", "int4 with a zero point, one step for 32 entries"),
        (lambda w: _with_zero_points(w, 64), "quantised", "int4 with a zero point, one step for 64 entries"),
        (lambda w: _about_zero(w, 32), "quantised", "int4, one step for 32 entries"),
        (lambda w: _about_zero(w, 32).bfloat16(), "quantised", "int4, one step for 32 entries"),
        (lambda w: _with_zero_points(w, 32).half(), "quantised", "int4 with a zero point, one step for 32 entries"),
        (lambda w: _about_zero(w, 64, 127).half(), "quantised", "int8, one step for 64 entries"),
        (lambda w: _about_zero(w, w.shape[1], 127).bfloat16(), "quantised", "int8, one step for each row"),
        (_normal_floats, "quantised", "nf4, one scale for 64 entries"),
        (lambda w: _normal_floats(w).bfloat16(), "quantised", "nf4, one scale for 64 entries"),
        (_micro_scaled, "quantised", "fp4, one scale for 32 entries"),
        (lambda w: _micro_scaled(w).half(), "quantised", "fp4, one scale for 32 entries"),
        (_blocks_of_float8, "quantised", "float8_e4m3fn, one scale for 128 x 128 entries"),
        (lambda w: _blocks_of_float8(w).bfloat16(), "quantised", "float8_e4m3fn, one scale for 128 x 128 entries"),
        (_two_of_four, "pruned", "50.0% of the weights of 2 tensors set to zero (#.weight), 2:4, two of every four"),
    ],
)
def test_grids_with_zero_points_and_two_of_four_have_words_of_their_own(change, kind, said):
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128))
    for layer in (a[0], a[2]):
        nn.init.normal_(layer.weight, std=0.05)
    b = copy.deepcopy(a)
    with torch.no_grad():
        for layer in (b[0], b[2]):
            layer.weight.copy_(change(layer.weight))
    (found,) = iw.diff(a, b, torch.randn(4, 256)).findings
    assert found.kind == kind and said in found.text, found.text


def test_random_halves_are_not_two_of_four():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight.mul_(torch.rand(64, 128) > 0.5)
    (pruned,) = (f for f in iw.diff(a, b, torch.randn(4, 128)).findings if f.kind == "pruned")
    assert "2:4" not in pruned.text


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_units_that_are_gone_are_no_zeros(turned, pruned):
    torch.manual_seed(0)
    wide, narrow = (
        nn.Sequential(nn.Linear(6, n), nn.ReLU(), nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, 4)) for n in (12, 9)
    )
    kept = {"0.weight": (slice(9),), "0.bias": (slice(9),), "2.weight": (slice(None), slice(9))}
    narrow.load_state_dict({name: x[kept.get(name, ...)] for name, x in wide.state_dict().items()})
    if pruned:
        with torch.no_grad():
            narrow[2].weight.mul_(narrow[2].weight.abs() > narrow[2].weight.abs().median())
    found = iw.diff(*((narrow, wide) if turned else (wide, narrow)), torch.randn(5, 6))
    said = str(found)
    assert "3 of 12 units of units of 0 " + ("added (9, 10, 11)" if turned else "removed (9, 10, 11)") in said
    assert "their weights" not in said
    assert {c.kind for c in found.tensors if c.name == "0.weight"} == {"widened" if turned else "narrowed"}
    assert kinds(found) >= {"filled" if turned else "pruned"} if pruned else not kinds(found) & {"pruned", "filled"}


class Gated(nn.Module):
    """A gated layer behind a norm with a gain, whose stream nothing can move."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.gate, self.down = nn.RMSNorm(32), *(nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


@pytest.mark.parametrize("folded", [True, False])
def test_a_gain_that_its_readers_took_up_and_were_cast_with_is_not_reset(folded):
    torch.manual_seed(0)
    a, x = Gated(), torch.randn(5, 32)
    with torch.no_grad():
        a.norm.weight.uniform_(0.5, 1.5)
        b = copy.deepcopy(a)
        for layer in (b.up, b.gate) if folded else ():
            layer.weight.mul_(b.norm.weight)
        b.norm.weight.fill_(1)
    found = iw.diff(a, b.bfloat16().float(), x)
    assert found.same_function == folded and ("gains folded" in kinds(found)) == folded
    assert ("reset to a constant: norm.weight" in str(found)) != folded


class Block(Gated):
    """The same behind a layer norm with a bias, between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        for layer in (self.up, self.gate):
            layer.bias = nn.Parameter(torch.randn(32))

    def forward(self, x):
        return self.head(self.last(super().forward(self.embed(x))))


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_folded_and_tuned_or_cast_is_no_reset_of_norms(turned):
    torch.manual_seed(0)
    a, x = Block(), torch.randint(50, (3, 7))
    with torch.no_grad():
        for p in (*a.norm.parameters(), *a.last.parameters()):
            p.add_(0.1 * torch.randn_like(p))
    tuned = iw.fold(a, x).model
    with torch.no_grad():
        tuned.down.weight.add_(0.02 * tuned.down.weight.std() * torch.randn_like(tuned.down.weight))
    found = iw.diff(*((tuned, a) if turned else (a, tuned)), x)
    assert [c.name for c in found.tensors if not c.settled] == ["down.weight"]
    assert "folded" in kinds(found) and f"once {'b' if turned else 'a'} is folded" in found.reason
    if not turned:
        cast = iw.diff(a, iw.fold(a, x).model.bfloat16().float(), x)
        assert cast.same_function and "up to rounding to bfloat16" in cast.reason
    reset = copy.deepcopy(a)
    torch.nn.init.zeros_(reset.norm.bias)
    assert "reset to a constant: norm.bias" in str(iw.diff(a, reset, x))


def test_what_was_rotated_and_tuned_everywhere_is_rotated_back():
    """As many tensors differ before as after: what is left of them decides."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=200)
    a, x = transformers.LlamaForCausalLM(config).eval(), {"input_ids": torch.randint(0, 200, (4, 12))}
    b = iw.rotate(a, x).model
    with torch.no_grad():
        for p in b.parameters():
            p.add_(0.02 * torch.randn_like(p) * p.std() if p.ndim > 1 else 0)
    found = iw.diff(a, b, x)
    assert "once both are folded" in found.reason and "replaced" not in kinds(found)
    assert all(c.relative < 0.03 for c in found.tensors)


def test_small_entries_that_are_differences_of_large_ones_are_rounded_with_them():
    """Means that were taken off in single precision, of two networks that differ by rounding."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    b = copy.deepcopy(a)
    with torch.no_grad():
        weight = a[0].weight
        weight.view(-1)[:40] *= 1e-3  # what is left where entries are about as large as their mean
        b[0].weight.copy_(weight + 1e-8 * weight.std() * torch.randn_like(weight))
    assert not torch.equal(a[0].weight, b[0].weight)
    assert iw.diff(a, b, torch.randn(5, 32)).same_function
    with torch.no_grad():
        b[0].weight.copy_(weight + 1e-6 * weight.std() * torch.randn_like(weight))
    assert not iw.diff(a, b, torch.randn(5, 32)).same_function


def test_experts_that_are_alike_and_stand_in_another_order_are_permuted():
    torch.manual_seed(0)
    gate, up, down = torch.randn(6, 4), torch.randn(1, 6, 8), torch.randn(1, 8, 3)
    near = lambda t: t + 0.1 * torch.randn(4, *t.shape[1:])
    weights = {"gate": gate, "up": near(up), "down": near(down)}
    order = [2, 0, 3, 1]
    moved = {n: t[:, order] if n == "gate" else t[order] for n, t in weights.items()}
    run = lambda m, x: torch.einsum("nef,efo,ne->no", torch.einsum("nd,edf->nef", x, m.up).relu(), m.down, gates(m, x))
    gates = lambda m, x: (x @ m.gate).softmax(-1)
    a, b = (Made(run, **{n: nn.Parameter(t.clone()) for n, t in some.items()}) for some in (weights, moved))
    found = iw.diff(a, b, torch.randn(5, 6))
    assert found.same_function and kinds(found) == {"permuted"}, str(found)


def test_the_parting_of_programs_is_said_of_the_right_network():
    a, b = (nn.Sequential(nn.Linear(6, 8), act(), nn.Linear(8, 3)) for act in (nn.Tanh, nn.Sigmoid))
    b = nn.Sequential(nn.Identity(), *b)
    said = next(f.text for f in iw.diff(a, b, torch.randn(4, 6)).findings if f.kind == "other programs")
    assert said.index("tanh") < said.index("sigmoid"), said


def test_counters_of_batches_are_no_change_whether_they_differ_or_are_missing():
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(5, 4)
    counted = copy.deepcopy(a)
    counted[1].num_batches_tracked += 7
    without = {n: t for n, t in a.state_dict().items() if n != "1.num_batches_tracked"}
    for one, other, detail in ((a, counted, "0 to 7"), (a, without, "missing"), (without, a, "new")):
        found = iw.diff(one, other, x)
        assert found.same_function and "every tensor but for counters of batches" in found.reason
        assert [(f.kind, f.tensors) for f in found.findings] == [("counter", ("1.num_batches_tracked",))]
        assert found.findings[0].text.endswith(f"1.num_batches_tracked {detail}")


def test_counters_of_several_networks_in_one_tensor_are_counters():
    parts = {"w": nn.Parameter(torch.randn(3, 2, 4)), "num_batches_tracked": torch.tensor([1, 2, 3])}
    a = Made(lambda s, x: torch.einsum("koi,ni->kno", s.w, x).tanh(), **parts)
    b = copy.deepcopy(a)
    b.num_batches_tracked += 4
    found = iw.diff(a, b, torch.randn(5, 4))
    assert found.same_function and found.findings[0].text.endswith("num_batches_tracked 3 to 7")


def test_outputs_are_not_compared_where_statistics_are_missing():
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(5, 4)
    found = iw.diff(a, {n: t for n, t in a.state_dict().items() if "running" not in n}, x)
    assert found.output_error is None and not found.same_function
    assert [(f.kind, f.tensors) for f in found.findings] == [("missing", ("1.running_mean", "1.running_var"))]
