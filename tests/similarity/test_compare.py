"""compare() gives what the measures give on collected features, whatever way it takes."""

import copy
import json

import pytest
import torch
import transformers_zoo as zoo
from made import Function, Made
from rewritten_networks import PAIRS
from torch import nn

import intertwine as iw
from intertwine.features import Reading, collect
from intertwine.similarity import DEFAULT, Comparison, Resampling, measure
from intertwine.similarity.comparison.layers import common_space, pool
from intertwine.similarity.inference import Draws, calibrate, p_value

MEASURES = (
    *DEFAULT,
    *("permutation_procrustes", "trivial_procrustes_centered", "size_and_shape_procrustes", "linear_cka_biased"),
    *("channel_normalized_cka", "svcca", "linear_regression", "r2_cca", "soft_matching", "distance_correlation"),
    *("rsa", "mutual_knn", "cknna"),
)


def net(widths=(5, 7), seed=0, stride=2):
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(2, widths[0], 3, padding=1), nn.ReLU(), nn.Conv2d(widths[0], widths[1], 3, stride=stride, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[1], 4), nn.ReLU(),
    ]  # fmt: skip
    nn.init.constant_(layers[6].bias, 0.5)  # no dead units unless a test makes them
    return nn.Sequential(*layers)


def images(n=40, seed=1):
    return torch.randn(n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def pooled(x, y):
    space = common_space(tuple(x.shape[2:]), tuple(y.shape[2:]))
    return pool(x, space), pool(y, space)


def needs_space(name):
    return any(word in name for word in ("procrustes", "cca", "regression", "soft"))


def expected(m, features_a, features_b):
    out = torch.empty(len(features_a), len(features_b), dtype=torch.float64)
    for i, x in enumerate(features_a.values()):
        for j, y in enumerate(features_b.values()):
            out[i, j] = m(*pooled(x, y)) if needs_space(m.name) else m.score(m.prepare(x), m.prepare(y))
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", MEASURES)
def test_scores_are_the_measures_own(name, dtype, tolerance):
    a, b, x = net().to(dtype), net((6, 4), seed=3).to(dtype), images().to(dtype)
    result = iw.compare(a, b, x.split(13), measures=name, resampling=None)
    direct = expected(measure(name), collect(a, [x]), collect(b, [x]))
    torch.testing.assert_close(result.scores[name], direct, atol=tolerance, rtol=0)
    assert result.chance[name] is None
    assert result.low[name] is None


def jackknifed(name):
    return "procrustes" in name or (name.endswith("cka") and "biased" not in name)


@pytest.mark.parametrize(
    ("name", "n"), [*((name, 24) for name in MEASURES), ("g_relu_procrustes", 19), (DEFAULT[0], 23)]
)
def test_chance_and_halves_are_the_measures_own(name, n):
    a, b, x = net().double(), net((6, 4), seed=3).double(), images(n).double()
    result = iw.compare(a, b, [x], layers=["1", "7"], measures=name, resampling=Resampling(null=5, bootstrap=4, seed=9))
    draws, m = Draws.make(n, null=5, bootstrap=4, seed=9), measure(name)
    fa, fb = collect(a, [x], ["1", "7"]), collect(b, [x], ["1", "7"])
    for at, (p, q) in {(0, 0): ("1", "1"), (1, 1): ("7", "7"), (0, 1): ("1", "7")}.items():
        u, v = pooled(fa[p], fb[q]) if needs_space(name) else (fa[p], fb[q])
        side_a, side_b = m.prepare(u), m.prepare(v)
        null = double([m.score(side_a, side_b.take(order)) for order in draws.permutations])
        halves = double([m.score(side_a.take(h), side_b.take(h)) for h in draws.subsamples])
        score = m.score(side_a, side_b)
        assert float(result.chance[name][at]) == pytest.approx(float(null.mean()), abs=1e-8)
        assert float(result.null_p[name][at]) == p_value(score, null)
        assert float(result.calibrated[name][at]) == pytest.approx(calibrate(score, null), abs=1e-8)
        if not m.has_limit:
            assert result.low[name] is None and result.high[name] is None
            continue
        low, high = iw.similarity.inference.interval(m, score, halves, n, 0.95, len(draws.folds))
        if jackknifed(name):
            assert float(result.low[name][at]) <= score <= float(result.high[name][at])
            continue
        assert float(result.low[name][at]) == pytest.approx(low, abs=1e-6)
        assert float(result.high[name][at]) == pytest.approx(high, abs=1e-6)


def affine(scale, shift):
    return Made(lambda m, x: m.scale * x + m.shift, scale=scale, shift=shift)


@pytest.mark.parametrize(("scale", "shift"), [(1, 1000), (1e20, 0), (1e-20, 0)])
@pytest.mark.parametrize("name", [*DEFAULT, "orthogonal_procrustes", "g_relu_procrustes"])
def test_large_means_and_any_size_keep_chance_and_intervals(name, scale, shift):
    """In float32: products of large means would eat the digits of the shuffled scores, and 1e20 squared overflows."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(10, width), affine(scale, shift)) for width in (12, 9)]
    x, m = torch.randn(200, 10), measure(name)
    result = iw.compare(*nets, [x], layers=["1"], measures=name, resampling=Resampling(null=3, bootstrap=3, seed=1))
    draws, (a, b) = Draws.make(200, 3, 3, 1), (m.prepare(f(x).double().detach()) for f in nets)
    null = double([m.score(a, b.take(order)) for order in draws.permutations])
    for found, expected in ((result.scores, m.score(a, b)), (result.chance, float(null.mean()))):
        assert float(found[name]) == pytest.approx(expected, abs=2e-5)
    plain = iw.compare(*(f.double() for f in nets), [x.double()], layers=["1"], measures=name,
                       resampling=Resampling(null=3, bootstrap=3, seed=1))  # fmt: skip
    ends = [(float(one.low[name]), float(one.high[name])) for one in (result, plain)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-3)


def test_halves_hold_no_example_twice():
    draws = Draws.make(50, null=2, bootstrap=30, seed=0)
    assert sorted(torch.cat(draws.folds).tolist()) == list(range(50))
    for half in draws.subsamples:
        assert half.unique().numel() == half.numel() == pytest.approx(25, abs=5)
    assert all(sorted(p.tolist()) == list(range(50)) for p in draws.permutations)
    assert len(Draws.make(7, 1, 5, 0).halves) == 0


def test_a_network_with_itself_scores_one_on_the_diagonal():
    a = net()
    result = iw.compare(a, a, [images(60)], resampling=Resampling(null=20, bootstrap=10))
    for name in result.measures:
        torch.testing.assert_close(
            result.scores[name].diagonal(), torch.ones(3, dtype=torch.float64), atol=2e-6, rtol=0
        )
        assert (result.null_p[name].diagonal() == 1 / 21).all()
        assert (result.calibrated[name].diagonal() > 0.999).all()
        assert (result.low[name] <= result.high[name]).all()


def test_a_relabelled_network_scores_one_under_g_relu():
    a, b = net(), net()
    order, scale = torch.randperm(5), torch.rand(5) + 0.5
    with torch.no_grad():
        b[0].weight.copy_(a[0].weight[order] * scale.view(-1, 1, 1, 1))
        b[0].bias.copy_(a[0].bias[order] * scale)
    scores = iw.compare(a, b, [images()], layers=["1"], resampling=None).scores
    assert float(scores["g_relu_procrustes_centered"]) == pytest.approx(1, abs=1e-6)
    assert float(scores["g_relu_cka"]) == pytest.approx(1, abs=1e-5)
    assert float(scores["orthogonal_procrustes_centered"]) < 0.999


def test_unrelated_networks_are_at_chance_under_unbiased_cka():
    shuffle = Function(lambda x: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(5))])
    a, b = nn.Sequential(nn.Flatten(), nn.ReLU()), nn.Sequential(nn.Flatten(), shuffle, nn.ReLU())
    result = iw.compare(a, b, [images(200)], layers=["1"], layers_b=["2"], measures=["linear_cka", "linear_cka_biased"])
    assert abs(float(result.scores["linear_cka"])) < 0.05
    assert float(result.scores["linear_cka_biased"]) > 0.2
    assert float(result.null_p["linear_cka"]) > 0.05
    assert float(result.calibrated["linear_cka_biased"]) < 0.05


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    runs = [iw.compare(net(), net(seed=2), images().split(16), resampling=Resampling(seed=seed)) for seed in (3, 3, 4)]
    for name in DEFAULT:
        assert torch.equal(runs[0].chance[name], runs[1].chance[name])
        assert torch.equal(runs[0].low[name], runs[1].low[name])
        torch.testing.assert_close(runs[0].scores[name], runs[2].scores[name], atol=1e-6, rtol=0)
        assert not torch.equal(runs[0].chance[name], runs[2].chance[name])


def test_batch_sizes_do_not_matter():
    x = images(30)
    whole, parts = (
        iw.compare(net(), net(seed=2), batches, resampling=Resampling(null=3, bootstrap=3))
        for batches in ([x], x.split(7))
    )
    for name in DEFAULT:
        torch.testing.assert_close(whole.scores[name], parts.scores[name], atol=1e-5, rtol=0)


def test_little_memory_gives_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    x, layers = images(60), ["0", "1", "2", "3", "6", "7"]
    roomy, tight = (
        iw.compare(net(), net(seed=2), x.split(16), layers, resampling=Resampling(null=3, bootstrap=3), reading=reading)
        for reading in (Reading(), Reading(memory=700_000))
    )
    assert any("temporary files" in note for note in tight.notes)
    assert not any("temporary files" in note for note in roomy.notes)
    for name in DEFAULT:
        torch.testing.assert_close(roomy.scores[name], tight.scores[name], atol=1e-6, rtol=0)
        torch.testing.assert_close(roomy.chance[name], tight.chance[name], atol=1e-6, rtol=0)
        torch.testing.assert_close(roomy.low[name], tight.low[name], atol=1e-6, rtol=0)
    assert list(tmp_path.iterdir()) == []


def test_resolutions_and_vectors_are_explained():
    result = iw.compare(net(), net(seed=1), [images()], resampling=None)
    (note,) = result.notes
    assert "4x4 with 8x8 at 4x4" in note
    assert "8x8 with no map by mean" in note
    assert result.shapes_a == ((5, 8, 8), (7, 4, 4), (4,))


def test_tokens_and_images_meet_position_by_position():
    assert common_space((64,), (8, 8)) == (64,)
    x = torch.arange(24.0).view(1, 2, 3, 4)
    assert torch.equal(pool(x, (12,)), x.flatten(2))
    assert torch.equal(pool(x, ()), x.mean((2, 3)))
    assert common_space((7,), (5,)) == (5,)
    assert common_space((7,), (5, 5)) == ()
    assert common_space((2, 2, 2, 2), (2, 2, 2, 2)) == (2, 2, 2, 2)
    assert common_space((2, 2, 2, 2), (3, 2, 2, 2)) == ()


def test_tokens_keep_channels_last():
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Linear(6, 9), nn.GELU()), torch.randn(20, 5, 6)
    result = iw.compare(a, a, [x], resampling=None)
    assert (result.channels_a, result.shapes_a) == ((9,), ((9, 5),))
    wrong = iw.compare(a, a, [x], resampling=None, reading=Reading(channel_dim=1))
    assert wrong.channels_a == (5,)
    by_name = iw.compare(a, a, [x], resampling=None, reading=Reading(channel_dim={"1": 1}))
    assert by_name.channels_a == (5,)


def test_dead_layers_and_channels_are_counted_and_explained():
    a = net()
    with torch.no_grad():
        a[0].weight[0] = 0
        a[0].bias[0] = -1
        a[6].weight.zero_()
        a[6].bias.fill_(-1)
    result = iw.compare(a, net(seed=2), [images()], resampling=Resampling(null=2, bootstrap=2))
    assert (result.dead_a, result.dead_b[0]) == ((1, 0, 4), 0)
    for name in DEFAULT:
        assert result.scores[name][2].isnan().all()
        assert result.scores[name][:2].isfinite().all()
        assert any("'7' of A: all channels are zero" in note for note in result.notes)
        assert not torch.isnan(result.chance[name][:2]).any()


def test_the_result_prints_saves_and_becomes_a_table(tmp_path):
    result = iw.compare(net(), net(seed=2), [images()], resampling=Resampling(null=3, bootstrap=3))
    text = str(result)
    assert "3 with 3 layers on 40 examples" in text
    assert "positive monomial" in text
    assert "Note: Procrustes compares feature maps" in text
    frame = result.to_frame()
    assert len(frame) == 4 * 9
    columns = {"measure", "layer_a", "layer_b", "score", "low", "high", "chance", "null_p", "calibrated"}
    assert set(frame.columns) >= columns
    one = frame.query("measure == 'linear_cka' and layer_a == '3' and layer_b == '1'")["score"].item()
    assert one == pytest.approx(float(result.scores["linear_cka"][1, 0]))
    best = result.best("linear_cka")
    assert best["layer_a"].tolist() == ["1", "3", "7"]
    scores, chance = result.scores["linear_cka"], result.chance["linear_cka"]
    at = ((scores - chance) / (1 - chance)).argmax(1)  # by the excess over chance
    assert best["score"].tolist() == scores[torch.arange(3), at].tolist()
    assert json.dumps(result.to_dict())
    again = Comparison.load(result.save(tmp_path / "result.json"))
    assert again.to_dict() == result.to_dict()
    assert result.save(tmp_path / "result.parquet").stat().st_size > 0
    with pytest.raises(ValueError, match=r"measure must be one of \['orth.*Got 'cka'"):
        result.best("cka")


def test_missing_values_survive_saving(tmp_path):
    a = net()
    nn.init.zeros_(a[6].weight)
    nn.init.zeros_(a[6].bias)
    result = iw.compare(a, a, [images()], resampling=None)
    again = Comparison.load(result.save(tmp_path / "r.json"))
    assert again.scores["linear_cka"][2].isnan().all()
    assert result.best("linear_cka")["score"].isna().tolist() == [False, False, True]
    assert str(again) == str(result)


def test_the_networks_are_left_as_they_were():
    a, b = net().train(), net(seed=1).eval()
    iw.compare(a, b, [images()], resampling=None)
    assert all(m.training for m in a.modules())
    assert not any(m.training for m in b.modules())
    assert not any(m._forward_hooks for model in (a, b) for m in model.modules())


def test_a_generator_is_read_once_and_max_examples_stops_it():
    def batches():
        yield from images(40).split(10)
        raise AssertionError("read too far")

    result = iw.compare(net(), net(seed=1), batches(), resampling=None, reading=Reading(max_examples=35))
    assert result.examples == 35


# errors


def run(**options):
    arguments = {"a": net(), "b": net(seed=1), "loader": [images()], "resampling": None} | options
    return iw.compare(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loader": []}, "loader must yield at least one batch"),
        ({"loader": [images(3)]}, r"at least 4 examples\. Got 3"),
        ({"layers": ["rel"]}, "Close names"),
        ({"layers_b": ["conv1"]}, "Got 'conv1'"),
        ({"measures": ["cka"]}, "measure must be one of"),
        ({"measures": []}, "at least one measure"),
        (
            {"reading": Reading(memory="lots")},
            r"memory must be a positive number of bytes or text such as '4 GiB'\. Got 'lots'",
        ),
        (
            {"reading": Reading(memory=10_000)},
            r"memory must hold the working data of two layers.*Got 9\.77 KiB.*needs 400 KiB.*max_examples",
        ),
        ({"reading": Reading(max_examples=3)}, r"max_examples must be at least 4\. Got 3"),
        (
            {"reading": Reading(channel_dim=4)},
            r"channel_dim must be an axis of '1' other than the batch\. Got 4 of 4 axes",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"null": -1}, r"null must be 0 or more\. Got -1"),
        ({"bootstrap": 1}, "one half has no spread"),
        ({"untrained": -1}, r"untrained must be 0 or more\. Got -1"),
        ({"untrained": (nn.ReLU(),)}, r"untrained must be \(a0, b0\).*Got 1\."),
        ({"untrained": (nn.ReLU(), [])}, r"untrained must hold equally many.*Got 1 and 0\."),
    ],
)
def test_what_cannot_be_drawn(options, message):
    with pytest.raises(ValueError, match=message):
        Resampling(**options)


@pytest.mark.parametrize(
    "options", [{"null": "20"}, {"bootstrap": 20.0}, {"seed": "0"}, {"untrained": "2"}, {"null": True}]
)
def test_counts_are_whole_numbers(options):
    name, value = next(iter(options.items()))
    with pytest.raises(TypeError, match=rf"{name} must be a whole number\. Got {value!r}\."):
        Resampling(**options)


def test_resampling_is_a_value_of_its_own():
    with pytest.raises(TypeError, match=r"resampling must be a Resampling.*Got 5\."):
        run(resampling=5)


def test_too_little_memory_is_refused_before_the_long_work():
    seen = []
    a = net()
    a[0].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    with pytest.raises(ValueError, match="memory must hold"):
        run(a=a, loader=[images(50)] * 20, reading=Reading(memory=100_000), exact=True)
    assert sum(seen) <= 8  # two examples to list layers, to record, to count residual streams


@pytest.mark.parametrize("measures", ["orthogonal_procrustes", "rsa", "mutual_knn"])
def test_every_engine_refuses_before_the_networks_run(measures):
    """Wide layers for Procrustes, whose products do not fit; many examples for matrices over pairs of them."""
    seen = []
    wide = nn.Sequential(nn.Linear(4, 2000), nn.ReLU())
    wide.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    batches = [torch.randn(300, 4)] * 5
    with pytest.raises(ValueError, match=r"memory must hold the working data of two layers.*max_examples"):
        iw.compare(wide, wide, batches, measures=measures, reading=Reading(memory="40 MB"), exact=True)
    assert sum(seen) <= 8


def test_double_precision_is_counted_before_the_networks_run():
    net64, seen = net().double(), []
    net64[0].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    asked = {"a": net64, "b": net64, "loader": [images().double()], "reading": Reading(memory=30_000), "exact": True}
    with pytest.raises(ValueError, match=r"needs 50 KiB"):  # 4 x 8 x 40^2 bytes; half of that for float32 would fit
        run(**asked, measures="linear_cka")
    assert sum(seen) <= 8


@pytest.mark.parametrize("name", ["rsa", "linear_cka", "orthogonal_procrustes", "linear_cka_biased"])
def test_layers_that_do_not_fit_at_once_give_the_same(name):
    x = images(30)
    one, two = (
        iw.compare(net(), net(seed=2), [x], measures=name, resampling=Resampling(null=2, bootstrap=2),
                   reading=Reading(memory=memory)) for memory in (None, 500_000)
    )  # fmt: skip
    torch.testing.assert_close(one.scores[name], two.scores[name], atol=1e-6, rtol=0)
    torch.testing.assert_close(one.chance[name], two.chance[name], atol=1e-6, rtol=0)


def test_intervals_hold_their_scores():
    """Also where few examples inflate the scores: the interval reaches from what more would give to the score."""
    result = iw.compare(net(), net(seed=2), [images(24)], measures=MEASURES, resampling=Resampling(null=0))
    for name in (name for name in result.measures if measure(name).has_limit):
        inside = (result.low[name] <= result.scores[name]) & (result.scores[name] <= result.high[name])
        assert inside.all(), name


def test_a_large_first_batch_does_not_count_for_all():
    batches = [images(40), *images(20).split(2)]
    result = run(loader=batches, measures="linear_cka", reading=Reading(memory=70_000))
    assert result.examples == 60


def test_an_overflowing_half_precision_layer_is_named():
    a = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).half()
    nn.init.constant_(a[0].weight, 60000)
    found = run(a=a, b=a, loader=[torch.ones(8, 2).half() * 9])
    assert any("layer '1' of A: NaN or infinite" in note for note in found.notes)


def test_features_of_eight_bits_are_compared_in_float32():
    net, x = nn.Sequential(nn.Linear(6, 5), Function(lambda x: x.to(torch.float8_e4m3fn))), torch.randn(40, 6)
    result = iw.compare(net, net, x.split(9), ["1"], ["linear_cka", "g_relu_procrustes"], resampling=None)
    features = net(x).float()
    for name in result.measures:
        assert float(result.scores[name]) == pytest.approx(measure(name)(features, features), abs=1e-6)


def test_half_precision_features_are_compared_in_float32():
    a = net().bfloat16()
    result = run(a=a, b=a, loader=[images().bfloat16()], layers=["1"])
    assert float(result.scores["linear_cka"]) == pytest.approx(1, abs=1e-5)


def test_gates_of_another_network_are_not_read_off_signs():
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))
    examples = torch.randn(40, 5)
    gated, x = iw.gates.dgn(net, examples), examples.split(20)
    with pytest.raises(ValueError, match="gates_cka must be given networks that make their own gates"):
        iw.similarity.compare(net, gated, x, measures="gates_cka", resampling=None)
    found = iw.similarity.compare(net, gated.gating.network, x, measures="gates_cka", resampling=None)
    assert torch.isfinite(found.scores["gates_cka"]).all()


def rare(n, channels, firing, seed):
    """Channels that respond to a few examples each: most shuffles of such features give one and the same score."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, channels)
    for c in range(channels):
        x[torch.randperm(n, generator=generator)[:firing], c] = torch.rand(firing, generator=generator) + 0.5
    return x


def given(columns):
    """A network whose features are columns of its input."""
    return Made(lambda m, x: m.layer(x[:, m.columns]), columns=columns, layer=nn.Identity())


@pytest.mark.parametrize("name", ["linear_cka", "g_relu_cka", "orthogonal_procrustes_centered"])
def test_shuffles_that_tie_with_the_score_are_no_evidence(name):
    """Rounding would decide: independent channels were beyond chance in a third of the draws."""
    sides, beyond = (given(slice(0, 1)), given(slice(1, 2))), 0
    for seed in range(20):
        x = torch.cat([rare(200, 1, 1, seed), rare(200, 1, 1, 100 + seed)], 1)
        found = iw.compare(
            *sides, [x], ["layer"], measures=name, resampling=Resampling(null=20, bootstrap=0, seed=seed)
        )
        beyond += float(found.null_p[name]) <= 0.05
    assert beyond <= 3  # of 20 at the 5 % level


class Apart(nn.Module):
    """Layers that each read inputs of their own."""

    def __init__(self, start, count, width):
        super().__init__()
        self.start = start
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, width), nn.ReLU()) for _ in range(count))

    def forward(self, x):
        parts = [x[:, self.start + 4 * i : self.start + 4 * i + 4] for i in range(len(self.layers))]
        return sum(layer(part).sum(1) for layer, part in zip(self.layers, parts))


def test_a_best_match_is_judged_by_the_best_matches_of_the_shuffles():
    beyond = alone = 0
    for seed in range(15):
        torch.manual_seed(seed)
        a, b, x = Apart(0, 3, 6), Apart(12, 8, 7), torch.randn(60, 44)
        found = iw.compare(
            a, b, [x], measures="linear_cka", resampling=Resampling(null=20, bootstrap=0, seed=seed, untrained=0)
        )
        best = found.best()
        assert (best["null_p"].to_numpy() == found.best_p["linear_cka"].numpy()).all()
        beyond += int((found.best_p["linear_cka"] <= 0.05).sum())
        own = found.scores["linear_cka"].argmax(1, keepdim=True)
        alone += int((found.null_p["linear_cka"].gather(1, own) <= 0.05).sum())
    assert beyond <= 6 < alone  # of 45 unrelated layers; each on its own, several times as many


def test_the_headline_says_of_a_rotated_copy_that_it_is_one():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    a, x = zoo.MAKERS["LlamaForCausalLM"]()
    b, tokens = iw.rotate(a, x).model, torch.randint(0, 30, (40, 6))
    found = iw.compare(a, b, [{"input_ids": tokens}], ["model.layers.0"], resampling=Resampling(untrained=0))
    assert "compute the same features in every layer up to orthogonal maps" in str(found)
    seed = zoo.MAKERS["LlamaForCausalLM"]()[0]
    found = iw.compare(a, seed, [{"input_ids": tokens}], ["model.layers.0"], resampling=Resampling(untrained=0))
    assert "compute the same features" not in str(found)


@pytest.mark.parametrize(("exact", "null"), [(True, 20), (True, 0), (False, 20)])
def test_the_smallest_p_that_shuffles_allow_is_said(exact, null):
    drawn = Resampling(null=null, bootstrap=0, untrained=0)
    found = iw.compare(net(), net(), [images(60)], measures="linear_cka", resampling=drawn, exact=exact)
    for said in (str(found), found.to_html()):
        assert ("o p is below 0.048, with 20 shuffles" in said) == (exact and null > 0)


def test_one_layer_of_many_that_differs_is_not_called_the_same():
    torch.manual_seed(0)
    a = nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.Tanh())), nn.Linear(8, 4)).double()
    for layer in a[:-1:2]:
        nn.init.orthogonal_(layer.weight)
    b, x = copy.deepcopy(a), torch.randn(40, 8, dtype=torch.float64)
    with torch.no_grad():
        b[-1].weight += 0.005 * torch.randn_like(b[-1].weight)
    layers = [str(i) for i in range(len(a))]
    found = iw.compare(a, b, [x], layers, measures=("linear_cka", "orthogonal_procrustes_centered"), resampling=None)
    scores = found.scores["linear_cka"].diagonal()
    assert scores.mean() > 1 - 1e-5 > scores.min() and "same features" not in found.summary()


@pytest.mark.parametrize(
    "name", ["sequential against named", "batch norm net against functions", "BERT against Electra"]
)
def test_one_network_in_other_code_is_compared_layer_by_layer(name):
    pair = PAIRS[name]()
    state = pair.a.state_dict()
    for key, tensor in iw.correspond(pair.a, pair.b, pair.x).convert(pair.b.state_dict()).items():
        state[key].copy_(tensor)
    shape = (40, *pair.x.shape[1:])
    x = torch.randn(shape) if pair.x.is_floating_point() else torch.randint(50, shape)
    found = iw.compare(pair.a, pair.b, x.split(20), resampling=None)
    assert "compute the same features in every layer" in found.summary()


def test_a_network_is_compared_with_itself_in_eight_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    with pytest.warns(DeprecationWarning, match="deprecated"):
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    resampling = Resampling(null=2, bootstrap=0, untrained=2)
    found = iw.compare(model, small, [torch.randn(64, 8)], measures="linear_cka", resampling=resampling)
    assert found.scores["linear_cka"][0, 0] > 0.99
