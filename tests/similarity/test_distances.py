"""Distances of many networks: metrics where they say so, scaling against scikit-learn and planted points."""

from itertools import permutations

import pytest
import torch
from numeric import normal

from intertwine.report import load_result, page_of, render
from intertwine.similarity import Distances, Embedding, distances, measure, measure_names
from intertwine.similarity.distances import classical_scaling, majorised


def related(count=5, width=6, n=40):
    """Features of one width that share more or less of a signal."""
    return {f"net {k}": normal(n, width) * k / count + normal(n, width, seed=k) for k in range(1, count + 1)}


@pytest.mark.parametrize("name", measure_names())
def test_distances_are_distances(name):
    m, features = measure(name), related()
    found = distances(features | {"twin": features["net 2"].clone()}, m)
    assert torch.equal(found.distances, found.distances.T)
    assert (found.distances.diagonal() == 0).all() and (found.distances >= -1e-9).all()
    assert float(found.distances[1, 5]) < 3e-7 * max(1.0, float(found.distances.max()))
    a, b = (m.prepare(features[f"net {k}"]) for k in (1, 3))
    directions = [m.to_distance(m.score(p, q), p, q) for p, q in ((a, b), (b, a))]
    assert float(found.distances[0, 2]) == pytest.approx(sum(directions) / 2, abs=1e-12)
    assert float(found.scores[0, 2]) == m.score(a, b)
    d = found.distances
    worst = max(float(d[i, j] - d[i, k] - d[k, j]) for i, j, k in permutations(range(6), 3))
    assert not found.metric or worst < 1e-6
    assert ("directed" in "".join(found.notes)) == (
        name in ("pwcca", "linear_regression", "linear_regression_backward")
    )


@pytest.mark.parametrize("name", ["g_relu_procrustes", "permutation_procrustes", "g_relu_procrustes_centered"])
def test_assigned_channels_of_other_counts_give_no_metric(name):
    """Dead channels are left out: opposite channels must be partners in one pair, and need not in another."""
    a, nothing = normal(30, 1), torch.zeros(30, 1, dtype=torch.float64)
    views = {"a": [a, nothing], "b": [-a, nothing], "c": [a, -a]}
    found = distances({key: torch.cat(columns, 1) for key, columns in views.items()}, name)
    d = found.distances
    assert d[0, 1] > d[0, 2] + d[2, 1] and not found.metric


def test_size_and_shape_is_the_distance_itself():
    x, y = normal(30, 4), 3 * normal(30, 4, seed=1)
    u, _, vt = torch.linalg.svd(x.T @ y)
    expected = float((x @ (u @ vt) - y).norm())
    found = distances({"x": x, "y": y}, "size_and_shape_procrustes")
    assert float(found.distances[0, 1]) == pytest.approx(expected)


def test_tokens_are_read_along_their_channels():
    x, y = normal(30, 6, 4), normal(30, 6, 4, seed=1)
    expected = distances({"x": x, "y": y}).distances
    turned = {"x": x.movedim(1, -1), "y": y.movedim(1, -1)}
    torch.testing.assert_close(distances(turned, channel_dim=-1).distances, expected)


def test_points_in_the_plane_are_found_again():
    points = normal(9, 2)
    exact = torch.cdist(points, points)
    names = tuple(f"p{k}" for k in range(9))
    found = Distances(names, "m", "g", True, exact, 1 - exact, (1,) * 9, (0,) * 9, 10)
    placed = found.embedding(2)
    assert placed.stress < 1e-6
    for at in (placed.points, classical_scaling(exact, 2)):
        torch.testing.assert_close(torch.cdist(at, at), exact, atol=1e-5, rtol=0)
    wide = found.embedding(12).points
    assert wide.shape == (9, 12) and wide[:, 3:].abs().max() < 1e-5
    assert found.embedding(1).stress > 0.01


def test_scaling_against_scikit_learn():
    from sklearn.manifold import smacof

    found = distances(related(8), "soft_matching")
    ours = found.embedding(2)
    start = classical_scaling(found.distances, 2)
    theirs, _ = smacof(found.distances.numpy(), n_components=2, init=start.numpy(), n_init=1, max_iter=3000, eps=1e-12)
    moved = torch.tensor(theirs)
    missed = lambda p: float((found.distances - torch.cdist(p, p)).square().sum())
    assert missed(ours.points) == pytest.approx(missed(moved), rel=1e-4)
    assert missed(ours.points) <= missed(start) + 1e-12
    assert missed(majorised(found.distances, ours.points)) == pytest.approx(missed(ours.points), rel=1e-6)


def test_equal_networks_are_one_point():
    x = normal(20, 3)
    found = distances({"a": x, "b": x.clone(), "c": x.clone()}, "linear_cka")
    assert found.embedding().points.abs().max() < 1e-6
    assert not found.embedding().points.isnan().any()


def test_results_are_saved_printed_and_shown(tmp_path):
    found = distances(related(), "pwcca")
    again = Distances.load(found.save(tmp_path / "d.json"))
    assert torch.equal(again.distances, found.distances) and again.to_dict() == found.to_dict()
    assert again.summary() == found.summary() and "nearest" in found.summary() and "directed" in found.summary()
    frame = found.to_frame()
    assert len(frame) == 20 and set(frame) == {"a", "b", "score", "distance"}
    points = found.embedding()
    assert Embedding.load(points.save(tmp_path / "e.json")).to_dict() == points.to_dict()
    assert list(points.to_frame()) == ["name", "x1", "x2"] and "stress" in repr(points)
    text = found.to_html(tmp_path / "d.html").read_text()
    assert "PWCCA" in text and "net 3" in text and "Stress" in text
    assert render(page_of(load_result(tmp_path / "d.json"))) == text


def test_bad_input_is_explained():
    x = normal(20, 3)
    for error, message, call in (
        (ValueError, "at least two. Got 1", lambda: distances({"x": x})),
        (TypeError, "features of 'n' cannot be compared: .*must be a tensor", lambda: distances({"x": x, "n": 3})),
        (ValueError, "features of 'y' cannot be compared: .*constant", lambda: distances({"x": x, "y": 0 * x + 1})),
        (ValueError, "same examples", lambda: distances({"x": x, "y": x[:10]})),
        (ValueError, "dimensions must be at least 1", lambda: distances({"x": x, "y": x}).embedding(0)),
    ):
        with pytest.raises(error, match=message):
            call()
