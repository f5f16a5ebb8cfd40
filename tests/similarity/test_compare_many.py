"""Many networks: the same scores as two by two, kept on disk, resumed, shown."""

from dataclasses import replace
from itertools import combinations
from math import nan
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import intertwine as iw
from intertwine.lab.runs import InProcess, Local, overview
from intertwine.lab.runs.store import result_path
from intertwine.similarity import Resampling
from intertwine.similarity.comparison import keepers, many, verdict
from intertwine.similarity.comparison.untrained import CUT_SHORT, Redrawn

MEASURES = ("linear_cka", "orthogonal_procrustes_centered")
PARTS = ("scores", "error", "low", "high", "chance", "null_p")


def build(seed):
    def make():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU())

    return make


X = torch.randn(300, 3, 12, 12, generator=torch.Generator().manual_seed(0)).split(100)


def narrow(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 12, 3), nn.ReLU())


@pytest.mark.parametrize("measure", MEASURES)
def test_scores_and_what_judges_them_are_those_of_pairs(measure):
    """Equal networks, others of their architecture, and one of another."""
    models = {"a": build(0)(), "untrained a0": build(1)(), "a again": build(0)(), "narrow": narrow(5)}  # a name as ours
    found = iw.compare_many(models, X, measures=measure, progress=False)
    untrained, agree, seen = found.untrained(measure), found.agreement(measure), set()
    for (i, a), (j, b) in combinations(enumerate(models), 2):
        two = iw.compare(models[a], models[b], X, measures=measure, exact=False)
        for part in PARTS:
            ours, theirs = getattr(found, part)[measure], getattr(two, part)[measure].diagonal()
            # near 1 they are roots of rounding, which is another one on each kind of machine
            atol = 3e-4 if part in ("error", "low", "high") else 1e-6
            torch.testing.assert_close(ours[:, i, j], theirs, atol=atol, rtol=1e-5)
            assert torch.equal(ours[:, i, j], ours[:, j, i])
        torch.testing.assert_close(untrained[:, i, j], two.untrained[measure].diagonal(), atol=1e-6, rtol=0)
        yes = verdict.agreeing(two)[0]
        assert agree[:, i, j].tolist() == [float(layer in yes) for layer in found.layers]
        seen |= {*agree[:, i, j].tolist()}
    assert seen == {0, 1}
    assert (found.scores[measure].float() != found.scores[measure]).any()  # no digit is lost on the way


def test_what_was_not_asked_for_is_not_known():
    models = {"a": build(0), "b": build(1), "a again": build(0)}
    bare = iw.compare_many(models, X, resampling=None, progress=False)
    assert not bare.untrained_pairs and all(x.isnan().all() for x in (bare.low[MEASURES[0]], bare.chance[MEASURES[0]]))
    assert (
        bare.agreement().isnan().all()
        and not bare.agreeing()
        and "agree" not in bare.summary()
        and "from" not in bare.summary()
    )
    assert bare.to_html()
    few = iw.compare_many(models, [X[0][:6]], progress=False)
    assert few.low["linear_cka"].isnan().all() and "No intervals: 6 examples are too few to halve." in few.notes
    alone = iw.compare_many(models, X, resampling=Resampling(untrained=0, bootstrap=0), progress=False)
    assert alone.agreeing().startswith("Beyond chance: 3 pairs at every layer (a and b, a and a again, b and a again)")
    nets = [build(k)() for k in (11, 12)]
    given = iw.compare_many(models, X, resampling=Resampling(untrained=(nets, nets)), progress=False)
    assert len(given.untrained_pairs["linear_cka"]) == 1
    some = iw.compare_many({**models, "narrow": narrow(0)}, X, resampling=Resampling(untrained=(nets, nets)))
    assert some.agreement()[:, 3].isnan().all() and torch.equal(some.agreement()[:, :3, :3], given.agreement())
    with pytest.raises(ValueError, match="untrained must be built as models are"):
        iw.compare_many(models, X, resampling=Resampling(untrained=(narrow(0), nets[0])), progress=False)


class ByHand(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 12, 3), nn.ReLU())
        self.apply(lambda module: None)


def test_pairs_of_networks_that_cannot_be_drawn_are_neither_alike_nor_not():
    models = {"a": build(0), "hand": ByHand(6), "a again": build(0)}
    found = iw.compare_many(models, X, progress=False)
    known = [[1, nan, 1], [nan, nan, nan], [1, nan, 1]]
    torch.testing.assert_close(found.agreement().float(), torch.tensor([known] * 2), equal_nan=True)
    assert [note for note in found.notes if "the __init__ of ByHand draws weights by rules" in note]
    assert "1 pair at every layer (a and a again)." in found.agreeing() and "1.000" in found.summary()


def test_one_network_of_an_architecture_tells_how_all_untrained_ones_are_drawn():
    class Drawn(nn.Sequential):
        built = 0

        def __init__(self):
            Drawn.built += 1
            super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())

    found = iw.compare_many(dict.fromkeys("abc", Drawn), X, progress=False)
    assert len(found.untrained_pairs["linear_cka"]) == 3
    assert Drawn.built == 3 + 3 + 1 + 3  # for the list, for the passes, as a pattern, and those without training


def test_control_c_in_the_pass_of_untrained_networks_keeps_the_scores(monkeypatch):
    class Stopped(nn.Sequential):
        def forward(self, x):
            raise KeyboardInterrupt

    monkeypatch.setattr(Redrawn, "__call__", lambda self, seed: Stopped(*build(seed)()))
    found = iw.compare_many({"a": build(0), "b": build(1)}, X, progress=False)
    assert found.notes == (CUT_SHORT,) and not found.untrained_pairs
    assert not found.scores["linear_cka"].isnan().any()


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(keepers, "_LARGE", 3.5 * (8 * 12 * 12 + 12 * 5 * 5))  # more networks make no network larger

    def counted(seed):
        def make():
            model = build(seed)()
            model.register_forward_hook(lambda *_: ran.append(seed))
            return model

        return make

    def stopped():
        if len(ran) > 3:
            raise KeyboardInterrupt
        return counted(2)()

    models = {str(k): counted(k) for k in range(3)}
    with pytest.raises(KeyboardInterrupt):
        iw.compare_many({**models, "2": stopped}, X, folder=tmp_path, progress=False)
    assert len(ran) == 3 + 2 * len(X)
    first = iw.compare_many(models, X, folder=tmp_path, progress=False)
    assert len(ran) == 2 * 3 + 3 * len(X) + 3  # every network is listed anew, the third one runs, and three untrained
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(kept) == 3 + 3  # untrained ones too
    passes = len(ran)
    again = iw.compare_many(models, X, folder=tmp_path, progress=False)
    assert len(ran) - passes == 3 and kept == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for m in MEASURES:
        assert torch.equal(first.scores[m], again.scores[m])
    more = iw.compare_many({**models, "3": counted(3)}, X, folder=tmp_path, progress=False)
    assert len(ran) - passes == 3 + 4 + len(X)
    torch.testing.assert_close(more.scores["linear_cka"][:, :3, :3], first.scores["linear_cka"])


def test_other_weights_under_a_name_run_anew(tmp_path):
    one = iw.compare_many({"a": build(0), "b": build(1)}, X, folder=tmp_path, progress=False)
    two = iw.compare_many({"a": build(0), "b": build(0)}, X, folder=tmp_path, progress=False)
    assert one.scores["linear_cka"][0, 0, 1] < 0.99 < two.scores["linear_cka"][0, 0, 1]


def test_another_function_of_the_same_weights_runs_anew(tmp_path):
    def with_activation(activation):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), activation)

    found = iw.compare_many({"a": with_activation(nn.ReLU()), "b": with_activation(nn.Tanh())}, X, folder=tmp_path)
    assert found.scores["linear_cka"][0, 0, 1] < 0.99


@pytest.mark.parametrize("in_buffer", [True, False])
def test_networks_that_differ_in_tensors_of_no_state_dict_are_not_taken_for_one(in_buffer):
    class Masked(nn.Linear):
        def __init__(self, mask):
            torch.manual_seed(0)
            super().__init__(8, 8)
            if in_buffer:
                self.register_buffer("mask", mask, persistent=False)
            else:
                self.mask = mask

        def forward(self, x):
            return super().forward(x) * self.mask

    upper, x = (torch.arange(8) > 3).float(), torch.randn(60, 8).split(20)
    two = {"a": Masked(upper), "b": Masked(1 - upper)}
    found = iw.compare_many(two, x, "", "linear_cka", resampling=None, progress=False)
    assert float(found.matrix()[0, 1]) < 0.9


def test_tree_map_and_page(tmp_path):
    found = iw.compare_many({"a": build(0), "b": build(1), "a again": build(0)}, X, progress=False)
    order = found.order()
    assert abs(order.index(0) - order.index(2)) == 1
    assert found.embedding().points.shape == (3, 2)
    assert found.summary().startswith("Of 3 networks, a and a again are most alike")
    which = "Beyond chance and untrained networks: 1 pair at every layer (a and a again); 2 pairs at no layer"
    assert which in found.summary()
    assert found.summary().count("Beyond chance and untrained networks") == len(found.measures) == 2
    page = found.to_html()
    for text in ("a again", "Layer by layer", which, "share of layers that agree", "Untrained: %{customdata"):
        assert text in page, text
    path = found.save(tmp_path / "set.json")
    loaded = type(found).load(path)
    assert loaded.names == found.names and loaded.summary() == found.summary()
    assert len(found.to_frame()) == 2 * 2 * 3


class LosesOne(InProcess):
    """Workers of which the first one dies after its work, before it has said so."""

    lost = False

    def wait(self, timeout):
        found = super().wait(timeout)
        if found and not self.lost:
            self.lost = True
            result_path(Path(self.home), found[0].key).unlink()
            return [replace(found[0], state="died", error="killed")]
        return found


def test_pairs_are_jobs_of_workers_that_may_die(tmp_path):
    models = {str(k): build(k) for k in range(3)}
    alone = iw.compare_many(models, X, progress=False)
    executor = LosesOne()
    executor.home = tmp_path / "pairs"
    work = lambda executor: iw.lab.tiles.by_jobs(tmp_path, executor, progress=False)
    found = iw.compare_many(models, X, folder=tmp_path / "kept", work=work(executor), progress=False)
    assert executor.lost
    report = overview(tmp_path / "pairs")
    assert [entry.attempts for entry in report.entries] == [2, 1, 1, 1] and report.count("done") == 4
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "pairs" / "results").iterdir()}
    again = iw.compare_many(models, X, folder=tmp_path / "kept", work=work(Local(2)), progress=False)
    assert before == {path: path.stat().st_mtime_ns for path in before}  # nothing ran twice
    next(iter(before)).unlink()
    third = iw.compare_many(models, X, folder=tmp_path / "kept", work=work(InProcess()), progress=False)
    for one in (found, again, third):
        assert one.notes == alone.notes
        for m in MEASURES:
            for part in (*PARTS, "untrained_pairs"):
                torch.testing.assert_close(getattr(one, part)[m], getattr(alone, part)[m], rtol=1e-5, atol=1e-7)


def test_control_c_keeps_layers_that_were_scored(monkeypatch):
    scored, count = many.score_all, []

    def interrupted(*args):
        count.append(1)
        found = scored(*args)
        if len(count) > 1:
            next(iter(found.values())).notes.append(many.INTERRUPTED)
        return found

    monkeypatch.setattr(many, "score_all", interrupted)
    found = iw.compare_many({"a": build(0), "b": build(1)}, X, progress=False)
    assert found.notes == (many.INTERRUPTED,) and not found.untrained_pairs
    assert found.scores["linear_cka"].isnan().flatten(1).all(1).tolist() == [False, True]


def test_checkpoints_of_one_training_against_the_last(tmp_path):
    start, end = build(0)(), build(1)()

    def between(share):
        model = build(0)()
        with torch.no_grad():
            for mine, x, y in zip(model.parameters(), start.parameters(), end.parameters()):
                mine.copy_(torch.lerp(x, y, share))
        return model

    found = iw.compare_many({f"step {k}": between(k / 3) for k in range(4)}, X, progress=False)
    rows = found.against()
    assert rows.shape == (4, 2) and (rows.diff(dim=0) > 0).all() and (rows[-1] > 0.999).all()
    torch.testing.assert_close(found.against("step 0")[:, 1], found.matrix(layer="3")[:, 0])
    with pytest.raises(ValueError, match="name must be one of"):
        found.against("step 9")
    page = found.to_html()
    assert "Every network with step 3" in page and "The tree of the networks" in page


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="at least two"):
        iw.compare_many({"a": build(0)}, X)
    with pytest.raises(ValueError, match="must have an estimator"):
        iw.compare_many({"a": build(0), "b": build(1)}, X, measures="svcca")
    with pytest.raises(TypeError, match="readable several times"):
        iw.compare_many({"a": build(0), "b": build(1)}, iter(X))
    with pytest.raises(TypeError, match=r"b must be a torch\.nn\.Module\. Got int"):
        iw.compare_many({"a": build(0), "b": 3}, X)
    with pytest.raises(ValueError, match="folder must be a place where files can be written"):
        iw.compare_many({"a": build(0), "b": build(1)}, X, folder=Path(__file__))
    with pytest.raises(ValueError, match=r"work must give the scores of all tiles\. Got none of 4"):
        iw.compare_many({"a": build(0), "b": build(1)}, X, work=lambda tiles: [])
    data = torch.utils.data.TensorDataset(torch.cat(X))
    shuffled = DataLoader(data, batch_size=100, shuffle=True, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="loader must yield the same batches in every pass"):
        iw.compare_many({"a": build(0), "b": build(1)}, shuffled)
    with pytest.raises(ValueError, match="layers must name one that all networks have"):
        iw.compare_many({"a": build(0), "b": nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()))}, X)
