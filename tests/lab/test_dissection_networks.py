"""ResNet-50 with published names, its modified version, and the small ConvNeXt."""

import pytest
import torch
from torch import nn

from intertwine._io import read_tensors
from intertwine.lab import networks
from intertwine.lab.networks import resnet50, small_convnext


@pytest.fixture(scope="module")
def hub_names():
    """Names and shapes of a published ResNet-50 checkpoint, from the architecture's description."""
    shapes = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 2048), "fc.bias": (1000,)}

    def norm(name, width):
        shapes.update({f"{name}.{k}": (width,) for k in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            for k, (a, b, size) in enumerate([(before, width, 1), (width, width, 3), (width, 4 * width, 1)], 1):
                shapes[f"{name}.conv{k}.weight"] = (b, a, size, size)
                norm(f"{name}.bn{k}", b)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (4 * width, before, 1, 1)
                norm(f"{name}.downsample.1", 4 * width)
            before = 4 * width
    return shapes


@pytest.mark.parametrize("relu", ["true", "false"])
def test_published_checkpoints_fit_by_name_and_shape(hub_names, relu):
    with torch.device("meta"):
        model = networks.build(f"resnet50:residual_relu={relu}")
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == hub_names
    assert sum(p.numel() for p in model.parameters()) == 25_557_032


def test_a_checkpoint_file_loads(tmp_path):
    model = resnet50(width=2, blocks=(1, 1), classes=3)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "hub.pth")
    twin = resnet50(width=2, blocks=(1, 1), classes=3)
    twin.load_state_dict(read_tensors(tmp_path / "hub.pth"))
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_only_the_residual_activations_differ():
    with_relu, without = (resnet50(width=2, blocks=(1, 2), classes=3, residual_relu=r).eval() for r in (True, False))
    without.load_state_dict(with_relu.state_dict())
    kinds = [{n: type(m) for n, m in model.named_modules()} for model in (with_relu, without)]
    differing = {n for n in kinds[0] if kinds[0][n] is not kinds[1][n]}
    assert differing == {"layer1.0.relu3", "layer2.0.relu3", "layer2.1.relu3"}
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert float(with_relu.features(x).min()) >= 0 > float(without.features(x).min())


@pytest.mark.parametrize(
    "build", [lambda: resnet50(5, width=4, blocks=(1, 1), stem="small"), lambda: small_convnext(5)]
)
def test_dense_logits(build):
    model = build().eval()
    x = torch.randn(2, 3, 32, 32)
    assert model(x).shape == (2, 5)
    assert model.dense(x).shape == (2, 5, 8, 8)
    if hasattr(model, "avgpool"):
        assert torch.allclose(model.dense(x).mean((2, 3)), model(x), atol=1e-5)


def test_convnext_has_no_activation_on_the_stream():
    model = small_convnext(5).eval()
    assert sum(isinstance(m, nn.GELU) for m in model.modules()) == 4
    with torch.no_grad():
        assert float(model.features(torch.randn(2, 3, 32, 32)).min()) < 0
        block, stream = model.get_submodule("layer1.0"), torch.randn(2, 16, 4, 4)
        block.scale.zero_()  # without its branch
        assert torch.equal(block(stream), stream)


def test_bad_arguments():
    with pytest.raises(ValueError, match="blocks must be at least 1 in every stage"):
        resnet50(blocks=(1, 0))
    with pytest.raises(ValueError, match="at least one stage and block"):
        small_convnext(widths=())
