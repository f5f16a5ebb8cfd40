"""Barriers: what they measure, before and after alignment, and what is refused."""

import copy
import sys
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from made import Made
from torch import nn

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.merging import Barrier, Curve, PathOptions, barrier, barriers, recalibrate_
from intertwine.report import load_result, page_of

X = torch.zeros(2, 1, 8, 8)
PERMUTATIONS = {"kinds": {"permutation"}}


@pytest.fixture(scope="module")
def loader(digits):
    return list(digits.loader("test", batch_size=400))


@pytest.fixture(scope="module")
def found(trained, loader, digits):
    train = list(digits.loader("train", batch_size=400, examples=400))
    return {
        kind: barrier(*models[:2], loader, points=7, options=PathOptions(calibration=train, **PERMUTATIONS))
        for kind, models in trained.items()
    }


def test_alignment_lowers_the_barrier(found):
    assert found["mlp"].after < 0.35 * found["mlp"].before
    cnn = found["cnn"]
    assert cnn.heights("aligned", recalibrated=True)[0] < 0.5 * cnn.heights("direct", recalibrated=True)[0]
    # with interpolated statistics the spread collapses between the ends: recalibrated curves lie lower
    assert cnn.heights("aligned", recalibrated=True)[0] < cnn.heights("aligned")[0]
    assert cnn.variants == (("direct", False), ("direct", True), ("aligned", False), ("aligned", True))
    assert found["mlp"].variants == (("direct", False), ("aligned", False))


def test_points_are_networks_between(trained, loader, found):
    a, b = trained["mlp"][:2]
    middle = copy.deepcopy(a)
    with torch.no_grad():
        for p, q in zip(middle.parameters(), b.parameters()):
            p.add_(q).div_(2)
    direct = found["mlp"].curves[0]
    assert direct.loss[3] == pytest.approx(evaluate(middle, loader).loss, rel=1e-5)
    assert direct.accuracy[0] == evaluate(a, loader).accuracy
    assert direct.accuracy[-1] == evaluate(b, loader).accuracy


def test_both_paths_have_the_same_ends(found):
    direct, aligned = found["mlp"].curves
    assert aligned.loss[0] == direct.loss[0]
    assert aligned.loss[-1] == pytest.approx(direct.loss[-1], rel=1e-5)


def test_recalibrated_ends_are_recalibrated(trained, loader, digits, found):
    train = list(digits.loader("train", batch_size=400, examples=400))
    end = recalibrate_(copy.deepcopy(trained["cnn"][0]), train)
    curve = next(c for c in found["cnn"].curves if c.recalibrated)
    assert curve.loss[0] == pytest.approx(evaluate(end, loader).loss, rel=1e-6)


def test_a_permuted_copy_has_a_barrier_before_and_none_after(trained, loader):
    a = trained["mlp"][0]
    sym = iw.symmetries(a, X)
    twin = sym.act(sym.random(seed=2, kinds={"permutation"}), a)
    planted = barrier(a, twin, loader, points=5, options=PathOptions(**PERMUTATIONS))
    assert planted.before > 0.1 and planted.after == pytest.approx(0, abs=1e-6)


def test_the_chord_is_the_line_between_the_ends():
    curve = Curve(0, "direct", False, loss=(1.0, 2.0, 5.0, 3.0), accuracy=(0.9, 0.8, 0.2, 0.6))
    made = Barrier((0, 0.25, 0.5, 1), (("a", "b"),), (curve,), None, "linear", 10)
    assert made.heights("direct") == (pytest.approx(3.0),)
    assert made.heights("direct", measure="accuracy") == (pytest.approx(0.55),)
    assert made.before == pytest.approx(3.0) and made.after != made.after
    below = Curve(0, "direct", False, loss=(1.0, 0.5, 1.0))
    assert Barrier((0, 0.5, 1), (("a", "b"),), (below,), None, "linear", 1).before == 0.0


def test_intervals_leave_out_networks(trained, loader):
    found = barriers(trained["mlp"], loader, points=3, alignments=None, names=["x", "y", "z"])
    assert found.pairs == tuple(combinations("xyz", 2))
    interval = found.interval("direct")
    assert interval.models == 3 and interval.low < found.before < interval.high
    assert barriers(trained["mlp"][:2], loader, points=3, alignments=None).interval("direct") is None
    star = barriers(trained["mlp"], loader, points=3, pairs=[(0, 1), (0, 2)], alignments=None)
    assert star.interval("direct") is None  # one network in every pair: nothing is said of others in its place


def test_an_alignment_can_be_given(trained, loader):
    a, b = trained["mlp"][:2]
    given = iw.align(a, b, X, **PERMUTATIONS)
    one = barrier(a, b, loader, points=3, alignment=given)
    assert one.alignment == "weights" and len(one.curves) == 2
    by_name = barrier(a, b, loader, points=3, alignment="activations", options=PathOptions(**PERMUTATIONS))
    assert by_name.alignment == "activations"


def test_results_are_saved_and_printed(found, tmp_path):
    for kind, one in found.items():
        again = Barrier.load(one.save(tmp_path / f"{kind}.json"))
        assert again == one and load_result(tmp_path / f"{kind}.json") == one
        assert len(one.to_frame()) == len(one.curves) * 7
        one.save(tmp_path / f"{kind}.parquet")
        assert "<h1>The barrier between a and b</h1>" in one.to_html(tmp_path / "page.html").read_text()
        assert "aligned" in one.summary() and "loss barrier" in one.summary()


def test_the_page_says_what_fell(found):
    said = page_of(found["mlp"]).blocks[0].text
    assert "rises" in said and "after alignment" in said
    assert "recalibrated" in page_of(found["cnn"]).blocks[0].text


def test_models_stay_as_they_are(trained, loader):
    a, b = trained["cnn"][:2]
    before = {name: t.clone() for name, t in a.state_dict().items()}
    seed = torch.get_rng_state()
    barrier(a, b, loader, points=3, alignment=None)
    assert all(torch.equal(t, before[name]) for name, t in a.state_dict().items())
    assert torch.equal(torch.get_rng_state(), seed) and not a.training


def test_other_losses_and_dictionaries(trained, loader):
    a, b = trained["mlp"][:2]
    plain = [x for x, _ in loader]
    found = barrier(
        a, b, plain, points=3, alignment=None, options=PathOptions(loss=lambda output, _: output.square().mean())
    )
    assert found.curves[0].accuracy is None and "-" in found.summary()

    def named(inner):
        return Made(lambda m, pixels: {"logits": m.inner(pixels)}, inner=inner)

    labelled = [{"pixels": x, "labels": y} for x, y in loader]
    score = evaluate(named(a), labelled)
    assert score.accuracy == evaluate(a, loader).accuracy


def test_a_loader_of_a_stream_has_no_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return zip(x, (x[:, 0] > 0).long())

    x = torch.randn(32, 4)
    a, b = (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
    streamed = torch.utils.data.DataLoader(Stream(), batch_size=16)
    found, same = (barrier(a, b, data, points=3, alignment=None) for data in (streamed, list(streamed)))
    assert found.curves == same.curves and len(found.curves) == 2


def test_a_model_with_a_loss_of_its_own_is_asked():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=6, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 11, (4, 6))
    score = evaluate(model, [{"input_ids": ids, "labels": ids}])
    with torch.no_grad():
        assert score.loss == pytest.approx(float(model(input_ids=ids, labels=ids).loss))
    assert score.accuracy is None and score.examples == 4
    assert evaluate(torch.compile(model, backend="eager"), [{"input_ids": ids, "labels": ids}]) == score


def test_labels_under_another_name_are_no_argument():
    class TakesLabels(nn.Linear):
        def forward(self, x, labels=None):
            return super().forward(x)

    model, x, y = TakesLabels(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    assert evaluate(model, [{"x": x, "label": y}]) == evaluate(model, [(x, y)])


def test_bad_input(trained, loader):
    a, b = trained["mlp"][:2]
    with pytest.raises(ValueError, match=r"points must be at least 3.* Got 2"):
        barrier(a, b, loader, points=2)
    with pytest.raises(TypeError, match=r"points must be a whole number. Got '3'"):
        barrier(a, b, loader, points="3")
    with pytest.raises(ValueError, match=r"loader must yield \(inputs, labels\)"):
        barrier(a, b, [X])
    with pytest.raises(ValueError, match="loader must yield at least one batch"):
        barrier(a, b, [])
    with pytest.raises(TypeError, match="loader must be readable several times"):
        barrier(a, b, (batch for batch in loader))
    with pytest.raises(TypeError, match="loader must be an iterable of batches"):
        barrier(a, b, X)
    with pytest.raises(ValueError, match="must be of one architecture"):
        barrier(a, trained["cnn"][0], loader, alignment=None)
    with pytest.raises(ValueError, match="labels of classes"):
        barrier(a, b, [(x, y[:-1]) for x, y in loader], alignment=None)
    with pytest.raises(ValueError, match="pairs must be positions of two different networks"):
        barriers([a, b], loader, pairs=[(0, 0)])
    with pytest.raises(ValueError, match="alignments must be one for each of 1 pairs"):
        barriers([a, b], loader, alignments=[None, None])
    broken = copy.deepcopy(a)
    broken[1].weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match="1 must hold finite weights"):
        barriers([a, broken], loader, alignments=None)


def own(activation=torch.relu):
    """The program of ``Sequential(Linear(4, 8), ReLU(), Linear(8, 3))`` in other code and under other names."""
    return Made(
        lambda m, x: m.down(m.activation(m.up(x[..., None])[..., 0])), up=nn.Conv1d(4, 8, 1), down=nn.Linear(8, 3),
        activation=activation,
    )  # fmt: skip


def test_a_moved_network_in_other_code_is_aligned_merged_and_joined():
    a, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(64, 4)
    sym = iw.symmetries(a, x)
    moved, b = sym.act(sym.random(seed=3), a), own()
    b.load_state_dict(iw.correspond(b, a, x).convert(moved.state_dict()))
    found = iw.align(a, b, x)
    twin = found.apply(b)
    assert type(twin) is nn.Sequential and any("other code" in note for note in found.notes)
    iw.testing.assert_same_function(b, twin, x)
    for merged in (twin, iw.merge(a, b, found)):
        assert all(torch.allclose(p, q, atol=1e-5) for p, q in zip(merged.parameters(), a.parameters()))
    path = barrier(a, b, [(x, (x[:, 0] > 0).long())], points=3)
    direct, aligned = (max(curve.loss) - min(curve.loss) for curve in path.curves)
    assert aligned < 1e-5 < direct


def test_networks_whose_programs_part_are_refused_with_the_place():
    a, b, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), own(torch.tanh), torch.randn(8, 4)
    with pytest.raises(ValueError, match=r"one program in other code. Got not comparable: .*clamp.*where b has tanh"):
        iw.align(a, b, x)


def test_pairs_of_two_architectures_are_joined_each_in_its_own():
    x = torch.randn(16, 4)
    deep = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    flat = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2)]
    found = barriers([*deep, *flat], [(x, (x[:, 0] > 0).long())], points=3, pairs=[(0, 1), (2, 3)], alignments=None)
    assert [curve.pair for curve in found.curves] == [0, 1]


@pytest.mark.parametrize("scored", [2, 4])
def test_an_interrupted_barrier_keeps_the_coarse_points(trained, loader, scored, monkeypatch):
    a, b = trained["mlp"][:2]
    whole = barrier(a, b, loader, points=9, alignment=None)
    calls = []

    def interrupted(*given):
        calls.append(given)
        if len(calls) > scored + 1:  # the first one is of the data
            raise KeyboardInterrupt
        return evaluate(*given)

    monkeypatch.setattr(sys.modules[barrier.__module__], "evaluate", interrupted)
    if scored < 3:
        with pytest.raises(KeyboardInterrupt):
            barrier(a, b, loader, points=9, alignment=None)
        return
    part = barrier(a, b, loader, points=9, alignment=None)
    assert part.ratios == (0, 0.25, 0.5, 1)
    assert part.curves[0].loss == tuple(whole.curves[0].loss[k] for k in (0, 2, 4, 8))
    assert "these are 4 of 9 points" in part.summary()


def test_where_interpolated_norms_hide_the_alignment_a_note_says_so(trained, loader, found):
    said = "need norms that are recalibrated"
    assert not any(said in note for one in found.values() for note in one.notes)  # there alignment lowers the barrier
    a = trained["cnn"][0]
    sym = iw.symmetries(a, X)
    away = SimpleNamespace(apply=partial(sym.act, sym.random(seed=2, kinds={"permutation"})))
    poor = barrier(a, a, loader, points=3, alignment=away)
    assert poor.after > poor.heights("aligned", recalibrated=True)[0] > poor.before == 0
    assert said in poor.notes[0] and said in poor.summary()
