"""Blocks taken out of trained networks: what is left is what theorem 3.3 calls a sub-network."""

import pytest
import torch

from intertwine.lab.experiments import Setting, reproduce
from intertwine.lab.experiments.paper2.block_removal import Removals, removable, without
from intertwine.lab.experiments.zoos import recipe_at, zoo_for
from intertwine.lab.networks import build


def test_a_block_leaves_its_shortcut_and_nothing_else_changes():
    torch.manual_seed(0)
    model = build("resnet20:width=4").eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(2, 3, 16, 16)
    for part in removable(model):
        twin = without(model, part)
        block = model.get_submodule(part)
        inputs = torch.randn(2, block.conv1.in_channels, 8, 8)
        assert torch.equal(twin.get_submodule(part)(inputs), block.shortcut(inputs).relu())
        assert twin(x).shape == (2, 10)
        assert not torch.allclose(twin(x), model(x))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_block_whose_branch_is_zero_can_go_unnoticed():
    model = build("resnet20:width=4").eval()
    with torch.no_grad():
        model.get_submodule("layer2.1.bn2").weight.zero_()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(without(model, "layer2.1")(x), model(x))
    assert not torch.equal(without(model, "layer2.2")(x), model(x))


def test_a_layer_goes_with_its_norm_and_relu():
    model = build("vgg16:width=4").eval()
    twin = without(model, "conv4")
    x = torch.randn(2, 8, 16, 16)
    assert all(twin.get_submodule(f"{kind}4")(x) is x for kind in ("conv", "bn", "relu"))
    assert twin(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_only_what_keeps_the_shape_can_go():
    with pytest.raises(ValueError, match=r"part must be one of conv2, conv4.*Got 'conv1'"):
        without(build("vgg16:width=4"), "conv1")
    with pytest.raises(TypeError, match="model must be a ResNet or a flat network"):
        removable(torch.nn.Linear(2, 2))


def test_one_network(tmp_path):
    setting = Setting(folder=tmp_path)
    (member,) = zoo_for(setting, "resnet20:width=4", 1, recipe_at(setting).but(epochs=1), examples=200).members
    assert member.card.data == "digits[:200]"
    value = Removals(checkpoint=str(member.path), data="digits", measured=100, tested=50).run(tmp_path)
    assert set(value["without"]) == set(value["measured"]) == set(removable(build("resnet20")))


@pytest.mark.slow
def test_the_experiment_at_smoke_scale(tmp_path):
    found = reproduce("p2-block-removal", Setting(folder=tmp_path))
    assert found.passed
    assert len(found.rows) == 2 + 2 * (9 + 9)
    assert all(row.low <= row.ours <= row.high for row in found.rows if row.low is not None)
