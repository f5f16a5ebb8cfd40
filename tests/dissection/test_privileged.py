"""What the symmetry group says about a layer's basis, beside what dissection measures."""

from copy import deepcopy

import pytest
import torch
from made import Made
from torch import nn

from intertwine.dissection import Criterion, Maps, PrivilegedBases, predict, privileged_bases
from intertwine.lab.networks import resnet50
from intertwine.symmetry import symmetries


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 6, 1), nn.Tanh(),
        nn.Conv2d(6, 4, 1), nn.Softplus(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5), nn.ReLU(),
        nn.Linear(5, 2),
    ).eval()  # fmt: skip


SAYS = {
    "1": "permutes and rescales",
    "2": "mixes these channels by general linear maps: no basis is privileged",
    "4": "permutes and flips",
    "6": "only permutes these channels",
    "11": "no symmetry moves these channels",
}


@pytest.mark.parametrize("layer", SAYS)
def test_predictions_follow_the_activation(model, layer):
    assert SAYS[layer] in predict(model, layer, torch.rand(2, 3, 12, 10))


def test_a_stream_behind_rms_norms_is_mixed_by_orthogonal_maps_only():
    model = nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6, elementwise_affine=False), nn.Linear(6, 3))
    assert "mixes these channels by orthogonal maps: no basis is privileged" in predict(model, "0", torch.randn(5, 4))


class Squared(nn.Module):
    """An RMS norm with a gain, or an activation, put together from single operations."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.gain = kind, nn.Parameter(torch.ones(6))

    def forward(self, x):
        gelu = 0.5 * x * (1 + torch.tanh(x + 0.04 * x.pow(3)))
        normed = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return {"activation": gelu, "gained": normed * self.gain, "bare": normed}[self.kind]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("activation", "the group only permutes these channels"),
        ("gained", "the group only permutes, rescales and flips these channels"),
        ("bare", "the group mixes these channels by linear maps: no basis is privileged"),
    ],
)
def test_layers_whose_layout_is_not_stated_are_moved_to_see_how(kind, says):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), Squared(kind), nn.Linear(6, 3)), torch.randn(5, 4)
    assert "1" not in symmetries(model, x).features
    assert says in predict(model, "1", x)
    with pytest.raises(ValueError, match="model must have weights, to see how layer '1' moves"):
        predict(model.to("meta"), "1", x.to("meta"))


def test_every_space_has_a_row_or_is_named(model, concept_set):
    found = privileged_bases(model, concept_set, seeds=2, criterion=Criterion(quantile=0.1))
    assert {s.layer: s.privileged for s in found.spaces} == {"1": True, "2": False, "4": True, "6": True}
    assert found.without_maps == ("9.weight[0]",)
    for space in found.spaces:
        assert 0 <= space.own <= space.units
        assert space.trend in ("falls", "rises", "undecided")
        assert space.agrees is None or isinstance(space.agrees, bool)
    assert "predicted: the group mixes" in str(found)
    assert len(found.to_frame()) == 4


def test_networks_in_float64_get_images_in_float64(model, concept_set):
    single, double = (privileged_bases(m, concept_set, seeds=2) for m in (model, deepcopy(model).double()))
    assert [s.prediction for s in double.spaces] == [s.prediction for s in single.spaces]


def test_compiled_networks_are_those_that_they_wrap(model, concept_set):
    compiled, images = torch.compile(model), torch.rand(2, 3, 12, 10)
    assert predict(compiled, "1", images) == predict(model, "1", images)
    assert privileged_bases(compiled, concept_set, seeds=2) == privileged_bases(model, concept_set, seeds=2)


def test_tokens_have_the_grid_that_is_given(concept_set):
    def run(m, x):
        tokens = m.patch(x).flatten(2).transpose(1, 2)
        return m.last(m.act(m.first(torch.cat([tokens[:, :3], tokens], 1)))).mean(1)

    layers = {"first": nn.Linear(8, 6), "act": nn.ReLU(), "last": nn.Linear(6, 2)}
    model = Made(run, patch=nn.Conv2d(3, 8, (4, 5), (4, 5)), **layers)
    found = privileged_bases(model, concept_set, seeds=2, maps=Maps(grid=(3, 2)))
    assert "act" in [s.layer for s in found.spaces] and not found.without_maps


def test_saving_and_loading(model, concept_set, tmp_path):
    found = privileged_bases(model, concept_set, seeds=2, criterion=Criterion(quantile=0.1))
    assert PrivilegedBases.load(found.save(tmp_path / "bases.json")) == found


def test_batch_norm_ties_a_stream_without_activation_to_its_channels():
    images = torch.rand(2, 3, 32, 32)
    nets = [resnet50(3, width=2, blocks=(1, 1), stem="small", residual_relu=r).eval() for r in (True, False)]
    assert "permutes and rescales" in predict(nets[0], "layer2", images)
    assert "permutes, rescales and flips" in predict(nets[1], "layer2", images)
