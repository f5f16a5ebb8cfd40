"""Many networks: the same scores as two by two, kept on disk, resumed, shown."""

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.similarity import Resampling

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
            torch.testing.assert_close(found.scores[m][:, i, j], found.scores[m][:, j, i])


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


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="at least two"):
        iw.compare_many({"a": build(0)}, X)
    with pytest.raises(ValueError, match="must have an estimator"):
        iw.compare_many({"a": build(0), "b": build(1)}, X, measures="svcca")
    with pytest.raises(TypeError, match="readable several times"):
        iw.compare_many({"a": build(0), "b": build(1)}, iter(X))
    with pytest.raises(ValueError, match="layers must name one that all networks have"):
        iw.compare_many({"a": build(0), "b": nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()))}, X)
