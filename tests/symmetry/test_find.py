"""Finding symmetries over a zoo of architectures: counts, exactness, and that every axis is explained."""

import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import zoo
from made import Made
from torch import nn
from zoo import found

from intertwine.programs import capture
from intertwine.symmetry import Fixed, Leaf, Symmetry, symmetries
from intertwine.symmetry.find import symmetries_of
from intertwine.symmetry.spaces import leaves
from intertwine.testing import function_error

# at least: permutable spaces, scale and sign generators, spaces with linear maps. Padded segments are one space,
# so ResNet20 A has 12 spaces with the dimension that 14 would have.
AT_LEAST = {
    "mlp": (2, 2, 0, 0), "mlp_bn": (2, 4, 2, 0), "mlp_gelu_ln": (2, 0, 0, 0), "vgg_bn": (3, 5, 2, 0),
    "resnet20_a": (12, 40, 28, 0), "resnet14_b": (9, 24, 15, 0), "densenet": (4, 14, 4, 0), "mobilenet": (2, 4, 1, 0),
    "mobilenet_grouped": (3, 8, 2, 0), "shufflenet_2": (3, 11, 3, 0), "shufflenet_3": (1, 1, 0, 0),
    "groupnorm_cnn": (3, 3, 0, 0), "vit_module": (5, 7, 7, 2), "vit_sdpa": (5, 7, 7, 2), "gpt_tied": (9, 12, 12, 4),
    "gpt_packed": (9, 12, 12, 4), "gpt_rms": (5, 7, 8, 2), "gpt_rms_plain": (9, 0, 0, 5), "lstm": (1, 0, 0, 0),
    "lstm_deep": (4, 0, 4, 0), "gru": (1, 0, 1, 0), "convnext": (2, 3, 3, 0), "llama": (5, 8, 9, 2),
    "mlp_identity": (2, 2, 2, 2), "mlp_tanh": (2, 0, 2, 0), "mlp_powers": (3, 2, 3, 0), "unet": (4, 4, 1, 1),
    "resnext": (4, 10, 5, 0), "senet": (2, 3, 1, 0), "weight_norm": (2, 3, 2, 0), "weight_norm_by_hand": (1, 2, 1, 0),
    "bilinear": (3, 3, 3, 3), "tied_autoencoder": (1, 0, 0, 0), "pixel_shuffle": (2, 2, 0, 0),
    "channel_split": (1, 1, 0, 0),
    "cct": (5, 7, 7, 2), "myrtle": (4, 8, 4, 0), "resnet18": (12, 32, 20, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_LEAST)
def test_counts(name):
    spaces = found(name)[2].spaces
    counts = (
        sum(s.group.permutes for s in spaces), sum(s.group.scales for s in spaces), sum(s.group.signs for s in spaces),
        sum(s.group.mixes for s in spaces),
    )  # fmt: skip
    assert all(have >= want for have, want in zip(counts, AT_LEAST[name])), counts


@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_axis_is_moved_or_fixed_with_a_reason(name):
    model, _, sym = found(name)
    names = {s.name for s in sym.spaces}
    assert set(dict(model.named_parameters())) <= set(sym.layouts)
    for parameter, layout in sym.layouts.items():
        shape = model.state_dict()[parameter].shape
        assert len(layout.axes) == len(shape)
        for i, axis in enumerate(layout.axes):
            for _, leaf in leaves(axis):
                assert leaf.space in names if isinstance(leaf, Leaf) else leaf.reason
            assert f"(size {shape[i]})" in sym.explain(parameter, i)


def test_padded_ends_are_one_space():
    sym = found("resnet20_a")[2]
    assert {16, 32} <= {s.size for s in sym.spaces}
    parts = sym.layouts["layers.3.conv2.weight"].axes[0].parts
    assert sorted(part.ranges for part in parts) == [((0, 8), (24, 32)), ((8, 24),)]


def test_meta_models_need_no_weights():
    with torch.device("meta"):
        model = zoo.Decoder(zoo.RMS, lambda: zoo.Gated(2048, 8192), False, 6, 2048, 50000, False, kv=2, rotary=False)
    sym = symmetries(model, torch.zeros(2, 16, dtype=torch.long, device="meta"))
    assert len(sym.spaces) == 1 + 6 * 5 and sum(p.numel() for p in model.parameters()) > 4e8


def test_save_and_load(tmp_path):
    sym = found("resnet20_a")[2]
    again = Symmetry.load(sym.save(tmp_path / "sym.json"))
    assert again == sym and again.dim == sym.dim and len(again.to_frame()) == len(sym.spaces)


def test_explain_says_who_moves_what():
    sym = found("mlp")[2]
    assert sym.explain("0.weight", 0).startswith("0.weight[0] (size 8): moved by 0.weight[0]: S₈ ⋉ R₊⁸")
    assert "relu in 1" in sym.explain("0.weight", 0)
    assert sym.explain("4.bias", -1) == "4.bias[0] (size 3): fixed, output"
    assert "2 spaces" in sym.summary() and "0.weight[0]" in sym.summary()
    with pytest.raises(ValueError, match="parameter must name a tensor of real numbers"):
        sym.explain("nothing", 0)
    with pytest.raises(ValueError, match="axis must be below"):
        sym.explain("0.weight", 2)
    with pytest.raises(ValueError, match=r"Got '0.wieght'. Did you mean '0.weight'\?"):
        sym.explain("0.wieght", 0)
    with pytest.raises(ValueError, match=r"one of the 2 spaces: .* Got '0.weight'. Did you mean '0.weight\[0\]'"):
        sym.space("0.weight")


def test_dimension_counts_overlaps_once():
    assert found("mlp")[2].dim == 8 + 7
    assert found("mlp_identity")[2].dim == 25 + 16  # the scales lie inside GL
    heads = found("vit_module")[2]
    per_head = [s for s in heads.spaces if s.group.is_general]
    # two GL(4) for each of four heads, in which the scales of heads lie; three gains that pass scales
    assert len(per_head) == 2 and heads.dim == 2 * 4 * 16 + 3 * 16


def sandwich(function):
    """A function between two linear maps."""
    return Made(lambda m, x: m.b(function(m.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


POISON = {
    "sort": lambda h: F.relu(h).sort(-1)[0],
    "cumsum": lambda h: F.relu(h).cumsum(-1),
    "item of a unit": lambda h: F.relu(h) * h[0, 1].item(),
    "list": lambda h: F.relu(h) * h[0].tolist()[2],
    "slice written": lambda h: F.relu(h).index_copy(1, torch.tensor([0]), h[:, 1:2]),
    "looked up": lambda h: F.relu(h)[:, torch.tensor([0, 0, 1, 2, 3, 4])],
}


@pytest.mark.parametrize("how", POISON)
def test_what_depends_on_order_moves_nothing(how):
    model, x = sandwich(POISON[how]).double(), torch.randn(5, 4).double()
    sym = symmetries(model, x)
    assert not sym.spaces and sym.dim == 0 and sym.log_size == 0


def test_constants_that_differ_hold_units_in_place_but_let_scales_pass():
    sym = symmetries(sandwich(lambda h: F.relu(h) * torch.arange(1.0, 7.0)), torch.randn(5, 4))
    assert [(s.group.permutes, s.group.scales) for s in sym.spaces] == [(False, 1)]
    assert "1 space, dimension 6" in sym.summary()
    assert "a constant that differs" in sym.explain("a.weight", 0)


def test_an_unknown_operation_is_listed():
    sym = symmetries(sandwich(lambda h: torch.linalg.qr(h).Q), torch.randn(9, 4))
    assert any("qr" in op for op in sym.unknown_ops) and not sym.spaces
    assert "operation without a rule" in sym.explain("a.weight", 0) and "without a rule" in sym.summary()


@pytest.mark.parametrize("taken", [lambda y: y.gather(0, torch.tensor(0)), lambda y: y.unfold(0, 1, 1)])
def test_what_is_taken_along_an_axis_of_a_number_has_no_rule(taken):
    sym = symmetries(sandwich(lambda h: F.relu(h) * taken(h.sum())), torch.randn(5, 4))
    assert sym.unknown_ops and [(s.group.permutes, s.group.scales) for s in sym.spaces] == [(True, 0)]


def test_reading_a_number_certifies_the_path_only():
    sym = symmetries(sandwich(lambda h: F.relu(h) * (2 if float(F.relu(h).sum()) > 0 else 3)), torch.randn(5, 4))
    assert sym.path_only and any("test_find.py" in note for note in sym.notes)
    assert [(s.group.permutes, s.group.scales) for s in sym.spaces] == [(True, 0)]


def test_a_batch_of_one_is_said():
    sym = symmetries(sandwich(F.relu), torch.randn(1, 4))
    assert any("size one" in note for note in sym.notes) and len(sym.spaces) == 1


def test_unused_parameters_are_fixed():
    model = sandwich(F.relu)
    model.spare = nn.Linear(6, 6)
    sym = symmetries(model, torch.randn(5, 4))
    assert "not used" in sym.explain("spare.weight", 0)


def test_thresholds_beyond_the_range_of_measurement_are_not_believed():
    for function in (lambda h: h.clamp(-1e8, 1e9), lambda h: h.clamp_min(1e-12), lambda h: F.threshold(h, 1e-9, 0.0)):
        (space,) = symmetries(sandwich(function), torch.randn(5, 4)).spaces
        assert (space.group.scales, space.group.signs, space.group.mixes) == (0, 0, False)


def test_fixed_leaves_say_why():
    sym = symmetries(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.zeros(2, 3, 5, 5))
    reasons = {leaf.reason for _, leaf in leaves(sym.layouts["0.weight"].axes[2]) if isinstance(leaf, Fixed)}
    assert reasons == {"convolution kernel"}


def test_repeated_weights_against_products_of_units():
    def run(m, x):
        h = F.relu(m.a(x))
        return F.linear((h[:, :, None] * h[:, None]).flatten(1), m.b.weight.flatten().repeat(6).view(3, 36))

    model, x = Made(run, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double(), torch.randn(4, 4).double()
    sym = symmetries(model, x)
    assert function_error(model, sym.act(sym.random(0), model), x) < 1e-12


def cropped():
    """Cuts an axis that carries no parameter: its ends lie side by side wherever they are."""
    return Made(
        lambda m, x: m.net(F.pad(x, (0, 0, -2, -3))), net=nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    )


def test_pieces_of_an_axis_without_parameters():
    assert [s.name for s in symmetries(cropped(), torch.zeros(2, 9, 4)).spaces] == ["net.0.weight[0]"]


def test_a_result_that_no_operation_made_holds_everything():
    program = capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.zeros(2, 4),))
    lost = replace(program, calls=tuple(c for c in program.calls if c.op != "aten::relu"))
    found = symmetries_of(lost)
    assert not found.spaces and found.unknown_ops


def test_rrelu_in_evaluation_is_a_leaky_relu():
    model, x = nn.Sequential(nn.Linear(4, 6), nn.RReLU(), nn.Linear(6, 2)).double(), torch.randn(3, 4).double()
    sym = symmetries(model, x)
    assert [(s.size, s.group.scales, s.group.signs) for s in sym.spaces] == [(6, 1, 0)] and sym.verify(model, x).passed


def patches(count):
    """One embedding for many patches, their concatenation normalised."""
    return Made(
        lambda m, x: m.head(m.norm(torch.cat([m.embed(x[:, i]) for i in range(x.shape[1])], -1))),
        embed=nn.Linear(5, 4), norm=nn.LayerNorm(4 * count), head=nn.Linear(4 * count, 2),
    )  # fmt: skip


def test_a_concatenation_of_many_parts_takes_time_in_proportion():
    def seconds(count):
        program = capture(patches(count), (torch.zeros(2, count, 5),))
        start = time.process_time()
        assert [s.size for s in symmetries_of(program).spaces] == [4]
        return time.process_time() - start

    few, many = (min(seconds(count) for _ in range(3)) for count in (32, 128))
    assert many < 10 * few  # 4 times the parts; 16 times would be their square


def test_the_summary_has_whole_names():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu"), 12)
    wrapped = nn.Sequential(nn.Sequential(nn.Sequential(encoder)))
    sym = symmetries(wrapped, torch.zeros(2, 3, 16))
    lines = sym.summary().splitlines()
    assert max(map(len, lines)) <= 140 and all(space.name in sym.summary() for space in sym.spaces)
    assert len([line for line in lines if "GL₈ each" in line]) == 24 and "(12 spaces)" in sym.summary()
