"""The second paper's networks, and their gated counterparts, which must really convert and run."""

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.lab import networks, training

GATES = {"c1gap": 1, "c4gap": 4, "cnn_gap": 6, "vgg16": 15, "resnet110": 109, "c1gap_ensemble": 16}


def conv(before, after):
    return 9 * before * after + after


@pytest.mark.parametrize("width", [128, 512])
def test_c4gap_has_the_papers_layers(width):
    expected = conv(3, width) + 3 * conv(width, width) + 10 * width + 10
    assert sum(p.numel() for p in networks.build(f"c4gap:width={width}").parameters()) == expected


def test_cnn_gap_has_the_papers_layers():
    """Figure 2: 64-64-128-128 filters of 3x3, a global average, dense layers of 256, 256 and 10."""
    sizes = [(m.in_channels, m.out_channels, m.kernel_size) if isinstance(m, nn.Conv2d)
             else (m.in_features, m.out_features) if isinstance(m, nn.Linear) else type(m)
             for m in networks.build("cnn_gap") if not isinstance(m, nn.Flatten)]  # fmt: skip
    filters = [(a, b, (3, 3)) for a, b in ((3, 64), (64, 64), (64, 128), (128, 128))]
    behind = [entry for size in filters for entry in (size, nn.ReLU)]
    dense = [(128, 256), nn.ReLU, (256, 256), nn.ReLU, (256, 10)]
    assert sizes == [*behind, nn.AdaptiveAvgPool2d, *dense]


def test_vgg16_has_sixteen_layers_of_weights_and_averages_for_pools():
    model = networks.build("vgg16")
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    weights = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [m.out_channels for m in weights[:13]] == widths and len(weights) == 16
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())
    expected = sum(conv(a, b) for a, b in zip([3, *widths], widths)) + 2 * (512 * 513) + 10 * 513
    expected += 2 * (sum(widths) + 2 * 512)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", GATES)
def test_layers_of_gates(name):
    model = networks.build(f"{name}:width=4").eval()
    assert len(iw.gates.gate_patterns(model, torch.randn(1, 3, 16, 16))) == GATES[name]


@pytest.mark.parametrize("kind", ["dgn", "dlgn", "dlgn_sf"])
@pytest.mark.parametrize("name", GATES)
def test_every_network_converts_and_trains(name, kind):
    """A step of training through soft gates: every weight of both networks gets a gradient."""
    model, x = networks.build(f"{name}:width=4"), torch.randn(4, 3, 16, 16)
    again = lambda copy: copy.load_state_dict(networks.build(f"{name}:width=4").state_dict())
    extra = (x[:1],) if kind == "dlgn_sf" else ()
    network = getattr(iw.gates, kind)(model, *extra, initialise=again).train()
    out = network(x)
    assert out.shape == (4, 10) and out.isfinite().all()
    nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 3])).backward()
    last = {n for n, _ in network.gating.named_parameters() if n.startswith("network.linear.")}  # feeds no gate
    last |= {n for n, _ in network.gating.named_parameters() if n.startswith("network.members") and ".linear." in n}
    missing = [n for n, p in network.gating.named_parameters() if p.grad is None and n not in last]
    assert not missing and all(p.grad is not None for p in network.value.parameters())


@pytest.mark.parametrize("base", ["vgg16", "resnet110"])
def test_linear_gating_networks_of_the_paper_are_affine_in_evaluation_mode(base):
    network = networks.build(f"dlgn:base={base},width=2").train()
    with torch.no_grad():
        for _ in range(2):
            network(torch.randn(8, 3, 16, 16))
    network = network.double().eval()
    x, y = torch.randn(2, 2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        parts = zip(*(network.pre_activations(z) for z in (x + y, x, y, torch.zeros_like(x))))
        for both, a, b, zero in parts:
            torch.testing.assert_close(both, a + b - zero, rtol=1e-8, atol=1e-8)


def test_full_size_vgg16_with_shallow_features():
    network = networks.build("dlgn_sf:base=vgg16,input=ones").eval()
    with torch.no_grad():
        gates = network.gates(torch.randn(1, 3, 32, 32))
        assert network(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    assert len(gates) == 15
    assert gates[0].shape == (1, 64, 32, 32) and gates[12].shape == (1, 512, 2, 2) and gates[14].shape == (1, 512)
    assert all(isinstance(norm, nn.modules.batchnorm._BatchNorm) for norm in network.gating.norms)


def test_gated_networks_take_the_bases_initialisation():
    """ResNets start from He's normal rule, which no module's own reset would give."""
    network = networks.build("dgn:base=resnet20")
    weight = network.value.layer1[0].conv1.weight
    assert float(weight.detach().std()) == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.05)
    assert not torch.equal(weight, network.gating.network.layer1[0].conv1.weight)


def test_an_ensemble_is_the_mean_of_its_members():
    model = networks.build("c1gap_ensemble:members=3,width=4").double().eval()
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(model(x), torch.stack([m(x) for m in model.members]).mean(0))
    kernels = [iw.gates.neural_path_kernel(m, x) for m in model.members]
    torch.testing.assert_close(iw.gates.neural_path_kernel(model, x), sum(kernels) / 9)
    with pytest.raises(ValueError, match=r"members must be at least one network\. Got none"):
        networks.Ensemble([])


@pytest.mark.parametrize("kind", ["dgn", "dlgn", "dlgn_sf"])
def test_gated_networks_train_by_name_and_load_from_their_card(kind, tmp_path):
    recipe = training.RECIPES["digits"].but(epochs=1)
    spec = f"{kind}:base=c4gap,width=4,input=ones,permutation=1-0-3-2"
    run = training.train(spec, "digits", recipe, out=tmp_path / "a.safetensors", progress=False)
    loaded = training.load_checkpoint(tmp_path / "a.safetensors")
    assert loaded.permutation == (1, 0, 3, 2) and loaded.input == "ones"
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded.eval()(x), run.model(x))


@pytest.mark.parametrize(
    ("base", "shape"), [("mlp:widths=6-5", (1, 8, 8)), ("myrtle_cnn:width=4,bn=false", (3, 32, 32))]
)
def test_any_built_in_network_has_gated_counterparts(base, shape):
    spec = networks.gated_spec("dgn", base, regime="fixed_random")
    fitted = networks.fit_to(spec, shape, 7)
    network = networks.build(fitted)
    assert network(torch.randn(2, *shape)).shape == (2, 7)
    assert network.frozen and network.gate == "hard" and networks.input_shape(fitted) == shape
    assert network.value.state_dict().keys() == networks.build(networks.fit_to(base, shape, 7)).state_dict().keys()


def test_wrong_bases_and_permutations_are_named():
    with pytest.raises(ValueError, match=r"base must be one of .* Got 'dgn'"):
        networks.build("dlgn:base=dgn")
    with pytest.raises(ValueError, match="argument of mlp must be one of"):
        networks.build("dlgn:base=mlp/depth=3")
    with pytest.raises(ValueError, match="regime must be standalone for a dlgn"):
        networks.build("dlgn:regime=fixed_random")
    with pytest.raises(ValueError, match=r"base must be one of mlp, .*vgg16.* Got 'vgg19'"):
        networks.build("dgn:base=vgg19")
    with pytest.raises(ValueError, match="permutation must hold each layer's number once"):
        networks.build("dgn:permutation=0-0-1-2")
