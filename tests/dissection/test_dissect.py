"""The whole way from a model to detectors: laws, invariance, resuming, bad input."""

import io
import json
import sys
from copy import copy, deepcopy
from dataclasses import replace

import pytest
import torch
from made import Function, Made
from torch import nn

from intertwine.dissection import Bases, Concept, Criterion, Dissection, Maps, TensorConcepts, WithColours, dissect
from intertwine.dissection.bases import Arm
from intertwine.dissection.result import Count
from intertwine.errors import DataError
from intertwine.groups.sampling import haar

FAST = {"pictures": 0}
TWO = [0, 1], 2  # powers and seeds


@pytest.fixture
def found(network, concept_set):
    return dissect(network, "3", concept_set, Bases(seeds=2, g_relu=3), pictures=2, criterion=Criterion(quantile=0.1))


def test_own_basis_equals_the_direct_computation(network, concept_set, slow_iou, found):
    images = torch.stack([concept_set[i].image for i in range(9)]).float() / 255
    with torch.no_grad():
        maps = network(images)
    values = maps.transpose(0, 1).flatten(1).sort(1, descending=True).values
    thresholds = values[:, int(0.1 * values.shape[1])].double()
    best, concept = slow_iou(concept_set, maps, thresholds).max(1)
    assert found.own.iou == tuple(best.tolist())
    assert found.own.concept == tuple(torch.where(best > 0, concept, -1).tolist())


def test_the_papers_threshold_and_overlap_are_the_defaults(found):
    """v2 F.1: the top 0.5 % of a unit's values, and an IoU of more than 0.04."""
    assert (Criterion().quantile, Criterion().iou) == (0.005, 0.04)
    edges = replace(found.own, iou=(0.0, 0.04, 0.0401, 0.9), concept=(0, 0, 0, 0))
    assert edges.detectors(Criterion().iou) == (2, 3)


def test_networks_in_float64_get_images_in_float64(network, concept_set):
    single, double = (dissect(m, "3", concept_set, Bases([0]), **FAST) for m in (network, deepcopy(network).double()))
    assert double.own.concept == single.own.concept
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert dissect(network, "3", concept_set, Bases([0]), **FAST).own.concept == single.own.concept
    finally:
        torch.set_default_dtype(default)


def test_inputs_may_go_by_keyword(network, concept_set):
    named = Made(lambda m, pixel_values: m.network(pixel_values), network=network)
    maps = Maps(transform=lambda images: {"pixel_values": images})
    found = dissect(named, "network.3", concept_set, Bases([0]), maps=maps, **FAST)
    assert found.own == dissect(network, "3", concept_set, Bases([0]), **FAST).own


def test_elements_of_g_relu_change_nothing(found):
    elements = [a for a in found.arms if a.arm.kind == "g_relu"]
    assert len(elements) == 3
    assert found.unchanged is True
    for result in elements:
        assert result.findings() == found.own.findings()  # equal floats, not close ones
        assert result.iou != found.own.iou  # the units were really permuted
    for counts in (found.counts(), found.counts(unique=True), *(found.counts(c) for c in found.categories)):
        assert counts[-1].mean == counts[0].mean


@pytest.mark.parametrize("layer", ["0", "1", "2"])
def test_g_relu_changes_nothing_with_and_without_activation(network, concept_set, layer):
    found = dissect(network, layer, concept_set, Bases([0], g_relu=5), criterion=Criterion(quantile=0.05), **FAST)
    assert found.unchanged is True


def test_the_equality_check_can_fail(network, concept_set, monkeypatch):
    # a general scaling is not in the group: negative factors turn masks inside out
    def negative(self, units, scale=None):
        return (lambda maps: maps) if self.kind == "rotation" else (lambda maps: -maps.double())

    monkeypatch.setattr(Arm, "action", negative)
    found = dissect(network, "2", concept_set, Bases([0]), criterion=Criterion(quantile=0.1), **FAST)
    assert found.unchanged is False
    assert any("must not happen" in note for note in found.notes)


def test_rotations_change_findings_and_identity_power_does_not(found):
    own = [a for a in found.arms if a.arm.alpha == 0]
    assert len(own) == 1
    turned = [a for a in found.arms if a.arm.kind == "rotation" and a.arm.alpha > 0]
    assert len(turned) == 8
    assert all(a.findings() != found.own.findings() for a in turned)
    assert turned[0].findings() != turned[1].findings()  # seeds differ


def test_rotated_counts_depend_on_scales_unless_standardised(network, concept_set):
    twin = nn.Sequential(*network[:2], nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU())
    scale = torch.tensor([4.0, 0.25, 1.0, 8.0, 0.5, 2.0, 1.0, 16.0])  # powers of two: exact, so that nothing else moves
    with torch.no_grad():
        twin[2].weight.copy_(network[2].weight * scale[:, None, None, None])
        twin[2].bias.copy_(network[2].bias * scale)
    options = {"bases": Bases(*TWO, 0), **FAST}
    plain = [dissect(m, "3", concept_set, criterion=Criterion(0.1), **options) for m in (network, twin)]
    assert plain[0].own.iou == plain[1].own.iou
    assert plain[0].arms[1].iou != plain[1].arms[1].iou
    equal = [
        dissect(m, "3", concept_set, criterion=Criterion(0.1, standardise=True), **options) for m in (network, twin)
    ]
    assert [a.iou for a in equal[0].arms] == [a.iou for a in equal[1].arms]


def test_permuted_network_has_permuted_units(network, concept_set):
    order = torch.randperm(8)
    twin = nn.Sequential(*network)
    twin[2] = nn.Conv2d(6, 8, 3, stride=2, padding=1)
    twin[2].weight.data, twin[2].bias.data = network[2].weight.data[order], network[2].bias.data[order]
    a = dissect(network, "3", concept_set, Bases([0], g_relu=0), criterion=Criterion(quantile=0.1), **FAST)
    b = dissect(twin, "3", concept_set, Bases([0], g_relu=0), criterion=Criterion(quantile=0.1), **FAST)
    assert [a.own.iou[i] for i in order] == list(b.own.iou)
    assert a.unchanged is None


@pytest.mark.parametrize("options", [{"memory": 0}, {"batch_size": 2}, {"memory": 0, "batch_size": 4}])
def test_memory_and_batches_do_not_change_findings(network, concept_set, found, options):
    again = dissect(
        network, "3", concept_set, Bases(seeds=2, g_relu=3), pictures=0, criterion=Criterion(quantile=0.1),
        maps=Maps(**options),
    )  # fmt: skip
    assert [a.concept for a in again.arms] == [a.concept for a in found.arms]
    assert again.own.iou == found.own.iou


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(network, concept_set, dtype):
    found = dissect(
        network.to(dtype), "3", concept_set, Bases(*TWO), criterion=Criterion(quantile=0.1),
        maps=Maps(transform=lambda images: images.to(dtype)), **FAST,
    )  # fmt: skip
    assert found.unchanged is True


def test_model_is_left_as_it_was(network, concept_set):
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    dissect(network, "3", concept_set, Bases([0]), **FAST)
    assert network.training
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert not any(m._forward_hooks for m in network.modules())


def test_same_seed_same_result(network, concept_set, found):
    again = dissect(network, "3", concept_set, Bases(seeds=2, g_relu=3), pictures=2, criterion=Criterion(quantile=0.1))
    assert again == found


def test_saving_and_loading(found, tmp_path):
    assert Dissection.load(found.save(tmp_path / "d.json")) == found
    frame = found.to_frame()
    assert len(frame) == 8 * len(found.arms)
    assert set(frame["concept"].dropna()) <= {c.name for c in found.concepts}
    table = found.table()
    assert list(table["alpha"]) == [0, 0.25, 0.5, 0.75, 1, 1]
    assert (table["low"] <= table["detectors"]).all()
    assert (sum(table[c] for c in found.categories) == table["detectors"]).all()
    assert "rotation^0.25" in str(found)


def test_intervals_are_students(found):
    from scipy import stats

    counts = [len(a.detectors(found.iou_threshold)) for a in found.arms if a.arm.alpha == 0.5]
    count = next(c for c in found.counts() if c.alpha == 0.5)
    assert count.mean == sum(counts) / 2
    low, high = (
        stats.t.interval(0.95, 1, count.mean, stats.sem(counts)) if counts[0] != counts[1] else (count.mean,) * 2
    )
    assert (count.low, count.high) == pytest.approx((max(low, 0), high))


def test_pictures_show_the_best_units(network, concept_set, found):
    """Two units with the largest IoU, each on the four images where it is most active, the most active first."""
    import base64

    from PIL import Image

    assert {p.arm for p in found.pictures} == {"rotation-0-0", "rotation-0.5-0", "rotation-1-0"}
    own = [p for p in found.pictures if p.arm == "rotation-0-0"]
    assert [p.iou for p in own[::4]] == sorted(found.own.iou, reverse=True)[: len(own) // 4]
    assert [p.place for p in own[:4]] == [0, 1, 2, 3]
    with torch.no_grad():
        maps = network(torch.stack([concept_set[i].image for i in range(9)]).float() / 255)
    most = maps.amax((2, 3))[:, found.channels[own[0].unit]].argsort(descending=True)
    assert [p.image for p in own[:4]] == most[:4].tolist()
    assert Image.open(io.BytesIO(base64.b64decode(own[0].jpeg))).format == "JPEG"


def test_resume_goes_on_where_it_stopped(network, concept_set, found, tmp_path, monkeypatch):
    module = sys.modules[dissect.__module__]
    real, calls = module._one_basis, []

    def stops(stream, arm, *rest):
        calls.append(arm)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(stream, arm, *rest)

    monkeypatch.setattr(module, "_one_basis", stops)
    options = {"criterion": Criterion(0.1), "bases": Bases(seeds=2, g_relu=3), "pictures": 2, "resume": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        dissect(network, "3", concept_set, **options)
    assert len(list(tmp_path.glob("*-*.json"))) == 4
    calls[:] = [None] * 10  # count on from here, without stopping
    assert dissect(network, "3", concept_set, **options) == found
    assert len(calls) == 10 + len(found.arms) - 4
    assert dissect(network, "3", concept_set, **options) == found
    assert len(calls) == 10 + len(found.arms) - 4


def test_resume_refuses_another_plan(network, concept_set, tmp_path):
    dissect(network, "3", concept_set, Bases([0]), resume=tmp_path, **FAST)
    with pytest.raises(ValueError, match=r"resume must be a folder of the same dissection.*quantile"):
        dissect(network, "3", concept_set, Bases([0]), resume=tmp_path, criterion=Criterion(quantile=0.1), **FAST)
    with pytest.raises(ValueError, match=r"where data differ"):
        dissect(
            network, "3", concept_set, Bases([0]), resume=tmp_path, maps=Maps(transform=lambda images: images - 0.5),
            **FAST,
        )  # fmt: skip
    relabelled = copy(concept_set)
    relabelled._read = lambda i: replace(concept_set[i], image_labels=-torch.ones_like(concept_set[i].image_labels))
    with pytest.raises(ValueError, match="where data differ"):
        dissect(network, "3", relabelled, Bases([0]), resume=tmp_path, **FAST)
    darker = copy(concept_set)  # one image in the middle
    darker._read = lambda i: replace(concept_set[i], image=concept_set[i].image // (2 if i == 3 else 1))
    with pytest.raises(ValueError, match="where data differ"):
        dissect(network, "3", darker, Bases([0]), resume=tmp_path, **FAST)
    with pytest.raises(ValueError, match="where model differ"):  # the same weights and names
        dissect(nn.Sequential(*network[:3], nn.Tanh()), "3", concept_set, Bases([0]), resume=tmp_path, **FAST)
    with torch.no_grad():
        network[0].weight += 1
    with pytest.raises(ValueError, match="model"):
        dissect(network, "3", concept_set, Bases([0]), resume=tmp_path, **FAST)
    assert json.loads((tmp_path / "plan.json").read_text())["layer"] == "3"


def tokens(extra, size=(4, 5)):
    """Patches as tokens, after ``extra`` further tokens."""

    def run(m, x):
        patches = m.patch(x).flatten(2).transpose(1, 2)
        return m.norm(torch.cat([patches.new_zeros(len(x), extra, 8), patches], 1))

    return Made(run, patch=nn.Conv2d(3, 8, size, size), norm=nn.LayerNorm(8))


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_tokens_form_a_grid(concept_set, extra):
    torch.manual_seed(0)
    model = tokens(extra)
    found = dissect(
        model, "norm", concept_set, Bases(*TWO), criterion=Criterion(quantile=0.1), maps=Maps(grid=(3, 2)), **FAST
    )
    norm = Function(lambda x: nn.functional.layer_norm(x.movedim(1, -1), (8,)).movedim(-1, 1))
    plain = nn.Sequential(model.patch, norm)
    assert found.own.iou == dissect(plain, "1", concept_set, Bases([0]), criterion=Criterion(0.1), **FAST).own.iou


def test_square_grid_is_found_by_itself():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    data = TensorConcepts(images, torch.randint(-1, 2, (4, 16, 16)), ["a", "b"])
    for extra in (0, 1):
        found = dissect(tokens(extra, 4), "norm", data, Bases([0]), criterion=Criterion(quantile=0.2), **FAST)
        assert found.units == 8
    with pytest.raises(ValueError, match=r"tokens must form a grid.*Got 18 tokens for 16 x 16.*Say Maps\(grid="):
        dissect(tokens(2, 4), "norm", data, Bases([0]), **FAST)


def test_layers_without_places_are_refused(concept_set):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"one map for each unit.*Got \(.*, 2\).*before pooling.*grid="):
        dissect(model, "3", concept_set, Bases([0]), **FAST)
    with pytest.raises(ValueError, match="grid must have at most T = 6 patches"):
        dissect(tokens(0), "norm", concept_set, Bases([0]), maps=Maps(grid=(3, 3)), **FAST)


def test_empty_concepts(network):
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    data = TensorConcepts(images, torch.zeros(4, 8, 8).long(), ["all", "never"])
    with pytest.raises(DataError, match=r"every concept of tensors must have pixels.*never.*empty='drop'"):
        dissect(network, "3", data, Bases([0]), **FAST)
    found = dissect(network, "3", data, Bases([0]), criterion=Criterion(empty="drop"), **FAST)
    assert found.coverage == (1, 0)
    assert 1 not in found.own.concept
    assert "Left out, as no pixel carries them: 1 concept (never)" in found.notes[0]
    assert "1 concept (all) on more than 0.125 of the pixels" in found.notes[1]
    nothing = TensorConcepts(images, -torch.ones(4, 8, 8).long(), ["a"])
    with pytest.raises(DataError, match="at least one concept"):
        dissect(network, "3", nothing, Bases([0]), criterion=Criterion(empty="drop"), **FAST)


def test_constant_channels_are_left_out_of_counts_and_rotations(concept_set, network):
    smaller = nn.Sequential(network[0], network[1], nn.Conv2d(6, 7, 3, stride=2, padding=1), network[3])
    kept = [0, 1, 2, 4, 5, 6, 7]
    smaller[2].weight.data, smaller[2].bias.data = network[2].weight.data[kept], network[2].bias.data[kept]
    with torch.no_grad():
        network[2].weight[3], network[2].bias[3] = 0, -1
    for memory in (0, 2**30):
        found = dissect(
            network, "3", concept_set, Bases(*TWO), criterion=Criterion(quantile=0.1), maps=Maps(memory=memory), **FAST
        )
        assert found.constant == (3,)
        assert found.channels == tuple(kept)
        assert any("1 of 8 channels are constant" in n for n in found.notes)
        without = dissect(smaller, "3", concept_set, Bases(*TWO), criterion=Criterion(quantile=0.1), **FAST)
        for a, b in zip(found.arms, without.arms, strict=True):
            assert a.concept == b.concept
            assert a.iou == pytest.approx(b.iou, abs=0.01)
    assert found.to_frame()["unit"][3] == 4


def test_layers_of_constants_or_nan_are_refused(concept_set, network):
    with torch.no_grad():
        network[2].weight.zero_()
    with pytest.raises(DataError, match=r"a channel that varies over made. Got 8 constant ones"):
        dissect(network, "3", concept_set, Bases([0]), **FAST)
    with torch.no_grad():
        network[2].bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"must be finite. Got NaN or infinity"):
        dissect(network, "2", concept_set, Bases([0]), **FAST)


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (Criterion, {"quantile": 0}, r"quantile must be a share in \(0, 1\)"),
        (Criterion, {"iou": 1}, r"iou must be in \[0, 1\)"),
        (Criterion, {"empty": "keep"}, "empty must be 'error' or 'drop'"),
        (Bases, {"rotations": [0, 2]}, r"rotations must be powers in \[0, 1\]"),
        (Bases, {"rotations": []}, r"rotations must be powers in \[0, 1\]"),
        (Bases, {"seeds": 0}, "seeds must be different and at least one"),
        (Bases, {"seeds": [1, 1]}, "seeds must be different and at least one"),
        (Bases, {"g_relu": -1}, "g_relu must be a number of elements"),
        (Maps, {"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options, values, message):
    with pytest.raises(ValueError, match=message):
        options(**values)


def test_bad_arguments_are_refused(network, concept_set):
    with pytest.raises(ValueError, match="layers must be names of modules"):
        dissect(network, "9", concept_set)
    with pytest.raises(ValueError, match=r"pictures must be at least 0.*Got -1"):
        dissect(network, "3", concept_set, pictures=-1)
    with pytest.raises(TypeError, match=r"bases must be a Bases.*Got \[0, 1\]\."):
        dissect(network, "3", concept_set, [0, 1])


def test_arms_cover_the_plan_once():
    arms = Bases([0, 0.5, 1, 0.5], [3, 4], 2).arms
    assert [(a.kind, a.alpha, a.seed) for a in arms] == [
        ("rotation", 0, 3), ("rotation", 0.5, 3), ("rotation", 0.5, 4), ("rotation", 1, 3), ("rotation", 1, 4),
        ("g_relu", 1, 0), ("g_relu", 1, 1),
    ]  # fmt: skip
    assert Bases([1], [0], 0).arms[0].alpha == 0
    assert len({a.name for a in arms}) == len(arms)


def test_powers_of_one_seed_lie_on_one_path():
    maps = torch.randn(2, 5, 3, 3, dtype=torch.float64)
    half, whole = (Arm("rotation", alpha, 7).action(5) for alpha in (0.5, 1.0))
    assert torch.allclose(half(half(maps)), whole(maps))


def test_colours_from_pixels_can_be_dissected(concept_set):
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    images[:, 0, :4, :4] = 220
    images[:, 2, 4:, 4:] = 220
    data = WithColours(TensorConcepts(images, torch.zeros(6, 8, 8).long(), [Concept("all", "thing")]))
    found = dissect(
        nn.Conv2d(3, 3, 1, bias=False).requires_grad_(False), "", data, Bases([0]), criterion=Criterion(empty="drop"),
        **FAST,
    )  # fmt: skip
    assert found.categories == ("thing", "colour")
    identity = nn.Conv2d(3, 3, 1, bias=False)
    identity.weight.data = torch.eye(3)[:, :, None, None]
    found = dissect(identity, "", data, Bases([0]), criterion=Criterion(quantile=0.3, empty="drop"), **FAST)
    assert [found.concepts[c].name if c >= 0 else None for c in found.own.concept] == ["red", "blue"]
    assert found.own.iou == (1.0, 1.0)
    assert found.constant == (1,)


@pytest.mark.parametrize("rotations", [2, 3, 5, 20])
def test_a_basis_like_the_others_is_rarely_called_special(rotations):
    drawn = torch.distributions.Binomial(12, torch.tensor(0.7)).sample((2000, rotations + 1)).long().tolist()
    ends = [(own, Count.over("rotation", 1.0, counts).one_more) for own, *counts in drawn]
    assert sum(not low <= own <= high for own, (low, high) in ends) <= 0.065 * len(ends)
    assert Count.over("rotation", 1.0, [0] * 3).one_more[1] < 3


@pytest.mark.parametrize("planted", ["all concepts", "one concept", "none"])
def test_a_difference_must_hold_over_concepts(planted):
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8, generator=g)
    shown = images[:, 0] // 26  # ten concepts, by red
    data = TensorConcepts(images, shown.long(), [f"concept {k}" for k in range(10)])
    one = planted == "one concept"
    basis = haar(10, torch.Generator().manual_seed(5)) if planted == "none" else torch.eye(10)

    def units(x):
        hot = nn.functional.one_hot((x[:, 0] * 255 / 26).long(), 10).movedim(-1, 1).to(x)
        noise = 0.9 * torch.rand(hot.shape, generator=torch.Generator().manual_seed(0)).to(x)
        found = torch.cat([hot[:, [0] * 4] + noise[:, :4], 3 * noise[:, 4:]], 1) if one else hot + noise
        return torch.einsum("uc,nchw->nuhw", basis.to(x), found)

    maps = Maps(batch_size=len(images))
    found = dissect(Function(units), "", data, Bases([0, 1], 8), criterion=Criterion(0.1, 0.6), maps=maps, **FAST)
    own, (_, high) = len(found.own.detectors(0.6)), found.powers()[-1].one_more
    assert (own > high) == (planted != "none")  # what the rotations alone say
    assert found.trend == ("falls" if planted == "all concepts" else "undecided")
    assert ("seen in one concept alone" in found.verdict) == one
    assert ("10 concepts, with IoUs from 0." in found.verdict) == (planted == "all concepts")
