"""`stitch` from models to results: families, methods, seeds, skips; what it refuses; results that survive a file."""

import copy
import math
import sys

import numpy as np
import pytest
import torch
from stitching_models import KINDS, fingerprint, make

import intertwine as iw
from intertwine.groups import Orthogonal
from intertwine.stitching import RECIPES, Pair, Recipe, Stitching, StitchingStudy, StitchOptions, recalibrate, stitch
from intertwine.stitching.layer import Fixed

SHORT = Recipe(epochs=2, head_start=1, learning_rate=1e-2)


def data(kind="cnn", n=120, seed=3, batch=32):
    """Batches with three classes that networks of random weights disagree on."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *KINDS[kind][1], dtype=torch.float64, generator=g)
    return list(zip(x.split(batch), torch.randint(0, 3, (n,), generator=g).split(batch)))


@pytest.fixture(scope="module")
def pair():
    return make("cnn", 0)[0], make("cnn", 5)[0]


def test_one_layer_and_family_is_a_stitching_and_lists_are_a_study(pair):
    one = stitch(*pair, "2", "g_relu", loader=data(), eval_loader=data(seed=4), method=SHORT)
    assert isinstance(one, Stitching) and one.model is not None and one.layer is one.model.layer
    assert (one.examples, len(one.history), one.dim, one.parameters, one.alpha) == (120, 2, 4, 20, 0.1)
    assert one.penalty == (one.accuracy_a + one.accuracy_b) / 2 - one.accuracy
    assert one.log_count(2**-10, 1.0) == pytest.approx(math.lgamma(5) + 4 * math.log(2**11))
    many = stitch(*pair, ["2", "5"], ["g_relu", "rank-1"], loader=data(), seeds=[0, 1], method=["direct", SHORT])
    assert isinstance(many, StitchingStudy)
    assert len(many.stitchings) == 2 * 2 * (1 + 2)  # closed forms do not depend on the seed
    assert (many.layers, many.families, many.methods) == (("2", "5"), ("g_relu", "rank-1"), ("direct", "task_loss"))
    assert len(many.to_frame()) == 12 and len(many.table()) == 8
    assert "measured on the training data" in many.stitchings[0].summary() and "penalty" in many.summary()


def test_models_loaders_and_random_numbers_are_left_alone(pair):
    before, random = tuple(map(fingerprint, pair)), torch.get_rng_state()
    stitch(*pair, "2", ["softsort"], loader=data(), method=SHORT, options=StitchOptions(tail_norm="train"))
    assert tuple(map(fingerprint, pair)) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_the_same_seed_gives_the_same_result_and_other_families_do_not_matter(pair):
    alone = stitch(*pair, "2", "g_relu", loader=data(), seeds=3, method=SHORT, options=StitchOptions(start="random"))
    among = stitch(
        *pair, "2", ["full", "g_relu"], loader=data(), seeds=[3], method=SHORT, options=StitchOptions(start="random")
    )
    assert torch.equal(alone.matrix, among.stitchings[1].matrix)
    other = stitch(
        *pair, "2", "g_relu", loader=data(), seeds=np.int64(4), method=SHORT, options=StitchOptions(start="random")
    )
    assert other.seed == 4 and type(other.seed) is int
    assert not torch.equal(alone.matrix, other.matrix)


class Shuffled(torch.utils.data.DataLoader):
    """Shuffles by torch's global random numbers."""

    def __init__(self):
        super().__init__([(x, y) for b in data() for x, y in zip(*b)], batch_size=16, shuffle=True)


@pytest.mark.parametrize(
    "options", [{}, {"options": StitchOptions(settings={"alpha": "cv"})}, {"method": "direct"}], ids=str
)
def test_a_shuffled_loader_is_read_in_an_order_that_follows_from_the_seed(pair, options):
    found = []
    for start in (1, 2):
        torch.manual_seed(start)  # what a fresh process begins with is anybody's guess
        before = torch.get_rng_state()
        one = stitch(
            *pair, "2", "g_relu", loader=Shuffled(), eval_loader=Shuffled(), seeds=5, **{"method": SHORT, **options}
        )
        assert torch.equal(torch.get_rng_state(), before)
        tail = [tensor.tolist() for tensor in one.model.tail.statistics().values()]
        found.append((one.to_dict(), one.matrix.tolist(), tail))
    assert found[0] == found[1]


def test_direct_matching_is_the_closed_form_and_training_starts_there(pair):
    direct = stitch(*pair, "2", "full", loader=data(), method="direct")
    assert direct.history == ()
    still = stitch(*pair, "2", "full", loader=data(), method=Recipe(epochs=0))
    assert torch.equal(direct.matrix, still.matrix)
    assert stitch(*pair, "2", "full", loader=data(), method=SHORT).history[-1]["loss"] < math.inf
    assert direct.drift.residual < stitch(*pair, "2", "identity", loader=data(), method="direct").drift.residual


def test_any_group_is_a_family(pair):
    found = stitch(*pair, "2", Orthogonal(4), loader=data(), method="direct")
    assert found.family and found.dim == 6
    torch.testing.assert_close(found.matrix @ found.matrix.T, torch.eye(4, dtype=found.matrix.dtype))


def test_recalibration_can_be_left_out_and_is_for_every_family(pair):
    with_it, without = (
        stitch(
            *pair, "2", ["full", "rank-1"], loader=data(), method="direct", options=StitchOptions(recalibration=wanted)
        )
        for wanted in (True, False)
    )
    for one, other in zip(with_it.stitchings, without.stitchings):
        changed = [k for k in one.statistics if not torch.equal(one.statistics[k], other.statistics[k])]
        assert len(changed) == 2


def test_alpha_by_cross_validation_sees_training_data_only(pair):
    found = stitch(*pair, "2", "g_relu", loader=data(), method=SHORT, options=StitchOptions(settings={"alpha": "cv"}))
    assert found.alpha in (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    assert (
        stitch(*pair, "2", "g_relu", loader=data(), method=SHORT, options=StitchOptions(settings={"alpha": 0.7})).alpha
        == 0.7
    )


@pytest.mark.parametrize("bias", [False, True])
def test_starred_layers_and_skips(tmp_path, bias):
    a, b = make("residual", 0)[0], make("residual", 5)[0]
    found = stitch(
        a, b, ["relu.0", "relu.1"], "full", loader=data("residual"), method="direct",
        options=StitchOptions(skip="mapped", bias=bias),
    )  # fmt: skip
    assert found.layers == ("relu.0", "relu.1*")
    assert len(found.stitchings[1].model.skip_layers) == 1
    assert "* inside a residual block" in found.summary() and "unmapped" not in found.summary()
    unmapped = stitch(a, b, ["relu.1"], "full", loader=data("residual"), method="direct")
    assert "with A's values, unmapped: a copy in another basis has a penalty" in unmapped.summary()
    again, x = StitchingStudy.load(found.save(tmp_path / "s.json")), data("residual")[0][0]
    for before, after in zip(found.stitchings, again.stitchings):
        net = after.rebuild(a, b, data("residual")[0])
        assert len(net.skip_layers) == len(before.model.skip_layers)
        torch.testing.assert_close(net(x), before.model(x))


def test_different_networks_are_stitched_at_different_layers(pair):
    found = stitch(pair[0], make("projected")[0], ("5", "relu1"), ["rank-2", "g_relu"], loader=data(), method="direct")
    assert found.layers == ("5 -> relu1",)
    assert [s.matrix.shape for s in found.stitchings] == [(4, 8), (4, 8)]
    assert found.stitchings[1].pairing["index"] != [0, 1, 2, 3]


def test_agreement_is_with_the_closed_form_match(pair):
    model, sym = pair[0], iw.symmetries(pair[0], data()[0][0])
    twin = sym.act(sym.random(seed=1), model)
    same = stitch(model, twin, "2", ["g_relu", "softsort", "full", "identity"], loader=data(), method="direct")
    assert [s.agreement for s in same.stitchings] == [1.0, 1.0, None, None]


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_saved_stitching_is_rebuilt_with_its_statistics(pair, tmp_path):
    found = stitch(*pair, "2", "full", loader=data(), method=SHORT, options=StitchOptions(bias=True))
    again = Stitching.load(found.save(tmp_path / "s.json"))
    assert again.to_dict() == found.to_dict() and repr(again) == repr(found)
    net, x = again.rebuild(*pair, data()[0]), data()[0][0]
    torch.testing.assert_close(net(x), found.model.eval()(x))
    (tmp_path / "s.safetensors").unlink()
    bare = Stitching.load(tmp_path / "s.json")
    assert bare.matrix is None and bare.layer is None
    with pytest.raises(ValueError, match="must hold its map to be rebuilt"):
        bare.rebuild(*pair, data()[0])


def test_a_study_survives_a_file_and_pairs_are_joined(pair, tmp_path):
    nets = [*pair, make("cnn", 9)[0]]
    parts = [
        stitch(
            nets[i], nets[j], ["2"], ["g_relu"], loader=data(), method="direct",
            options=StitchOptions(names=(f"net {i}", f"net {j}")),
        )
        for i in range(3)
        for j in range(3)
        if i != j
    ]  # fmt: skip
    study = StitchingStudy.join(parts, {"data": "random"})
    row = study.table().iloc[0]
    assert (row["models"], row["runs"], row["over"]) == (3, 6, "models")
    assert row["low"] <= row["penalty"] <= row["high"]
    again = StitchingStudy.load(study.save(tmp_path / "study.json"))
    assert again.to_dict() == study.to_dict()
    assert torch.equal(again.stitchings[3].matrix, study.stitchings[3].matrix)
    assert study.save(tmp_path / "study.parquet").is_file()
    assert len(study.select(layer="2*", family="g_relu").stitchings) == 6
    assert study.select(method="task_loss").stitchings == ()


def test_intervals_say_what_they_resample(pair):
    one = stitch(*pair, "2", ["full"], loader=data(), method="direct")
    assert one.table()["over"].tolist() == ["examples"]
    with pytest.raises(ValueError, match=r"confidence must lie between 0 and 1. Got 95"):
        one.table(95)
    low, high = one.stitchings[0].interval()
    assert low <= one.stitchings[0].penalty <= high
    seeds = stitch(
        *pair, "2", "softsort", loader=data(), seeds=[0, 1, 2], method=SHORT, options=StitchOptions(start="random")
    )
    row = seeds.table().iloc[0]
    assert row["over"] == "runs (range)" and row["low"] == min(s.penalty for s in seeds.stitchings)
    assert "one fit" not in seeds.summary()


@pytest.mark.parametrize("way", ["closed form", "nothing to train", "no epoch better than the start"])
def test_seeds_of_one_deterministic_fit_are_no_runs(pair, way):
    """What seeds do not change says nothing of other seeds."""
    if way == "closed form":
        parts = [stitch(*pair, "2", ["full"], loader=data(), method="direct", seeds=[k]) for k in range(3)]
        study = StitchingStudy.join(parts)
    else:
        family = "identity" if way == "nothing to train" else "full"
        still = Recipe(epochs=1, learning_rate=1e-30)
        study = stitch(*pair, "2", family, loader=data(), method=still, seeds=[0, 1, 2])
        assert all(s.kept == (None if family == "identity" else 0) for s in study.stitchings)
    assert len({s.penalty for s in study.stitchings}) == 1
    row = study.table().iloc[0]
    assert row["runs"] == 3 and row["over"] == "examples"
    assert (row["low"], row["high"]) == study.stitchings[0].interval()
    assert "are one fit, in which nothing is random" in study.summary()


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"at": "nowhere"}, "layers must be names of modules that run"),
        ({"at": []}, "at must hold at least one"),
        ({"family": "rank-9"}, "rank"),
        ({"family": "magic"}, "family must be one of"),
        ({"method": "guess"}, 'method must be "task_loss", "direct" or a Recipe'),
        ({"method": ["task_loss", RECIPES["v2"]]}, "method must hold one way of training at most"),
        ({"options": StitchOptions(settings={"temperature": 2})}, "settings must be of the families"),
        ({"options": StitchOptions(skip="c")}, 'skip must be "a", "mapped" or "b"'),
        ({"loader": [torch.zeros(3, 3, 8, 8, dtype=torch.float64)]}, r"batches must be \(inputs, labels"),
        ({"at": ("2", "7")}, "features of A must be laid out like B's"),
        (
            {"loader": [(data()[0][0][:2], torch.tensor([0, 7]))]},
            r"labels must be from 0 to 2, B's 3 outputs, or -100 .* Got 7",
        ),
        (
            {"loader": [data()[0], (data()[0][0] * torch.nan, data()[0][1])]},
            r"features must be finite. Got NaN or infinite ones of A",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_before_any_work(pair, change, message):
    arguments = {"at": "2", "family": "g_relu", "loader": data(), "method": RECIPES["v2"], **change}
    with pytest.raises(ValueError, match=message):
        stitch(*pair, **arguments)


def test_unknown_starts_are_refused():
    with pytest.raises(ValueError, match='start must be "direct" or "random"'):
        StitchOptions(start="warm")
    with pytest.raises(ValueError, match=r'alpha must be a number or "cv". Got .CV.'):
        StitchOptions(settings={"alpha": "CV"})


def test_weights_that_are_not_finite(pair):
    bad = copy.deepcopy(pair[1])
    with torch.no_grad():
        bad[3].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"b must have finite weights. Got NaN or infinity in '3.weight'"):
        stitch(pair[0], bad, "2", loader=data())


def test_layers_that_never_respond_are_refused_before_training(pair, monkeypatch):
    dead = copy.deepcopy(pair[1])
    with torch.no_grad():
        dead[0].weight.zero_()
    monkeypatch.setattr(sys.modules[stitch.__module__], "train_layers", None)
    with pytest.raises(ValueError, match=r"B's features must vary at every layer. Got constant ones at 0, 2\."):
        stitch(pair[0], dead, ["0", "2", "5"], loader=data())


@pytest.mark.parametrize("tail_norm", ["eval", "train"])
def test_examples_in_batches_of_one_count_where_batch_norm_is_measured(tail_norm):
    """A last batch of one holds one value of each channel of a vector."""
    make_one = lambda: torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
    ).eval()
    torch.manual_seed(0)
    a, b, x, y = make_one(), make_one(), torch.randn(33, 4), torch.arange(33) % 3
    options = StitchOptions(tail_norm=tail_norm)
    for batch in (16, 1):
        loader = list(zip(x.split(batch), y.split(batch)))
        found = stitch(a, b, "1", "full", loader=loader, method=SHORT, options=options)
        assert found.examples == 33
    net = Pair(a, b, x).cut("1").stitch(Fixed(torch.eye(6)))
    recalibrate(net, [x])
    whole = net.tail.statistics()
    for batch in (16, 1):
        recalibrate(net, x.split(batch))
        for key, measured in net.tail.statistics().items():
            torch.testing.assert_close(measured, whole[key])
    with pytest.raises(ValueError, match="batches must hold at least 2 examples in all"):
        recalibrate(net, [x[:1]])


def test_loaders_must_be_readable_again(pair):
    with pytest.raises(TypeError, match="eval_loader must be readable several times"):
        stitch(*pair, "2", loader=data(), eval_loader=iter(data()))


def test_a_loader_of_a_stream_has_no_length(pair):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(data())

    streamed = torch.utils.data.DataLoader(Stream(), batch_size=None)
    found, same = (stitch(*pair, "2", "full", loader=loader, method=SHORT) for loader in (streamed, data()))
    assert torch.equal(found.matrix, same.matrix) and found.penalty == same.penalty


def test_compiled_models_are_stitched_at_the_names_of_what_they_wrap(pair):
    compiled = [torch.compile(model) for model in pair]
    found, same = (stitch(*models, "2", "full", loader=data(), method="direct") for models in (compiled, pair))
    assert torch.equal(found.matrix, same.matrix)
