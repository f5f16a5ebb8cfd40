"""Parameter counts, layer names, taps, and the line of text that builds a network."""

import pytest
import torch
from torch import nn

from intertwine.lab import networks


def count(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("myrtle_cnn", 1_558_026),
        ("myrtle_cnn:bn=false", 1_555_200),
        ("myrtle_cnn:width=512", 7_102_986),
        ("resnet20", 269_722),
        ("resnet18", 11_173_962),
        ("cct_6_3x1", 3_168_267),
        # He et al. 2016, table 6, print these rounded: 0.46 M, 0.66 M, 0.85 M, 1.7 M
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
    ],
)
def test_parameter_counts_are_the_papers(spec, parameters):
    assert count(networks.build(spec)) == parameters


def test_option_b_adds_exactly_two_projections():
    projections = (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert count(networks.build("resnet20:option=B")) == 269_722 + projections


def test_without_batch_norm_only_the_first_convolution_has_a_bias():
    model = networks.build("myrtle_cnn:bn=false")
    assert [name for name, _ in model.named_parameters() if name.endswith("bias")] == ["conv1.bias"]


@pytest.mark.parametrize(("index", "parameters"), [(0, 4_672), (3, 13_952), (4, 18_560), (6, 55_552), (8, 73_984)])
def test_resnet20_blocks_have_the_papers_counts(index, parameters):
    model = networks.build("resnet20")
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3) for block in stage]
    assert count(blocks[index]) == parameters


@pytest.mark.parametrize("network", networks.NETWORKS.values(), ids=lambda n: n.name)
def test_every_network_runs_at_its_shape_and_says_its_size(network):
    model = networks.build(network.name).eval()
    assert network.parameters == count(model)
    assert network.source
    with torch.no_grad():
        assert model(torch.randn(2, *network.input_shape)).shape == (2, network.arguments["classes"])


@pytest.mark.parametrize("name", [n.name for n in networks.NETWORKS.values() if "leaky_slope" in n.arguments])
def test_every_rectifier_is_its_own_module_with_the_slope(name):
    model = networks.build(f"{name}:leaky_slope=0.1")
    slopes = [m.negative_slope for m in model.modules() if isinstance(m, nn.LeakyReLU)]
    plain = [m for m in networks.build(name).modules() if isinstance(m, nn.ReLU)]
    assert slopes == [0.1] * len(plain)
    assert len(plain) >= 2
    assert not any(m.inplace for m in plain)


def test_each_rectifier_runs_once_for_each_forward_pass():
    model = networks.build("resnet20").eval()
    calls = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda m, *_: calls.append(m))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    assert len(calls) == len(set(calls)) == 19


def test_option_a_shortcut_is_subsampling_and_zero_channels():
    x = torch.randn(2, 4, 6, 6)
    y = networks.resnets.PaddingShortcut(extra=4, stride=2)(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, :2].any()
    assert not y[:, 6:].any()


def test_block_is_the_formula():
    block = networks.build("resnet20").double().eval().layer2[0]
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    inside = block.bn1(block.conv1(x)).clamp(min=0)
    expected = (block.bn2(block.conv2(inside)) + block.shortcut(x)).clamp(min=0)
    torch.testing.assert_close(block(x), expected)


def test_cct_positions_are_sinusoids_and_not_trained():
    model = networks.build("cct_6_3x1:blocks=1,width=8,size=8")
    positions = model.positions[0].double()
    for t in range(16):
        for i in range(4):
            angle = torch.tensor(t / 10000 ** (2 * i / 8), dtype=torch.float64)
            torch.testing.assert_close(positions[t, 2 * i], angle.sin(), atol=1e-6, rtol=0)
            torch.testing.assert_close(positions[t, 2 * i + 1], angle.cos(), atol=1e-6, rtol=0)
    assert "positions" not in model.state_dict()


def test_cct_attention_is_softmax_attention():
    attention = networks.transformers.SelfAttention(width=8, heads=2, dropout=0.5).double().eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    q, k, v = attention.qkv(x).chunk(3, dim=-1)
    heads = []
    for h in range(2):
        part = slice(4 * h, 4 * h + 4)
        weights = (q[..., part] @ k[..., part].transpose(1, 2) / 2).softmax(dim=-1)
        heads.append(weights @ v[..., part])
    torch.testing.assert_close(attention(x), attention.proj(torch.cat(heads, dim=-1)))


def test_cct_is_the_formula():
    """Tokens of convolution and pooling, the second norm on the stream, a learned mean of the tokens."""
    model = networks.build("cct_6_3x1:blocks=1,width=8,size=8").double().eval()
    block, x = model.blocks[0], torch.randn(2, 3, 8, 8, dtype=torch.float64)
    pooled = nn.functional.max_pool2d(model.conv(x).clamp(min=0), 3, stride=2, padding=1)
    stream = pooled.flatten(2).mT + model.positions
    stream = block.norm2(stream + block.attn(block.norm1(stream)))
    stream = model.norm(stream + block.linear2(nn.functional.gelu(block.linear1(stream))))
    weights = (stream @ model.attention_pool.weight.T).softmax(dim=1)
    torch.testing.assert_close(model(x), model.linear((weights.mT @ stream)[:, 0]))


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean():
    layer = networks.transformers.StochasticDepth(0.25)
    y = layer(torch.ones(20_000, 3, dtype=torch.float64))
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    assert (y[:, :1] == y).all()
    assert abs(float(y.mean()) - 1) < 0.02
    assert torch.equal(layer.eval()(torch.ones(4, 3)), torch.ones(4, 3))


# --- the papers' layer numbers -------------------------------------------------------------------


def test_paper_taps():
    assert networks.paper_taps(networks.build("myrtle_cnn")) == {3: "relu1", 6: "relu2", 10: "relu3", 14: "relu4"}
    assert list(networks.paper_taps(networks.build("myrtle_cnn:bn=false"))) == [2, 4, 7, 10]
    resnet20 = networks.paper_taps(networks.build("resnet20"))
    assert (resnet20[72], resnet20[75]) == ("layer3.2.relu1", "layer3.2.relu2")
    resnet18 = networks.paper_taps(networks.build("resnet18"))
    assert (resnet18[70], resnet18[73]) == ("layer4.1.relu1", "layer4.1.relu2")


@pytest.mark.parametrize("name", ["myrtle_cnn", "resnet20", "resnet56", "resnet18"])
def test_paper_taps_name_every_rectifier_in_order(name):
    model = networks.build(name)
    assert list(networks.paper_taps(model).values()) == [
        n for n, module in model.named_modules() if isinstance(module, nn.ReLU)
    ]


def test_paper_taps_refuse_other_models():
    with pytest.raises(TypeError, match="Got CompactTransformer"):
        networks.paper_taps(networks.build("cct_6_3x1"))


# --- from a line of text -------------------------------------------------------------------------


def test_parse_reads_types():
    assert networks.parse("mlp:widths=8-4-2,bn=true,leaky_slope=1e-2") == (
        "mlp",
        {"widths": (8, 4, 2), "bn": True, "leaky_slope": 0.01},
    )
    assert networks.parse("myrtle_cnn:width=none") == ("myrtle_cnn", {"width": None})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet21", r"network must be one of mlp, .*resnet20.* Got 'resnet21'"),
        ("resnet20:wdith=3", r"argument of resnet20 must be one of classes=10, .*option=A.* Got 'wdith'"),
        ("resnet20:depth=32", r"Got 'depth'"),
        ("resnet20:width", r"must be written name=value. Got 'width'"),
        ("resnet20:width=wide", r"width must be a whole number. Got 'wide'"),
        ("resnet20:leaky_slope=x", r"leaky_slope must be a number. Got 'x'"),
        ("resnet20:option=C", r"option must be one of A, B. Got 'C'"),
        ("myrtle_cnn:bn=yes", r"bn must be true or false. Got 'yes'"),
        ("mlp:widths=8x8", r"widths must be whole numbers joined by '-'. Got '8x8'"),
        ("mlp:bn=true,bn=false", r"bn must be given once"),
        ("resnet20:width=0", r"width must be at least 1. Got 0"),
        ("mlp:widths=8-0", r"widths must be at least 1. Got 8-0"),
    ],
)
def test_build_says_what_is_wrong(spec, message):
    with pytest.raises(ValueError, match=message):
        networks.build(spec)


def test_build_takes_typed_arguments_once():
    assert networks.build("resnet20", classes=7).linear.out_features == 7
    with pytest.raises(ValueError, match="classes must be given once"):
        networks.build("resnet20:classes=7", classes=7)


def test_depth_and_width_are_checked():
    with pytest.raises(ValueError, match=r"depth must be 6k \+ 2.*Got 21"):
        networks.cifar_resnet(21)
    with pytest.raises(ValueError, match=r"width must be even and a multiple of heads \(4\)\. Got 10"):
        networks.build("cct_6_3x1:width=10")


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_fit_to_builds_a_network_for_the_data(name):
    spec = networks.fit_to(name, (1, 32, 32), 7)
    with torch.no_grad():
        assert networks.build(spec).eval()(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert networks.fit_to(spec, (1, 32, 32), 7) == spec


def test_same_seed_same_weights():
    def weights():
        torch.manual_seed(3)
        return networks.build("resnet20:width=4").state_dict()

    assert all(torch.equal(a, b) for a, b in zip(weights().values(), weights().values()))
