"""Blocks taken out of trained networks: what is left is what theorem 3.3 calls a sub-network."""

import pytest
import torch

from intertwine.lab.data import load
from intertwine.lab.experiments import Setting
from intertwine.lab.experiments.paper2.block_removal import Removals
from intertwine.lab.experiments.plan import Design
from intertwine.lab.networks import build, removable, without
from intertwine.lab.training import RECIPES, accuracy, load_checkpoint


@pytest.mark.parametrize("network", ["resnet20:width=4", "resnet18:width=4"])  # shortcuts that pad, and that convolve
def test_a_block_leaves_its_shortcut_and_nothing_else_changes(network):
    torch.manual_seed(0)
    model = build(network).eval()
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
    """Costs of every part, as removing it by hand gives them; batch norm measured anew is another number."""
    zoo = Design(Setting(folder=tmp_path)).zoo("resnet20", "resnet20:width=4", 1, RECIPES["digits"].but(epochs=1),
                                             examples=200)  # fmt: skip
    zoo.job("cpu").run(tmp_path)
    path = zoo.members[0].path
    rows = Removals(checkpoint=str(path), data="digits", measured=100, device="cpu").run(tmp_path)
    model, data = load_checkpoint(path), load("digits")
    assert {r["layer"] for r in rows} == set(removable(model))
    by = {(r["statistic"], r["layer"]): r["value"] for r in rows}
    test = data.loader("test")
    for part in ("layer1.1", "layer2.0"):
        assert by["cost", part] == pytest.approx(accuracy(model, test) - accuracy(without(model, part), test))
        assert by["loss", part] != by["loss, batch norm measured anew", part]
    assert {r["images"] for r in rows if r["statistic"].startswith("cost")} == {len(data.test)}
    more = Removals(checkpoint=str(path), data="digits", measured=101, device="cpu").run(tmp_path)
    assert [r["value"] for r in more] != [r["value"] for r in rows]
