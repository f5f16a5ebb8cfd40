"""Location-wise CKA against the CKA of all positions as rows."""

import pytest
import torch
from numeric import normal

from intertwine.similarity import cka, location_cka


def rows(x):
    return x.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("kernel", ["linear", "max", "channel_normalized"])
def test_is_the_cka_of_positions_as_examples(kernel):
    x = normal(10, 5, 3, 2).relu() + 0.01 * normal(10, 5, 3, 2, seed=3)
    y = x[:, :4] + normal(10, 4, 3, 2, seed=1)
    assert location_cka(x, y, kernel) == pytest.approx(cka(rows(x), rows(y), kernel))


def test_identical_features_score_one():
    x = normal(10, 5, 4, dtype=torch.float32)
    assert location_cka(x, x) == pytest.approx(1, abs=1e-6)


def test_positions_matter():
    x = normal(20, 6, 4, 4)
    assert location_cka(x, x.flip(2)) < 0.2
    assert cka(x, x.flip(2), "max") == pytest.approx(1)  # summed over space, the order of positions is nothing


def test_samples_are_seeded_and_estimate_the_whole():
    x = normal(60, 4, 4, 4)
    y = x + normal(60, 4, 4, 4, seed=1)
    whole = location_cka(x, y)
    some = [location_cka(x, y, samples=300, seed=s) for s in (0, 0, 1)]
    assert some[0] == some[1] != some[2]
    assert some[0] == pytest.approx(whole, abs=0.1)


def test_wrong_arguments():
    x = normal(10, 4, 4)
    with pytest.raises(ValueError, match=r"kernel must be one of 'linear'"):
        location_cka(x, x, "laplacian")
    with pytest.raises(ValueError, match=r"same spatial size. Got \(4,\) and \(2,\)"):
        location_cka(x, x[..., :2])
    with pytest.raises(ValueError, match=r"at least 4 examples.*Got 3"):
        location_cka(x, x, samples=3)
    one = torch.eye(8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"tell examples apart"):
        location_cka(one, one, "linear")
