"""Many networks: the same scores as two by two, kept on disk, resumed, shown."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import intertwine as iw
from intertwine.lab.runs import InProcess, Local, overview
from intertwine.lab.runs.store import result_path
from intertwine.similarity import Resampling
from intertwine.similarity.comparison import many

MEASURES = ("linear_cka", "orthogonal_procrustes_centered")


def build(seed):
    def make():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU())

    return make


X = torch.randn(300, 3, 12, 12, generator=torch.Generator().manual_seed(0)).split(100)


def test_scores_are_those_of_pairs():
    found = iw.compare_many({str(k): build(k) for k in range(3)}, X, progress=False)
    plain = Resampling(null=0, bootstrap=0, untrained=0)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        two = iw.compare(build(i)(), build(j)(), X, measures=MEASURES, resampling=plain, exact=False)
        for m in MEASURES:
            torch.testing.assert_close(found.scores[m][:, i, j], two.scores[m].diagonal(), atol=1e-6, rtol=0)
            assert torch.equal(found.scores[m][:, i, j], found.scores[m][:, j, i])
            assert (found.scores[m].float() != found.scores[m]).any()  # no digit is lost on the way


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    ran = []

    def counted(seed):
        def make():
            model = build(seed)()
            model.register_forward_hook(lambda *_: ran.append(seed))
            return model

        return make

    def stopped():
        if ran:
            raise RuntimeError("a worker died")
        return build(9)()

    models = {str(k): counted(k) for k in range(3)}
    first = iw.compare_many(models, X, folder=tmp_path, progress=False)
    passes = len(ran)
    again = iw.compare_many(models, X, folder=tmp_path, progress=False)
    assert len(ran) - passes == 3  # the listing runs alone
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


def test_tree_map_and_page(tmp_path):
    found = iw.compare_many({"a": build(0), "b": build(1), "a again": build(0)}, X, progress=False)
    order = found.order()
    assert abs(order.index(0) - order.index(2)) == 1
    assert found.embedding().points.shape == (3, 2)
    assert found.summary().startswith("Of 3 networks, a and a again are most alike")
    page = found.to_html()
    assert "a again" in page and "Layer by layer" in page
    path = found.save(tmp_path / "set.json")
    assert type(found).load(path).names == found.names
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
    assert [entry.attempts for entry in report.entries] == [2, 1] and report.count("done") == 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "pairs" / "results").iterdir()}
    again = iw.compare_many(models, X, folder=tmp_path / "kept", work=work(Local(2)), progress=False)
    assert before == {path: path.stat().st_mtime_ns for path in before}  # nothing ran twice
    next(iter(before)).unlink()
    third = iw.compare_many(models, X, folder=tmp_path / "kept", work=work(Local(2)), progress=False)
    for one in (found, again, third):
        assert one.notes == alone.notes
        for m in MEASURES:
            for part in ("scores", "error", "chance", "p"):
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
    assert found.notes == (many.INTERRUPTED,)
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
    with pytest.raises(ValueError, match=r"work must give the scores of all tiles\. Got none of 2"):
        iw.compare_many({"a": build(0), "b": build(1)}, X, work=lambda tiles: [])
    data = torch.utils.data.TensorDataset(torch.cat(X))
    shuffled = DataLoader(data, batch_size=100, shuffle=True, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="loader must yield the same batches in every pass"):
        iw.compare_many({"a": build(0), "b": build(1)}, shuffled)
    with pytest.raises(ValueError, match="layers must name one that all networks have"):
        iw.compare_many({"a": build(0), "b": nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()))}, X)
