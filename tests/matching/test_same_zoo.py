"""Copies of real architectures: one canonical form, one fingerprint, and seen as the same, rounded or not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from noise import rms, shaken
from torch import Tensor, nn
from zoo import build

import intertwine as iw
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.matching.same import same
from intertwine.testing import function_error

NAMES = [
    "vgg_bn", "shufflenet_3", "groupnorm_cnn", "unet", "densenet", "vit_module", "gru",
    "lstm", "conv3d", "convnext", "senet", "weight_norm", "bilinear", "linear_conv", "mlp_identity",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_copies(name):
    model, x = build(name)
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=3), model)
    found = same(model, twin, x, sym)
    assert found.verdict == SAME and found.deviation < 1e-8, str(found)
    assert function_error(sym.act(found.transformation, model), twin, x) < 1e-9
    assert same(model, copy.deepcopy(twin).bfloat16().double(), x, sym).verdict == SAME
    assert same(model, build(name, seed=5)[0], x, sym).verdict == DIFFERENT
    assert iw.fingerprint(model, x, sym) == iw.fingerprint(twin, x, sym)
    one, two = iw.canonical(model, x, sym), iw.canonical(twin, x, sym)
    assert function_error(model, one, x) < 1e-12
    pairs = zip(one.state_dict().values(), two.state_dict().values())
    assert max((p - q).abs().max().item() for p, q in pairs if p.is_floating_point()) < 1e-6


def test_rounding_of_what_cancels_does_not_blur_scales():
    model, x = build("conv3d")
    sym = iw.symmetries(model, x)
    for seed in range(4):
        assert same(model, sym.act(sym.random(seed=seed), model).bfloat16().double(), x, sym).verdict == SAME


@pytest.mark.parametrize(("name", "noise"), [("shufflenet_2", 0.05), ("groupnorm_cnn", 0.2), ("bilinear", 0.1)])
def test_noisy_copies_are_matched_through_groups_grids_and_bases(name, noise):
    model, x = build(name)
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p += noise * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    sym = iw.symmetries(model, x)
    found = same(model, sym.act(sym.random(seed=2), other), x, sym)
    assert found.verdict == RELATED and found.residual < 2 * noise, str(found)
    assert "by chance" in found.reason


def test_signs_of_heads_and_planes_are_solved_together():
    model, x = build("llama_module_norm")
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=3), model)
    one, two = iw.canonical(model, x, sym), iw.canonical(twin, x, sym)
    assert max((p - q).abs().max().item() for p, q in zip(one.parameters(), two.parameters())) < 1e-6


class Relative(nn.Module):
    """Scores of places from a table with fewer entries than dimensions, as relative positions have."""

    def __init__(self, places: int = 3, width: int = 6, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.places = nn.Parameter(torch.randn(places, width))
        self.query, self.key = nn.Linear(5, 4 * heads, bias=False), nn.Linear(5, 4 * heads, bias=False)
        self.place_key, self.place_query = (nn.Linear(width, 4 * heads, bias=False) for _ in range(2))
        self.value, self.out = nn.Linear(5, 2 * heads), nn.Linear(2 * heads, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, pk, pq, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for y in (
                self.query(x), self.key(x), self.place_key(self.places), self.place_query(self.places), self.value(x),
            )
        )  # fmt: skip
        scores = q @ k.mT + q @ pk.mT + (k @ pq.mT).mT
        return self.out((scores.softmax(-1) @ v).transpose(-3, -2).flatten(2))


@pytest.mark.parametrize("most_bits", [4096, 0])
def test_directions_that_nothing_writes_take_their_signs_from_what_reads_them(most_bits, monkeypatch):
    monkeypatch.setattr("intertwine.symmetry.gauge.signs._MOST_BITS", most_bits)  # 0: nothing is solved together
    torch.manual_seed(0)
    model, x = Relative().double(), torch.randn(2, 3, 5).double()
    sym = iw.symmetries(model, x)
    assert sum(s.group.is_general and s.size == 6 for s in sym.spaces) == 1  # written with rank 3
    form = iw.canonical(model, x, sym)
    for kind in ("permutation", "scale", "sign", "linear"):
        for seed in range(2):
            twin = sym.act(sym.random(seed, {kind}), model)
            other = iw.canonical(twin, x, sym)
            assert max((p - q).abs().max().item() for p, q in zip(form.parameters(), other.parameters())) < 1e-8


class Windows(nn.Module):
    """Channels times taps, read as taps times channels: one space of two comes three times on one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.out(F.unfold(h[:, :, None], (1, 2)).unflatten(1, (2, 8)).mean(1) * h[:, :, 1:])


def test_signs_of_an_axis_that_holds_one_space_several_times():
    torch.manual_seed(0)
    model, x = Windows().double(), torch.randn(2, 3, 7).double()
    sym = iw.symmetries(model, x)
    (space,) = sym.spaces
    assert (space.size, space.group.permutes) == (2, False) and space.group.signs
    form = iw.canonical(model, x, sym)
    for seed in range(4):
        twin = sym.act(sym.random(seed), model)
        assert same(model, twin, x, sym).verdict == SAME
        other = iw.canonical(twin, x, sym)
        assert max((p - q).abs().max().item() for p, q in zip(form.parameters(), other.parameters())) < 1e-8


class Nested(nn.Module):
    """Groups of heads of units: heads lie inside groups, and a vector tells heads, another groups."""

    def __init__(self, groups: int = 3, heads: int = 2, size: int = 4) -> None:
        super().__init__()
        self.shape = (groups, heads, size)
        self.values, self.out = nn.Linear(5, groups * heads * size), nn.Linear(groups * heads * size, 6)
        self.heads = nn.Parameter(torch.randn(groups, heads))
        self.groups = nn.Parameter(torch.randn(groups))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.values(x)).unflatten(-1, self.shape)
        y = torch.softmax(y * self.heads[..., None] * self.groups[:, None, None], -1)
        y = y / y.sum((-1, -2), keepdim=True)
        return self.last(torch.tanh(self.out(y.flatten(-3))))


def test_heads_inside_groups_and_vectors_of_heads_are_matched():
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Nested().double()

    model, x = make(0), torch.randn(4, 5).double()
    sym = iw.symmetries(model, x)
    assert {len(s.parents) for s in sym.spaces} == {0, 1, 2}
    other = shaken(copy.deepcopy(model), 0.05, rms)
    for b, verdict in ((model, SAME), (other, RELATED), (make(1), DIFFERENT)):
        found = same(model, sym.act(sym.random(seed=2), b), x, sym)
        assert found.verdict == verdict, str(found)


@pytest.mark.parametrize("name", ["mlp", "vit_sdpa", "layer_scale", "gpt_packed"])
def test_copies_in_float32(name):
    model, x = build(name, torch.float32)
    sym = iw.symmetries(model, x)
    found = same(model, sym.act(sym.random(seed=3), model), x, sym)
    assert found.verdict == SAME and found.precision in ("float32", "float64"), str(found)


def noisy(model: nn.Module, name: str, size: float) -> nn.Module:
    """The model with noise of a share of their root mean square on matrices of a name."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (p for n, p in other.named_parameters() if name in n and p.ndim == 2):
            p += size * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return other


def test_small_noise_that_bases_spread_over_all_weights_is_not_rounding():
    """Less than bfloat16 rounds, so that its size alone does not tell."""
    model, x = build("llama")
    found = same(model, noisy(model, "blocks", 0.002), x)
    assert found.verdict == RELATED and "rounding" not in found.reason


def test_an_edit_before_a_cast_is_named_in_other_bases():
    model, x = build("llama")
    sym = iw.symmetries(model, x)
    other = sym.act(sym.random(seed=2), noisy(model, "blocks.0.3.up", 0.3).bfloat16().double())
    found = same(model, other, x, sym)
    assert found.verdict == RELATED and set(found.differing) == {"blocks.0.3.up.weight"}
    assert "bfloat16" in found.reason
