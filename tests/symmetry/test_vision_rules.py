"""Operations on images, volumes and sequences, each between two linear maps: what moves, and that it may."""

import pytest
import torch
import torch.nn.functional as F
from completeness import completeness
from made import Made
from sandwich import prove
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from intertwine.symmetry import symmetries
from intertwine.testing import function_error

G, M, NZ, S, P, HELD = 64, (8, 0), (8, 1), (0, 1), (0, 0), None  # group of eight channels: its dimension, its signs
SAMPLES = torch.rand(2, 8, 2, generator=torch.Generator().manual_seed(0)).double()

# name -> (function of features with eight channels, group, dimensions of space)
CASES = {
    "bicubic": (lambda h: F.interpolate(h, (5, 5), mode="bicubic", antialias=True), G, 2),
    "nearest in 3d": (lambda h: F.interpolate(h, (3, 3, 3), mode="nearest-exact"), G, 3),
    "reflected in 3d": (lambda h: F.pad(h, (1,) * 6, "reflect"), G, 3),
    "repeated in 3d": (lambda h: F.pad(h, (1,) * 6, "replicate"), G, 3),
    "unpooled": (lambda h: F.max_unpool2d(*F.max_pool2d(h, 2, return_indices=True), 2), M, 2),
    "unpooled in 1d": (lambda h: F.max_unpool1d(*F.max_pool1d(h, 2, return_indices=True), 2), M, 1),
    "unpooled in 3d": (lambda h: F.max_unpool3d(*F.max_pool3d(h, 2, return_indices=True), 2), M, 3),
    "means put where maxima were": (
        lambda h: F.max_unpool2d(F.avg_pool2d(h, 2), F.max_pool2d(h, 2, return_indices=True)[1], 2), M, 2,
    ),
    "pooled in windows of each channel": (
        lambda h: F.fractional_max_pool2d(h, 2, output_size=4, _random_samples=SAMPLES), HELD, 2,
    ),
    "pooled to a grid": (lambda h: F.adaptive_max_pool2d(h, 2), M, 2),
    "norms of windows": (lambda h: F.lp_pool2d(h, 2, 2), NZ, 2),
    "turned": (lambda h: torch.rot90(h, 1, (2, 3)), G, 2),
    "mirrored": (lambda h: h.flip(2, 3), G, 2),
    "rolled": (lambda h: h.roll((1, 2), (2, 3)), G, 2),
    "a part copied": (lambda h: torch.narrow_copy(h, 2, 1, 3), G, 2),
    "diagonal": (lambda h: h.diagonal(dim1=2, dim2=3)[..., None], G, 2),
    "diagonal of channels": (
        lambda h: h.diagonal(dim1=1, dim2=2).sum(2)[:, None, :, None].expand(-1, 8, -1, -1), HELD, 2,
    ),
    "columns and back": (lambda h: F.fold(F.unfold(h, 3, padding=1), (6, 6), 3, padding=1), G, 2),
    "space into channels": (lambda h: F.pixel_shuffle(F.pixel_unshuffle(h, 2).relu(), 2), M, 2),
    "blurred": (lambda h: F.conv2d(h, torch.rand(1, 1, 3, 3).double().expand(8, -1, -1, -1), groups=8), G, 2),
    "blurred by channel": (lambda h: F.conv2d(h, torch.rand(8, 1, 3, 3).double(), groups=8), HELD, 2),
    "response norm": (lambda h: F.local_response_norm(h, 3), HELD, 2),
    "running maximum": (lambda h: h.cummax(2).values, M, 2), "running product": (lambda h: h.cumprod(2), P, 2),
    "running exponentials": (lambda h: h.logcumsumexp(2), P, 2),
    "median": (lambda h: h.median(2, keepdim=True).values, M, 2),
    "place of the median": (lambda h: h.median(2, keepdim=True).indices.double(), M, 2),
    "second smallest": (lambda h: h.kthvalue(2, 2, keepdim=True).values, M, 2),
    "median over channels": (lambda h: h.median(1, keepdim=True).values.expand(-1, 8, -1, -1), P, 2),
    "product": (lambda h: h.prod(2, keepdim=True), NZ, 2),
    "product of three": (lambda h: h[:, :, :3].prod(2, True), NZ, 2),
    "product over channels": (lambda h: h.prod(1, keepdim=True) + h, P, 2),
    "towards": (lambda h: torch.lerp(h, h.relu(), 0.3), M, 2),
    "towards itself": (lambda h: torch.lerp(h, -h, 0.3), G, 2),
    "by tensors": (lambda h: torch.lerp(h, h.relu(), h.sigmoid()), P, 2),
    "ratio added": (lambda h: torch.addcdiv(h, h, h.abs() + 1), S, 2),
    "product added": (lambda h: torch.addcmul(h.relu(), h, h), P, 2),
    "rearranged": (lambda h: h.unflatten(2, (3, 2)).permute(0, 2, 1, 3, 4).amax(3).transpose(1, 2), M, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule_over_space(name):
    function, expected, rank = CASES[name]
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]

    def run(m, x):
        torch.manual_seed(1)
        return m.b(function(m.a(x)))

    torch.manual_seed(0)
    model, x = Made(run, a=conv(3, 8, 1), b=conv(8, 2, 1)).double(), torch.randn(2, 3, *(6, 6, 4)[:rank]).double()
    sym = prove(model, x)
    space = next((s for s in sym.spaces if s.name == "a.weight[0]" and s.group.permutes), None)
    found = None if space is None else G if space.group.is_general else (sym.dim, space.group.signs)
    assert found == expected and not sym.unknown_ops


class Packed(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.a, self.r, self.b = nn.Linear(3, 4), cell(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        steps, _ = self.r(pack_padded_sequence(self.a(x), torch.tensor([6, 4, 2]), batch_first=True))
        return self.b(pad_packed_sequence(steps, batch_first=True)[0])


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(cell):
    torch.manual_seed(0)
    model, x = Packed(cell).double(), torch.randn(3, 6, 3).double()
    sym = prove(model, x)
    assert sorted(s.size for s in sym.spaces) == [4, 5] and sym.dim == 16
    assert not sym.unknown_ops and not sym.path_only  # lengths that are constants decide nothing


def bilinear(between):
    return Made(
        lambda m, x: m.o(between(m.c(m.a(x), m.b(x)))), a=nn.Linear(3, 4), b=nn.Linear(3, 5), c=nn.Bilinear(4, 5, 6),
        o=nn.Linear(6, 2),
    )  # fmt: skip


@pytest.mark.parametrize(("between", "dimension"), [(torch.relu, 16 + 25 + 6), (lambda h: h, 16 + 25 + 36)])
def test_bilinear_layers(between, dimension):
    torch.manual_seed(0)
    model, x = bilinear(between).double(), torch.randn(7, 3).double()
    sym = prove(model, x)
    assert sym.dim == dimension and not sym.unknown_ops


def test_both_sides_of_a_bilinear_layer_may_be_one_tensor():
    def run(m, x):
        h = m.a(x)
        return m.o(m.c(h, h.relu()).relu())

    torch.manual_seed(0)
    squared = Made(run, a=nn.Linear(4, 3), c=nn.Bilinear(3, 3, 4), o=nn.Linear(4, 5))
    model, x = squared.double(), torch.randn(80, 4).double()
    sym = symmetries(model, x)
    assert [s.size for s in sym.spaces] == [3, 4] and sym.dim == 7
    assert function_error(model, sym.act(sym.random(3), model), x) < 1e-12
    assert completeness(sym, model, x).detected == 7


BOXES = torch.tensor([[0.0, 0, 0, 3, 3], [1, 1, 1, 4, 5], [1, 0, 2, 2, 5]]).double()


@pytest.fixture(scope="module")
def vision():
    """The operations of a vision library that regions and displaced convolutions go through, in their plainest form."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    boxes = "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
    steps = ", ".join(f"SymInt {name}_{way}" for name in ("stride", "pad", "dilation") for way in "hw")
    schemas = {
        "roi_align": f"{boxes}, int sampling_ratio, bool aligned) -> Tensor",
        "roi_pool": f"{boxes}) -> (Tensor, Tensor)",
        "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
        f"{steps}, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
    }
    for name, schema in schemas.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + schema)

    def crops(x, rois, pool, height, width):
        cut = lambda i, a, b, c, d: pool(x[i : i + 1, :, b : d + 1, a : c + 1], (height, width))
        return torch.cat([cut(*(int(n) for n in box)) for box in rois])

    def largest(x, rois, scale, height, width):
        found = crops(x, rois, F.adaptive_max_pool2d, height, width)
        return found, (found > 0).long()

    def displaced(x, weight, offset, mask, bias, *rest):
        groups = rest[6]
        return F.conv2d(x, weight, bias, groups=groups) * (1 + offset.mean(1, keepdim=True))

    mean = lambda x, rois, scale, h, w, ratio, aligned: crops(x, rois, F.adaptive_avg_pool2d, h, w)
    for name, function in {"roi_align": mean, "roi_pool": largest, "deform_conv2d": displaced}.items():
        library.impl(name, function, "CompositeExplicitAutograd" if name != "roi_pool" else "CPU")
    yield
    library._destroy()


class Displaced(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.a, self.places, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 18, 3), nn.Conv2d(6, 2, 1)
        self.w, self.bias = nn.Parameter(torch.randn(6, 8 // groups, 3, 3)), nn.Parameter(torch.randn(6))
        self.groups = groups

    def forward(self, x):
        h, places = self.a(x), self.places(x)
        none = h.new_zeros(0, 1)
        h = torch.ops.torchvision.deform_conv2d(
            h, self.w, places, none, self.bias, *(1, 1, 0, 0, 1, 1), self.groups, 1, False
        )
        return self.b(h.relu())


def cropped(crop):
    return Made(lambda m, x: m.b(crop(m.a(x))), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 2, 1))


@pytest.mark.usefixtures("vision")
def test_regions_and_displaced_convolutions():
    mean = lambda h: torch.ops.torchvision.roi_align(h, BOXES, 1.0, 2, 2, 0, False)
    largest = lambda h: torch.ops.torchvision.roi_pool(h, BOXES, 1.0, 2, 2)[0]
    models = {
        64: cropped(mean), 8: cropped(largest), 64 + 6: Displaced(), 2 * 16 + 6: Displaced(groups=2)
    }  # fmt: skip
    for dimension, model in models.items():
        torch.manual_seed(0)
        x = torch.randn(2, 3, 6, 6).double()
        sym = prove(model.double(), x)
        assert sym.dim == dimension and not sym.unknown_ops, (dimension, sym)


class Merging(nn.Module):
    """Four neighbouring patches side by side, normalised and projected."""

    def __init__(self, by_slices):
        super().__init__()
        self.patch, self.first, self.mix = nn.Conv2d(3, 3, 1), nn.LayerNorm(3), nn.Linear(3, 3)
        self.norm, self.project, self.out = nn.LayerNorm(12), nn.Linear(12, 4, bias=False), nn.Linear(4, 2)
        self.by_slices = by_slices

    def forward(self, x):
        h = self.patch(x).permute(0, 2, 3, 1)
        h = h + self.mix(self.first(h)).relu()
        if self.by_slices:
            h = torch.cat([h[:, a::2, b::2] for b in (0, 1) for a in (0, 1)], -1)
        else:
            h = h.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.out(F.gelu(self.project(self.norm(h))))


@pytest.mark.parametrize("by_slices", [False, True])
def test_every_gain_over_merged_patches_is_a_scale(by_slices):
    torch.manual_seed(0)
    model, x = Merging(by_slices).double(), torch.randn(2, 3, 4, 4).double()
    sym = prove(model, x)
    assert sym.dim == 3 + 12
    assert [(s.size, s.group.permutes, s.group.scales) for s in sym.spaces] == [(3, True, 5), (4, True, 0)]
