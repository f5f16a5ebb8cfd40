"""CKA and HSIC: estimators by brute force, the numbers that must hold, edges."""

from math import sqrt

import pytest
import similarity_references as slow
import torch
from numeric import normal
from torch import nn

from intertwine.similarity import CKA, cka, hsic, kernel_names, measure, prepare_gram
from intertwine.similarity.hsic import center_gram
from intertwine.similarity.measures.kernels import max_gram


def gram(seed, n=7, offset=0.0):
    x = normal(n, 3, seed=seed) + offset
    return x @ x.T


def test_unbiased_hsic_is_the_mean_over_distinct_quadruples():
    k, l = gram(0), gram(1)
    assert hsic(k, l) == pytest.approx(slow.hsic_unbiased_by_quadruples(k, l))


def test_biased_hsic_is_its_trace():
    k, l = gram(0), gram(1)
    assert hsic(k, l, "biased") == pytest.approx(slow.hsic_biased(k, l))


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
def test_centring_ignores_additive_effects_and_commutes_with_taking_examples(estimator):
    k, a = gram(0, 12), normal(12, seed=5)
    shifted = k + a[:, None] + a + 3
    torch.testing.assert_close(center_gram(shifted, estimator), center_gram(k, estimator))
    some = torch.tensor([5, 1, 8, 3, 10])
    again = center_gram(center_gram(k, estimator)[some][:, some], estimator)
    torch.testing.assert_close(again, center_gram(k[some][:, some], estimator))


def test_hsic_keeps_its_digits_under_a_large_mean():
    x = normal(50, 3).float()
    assert cka(x + 1e4, x + 1e4 + 0.5 * normal(50, 3, seed=1).float()) == pytest.approx(
        cka(x, x + 0.5 * normal(50, 3, seed=1).float()), abs=0.02
    )


def test_agrees_with_the_torch_cka_package_on_one_batch():
    """That package is right where one batch holds all data and features are flat."""
    torch_cka = pytest.importorskip("torch_cka")
    first, second = nn.Sequential(nn.Linear(6, 5)), nn.Sequential(nn.Linear(6, 4))
    data = normal(50, 6, dtype=torch.float32)
    theirs = torch_cka.CKA(first, second, model1_layers=["0"], model2_layers=["0"], device="cpu")
    theirs.compare(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, data), batch_size=50))
    assert cka(first(data), second(data)) == pytest.approx(float(theirs.export()["CKA"]), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_cka_sees_no_rotation(dtype):
    x = normal(100, 32, dtype=dtype)
    q = torch.linalg.qr(normal(32, 32, seed=1)).Q.to(dtype)
    assert cka(x, x @ q) == pytest.approx(1, abs=1e-6)
    assert cka(x * torch.linspace(0.2, 3, 32), (x * torch.linspace(0.2, 3, 32)) @ q, "channel_normalized") < 0.9


def test_resolutions_and_widths_may_differ():
    x = normal(40, 6, 4, 4)
    pooled = nn.functional.avg_pool2d(x, 2)[:, :3]
    for kernel in kernel_names():
        assert 0.02 < cka(x, pooled, kernel) < 1


def test_all_pairs_are_one_matrix_product():
    m = measure("linear_cka")
    sides = [m.prepare(normal(30, 4, seed=s)) for s in range(3)]
    flat = torch.stack([s.gram.flatten() for s in sides])
    for i in range(3):
        for j in range(3):
            assert float(flat[i] @ flat[j]) == pytest.approx(m.score(sides[i], sides[j]))


def test_a_gram_that_tells_nothing_apart_is_refused():
    one_hot = torch.eye(10)
    with pytest.raises(ValueError, match=r"tell examples apart. Got a Gram matrix that is constant"):
        cka(one_hot, one_hot)
    with pytest.raises(ValueError, match=r"gram must be finite"):
        prepare_gram(torch.full((5, 5), torch.nan))


def test_wrong_arguments():
    x = normal(10, 3)
    with pytest.raises(ValueError, match=r"estimator must be one of 'unbiased', 'biased'. Got 'debiased'"):
        cka(x, x, estimator="debiased")
    with pytest.raises(ValueError, match=r"k must be a square Gram matrix"):
        hsic(x, x)
    with pytest.raises(ValueError, match=r"of the same examples. Got 7 and 6"):
        hsic(gram(0), gram(1, 6))
    with pytest.raises(ValueError, match=r"at least 4 for the unbiased estimator. Got 3"):
        hsic(gram(0, 3), gram(1, 3))
    with pytest.raises(ValueError, match=r"prepared for the biased estimator. Got unbiased and unbiased"):
        CKA("linear", "biased").score(CKA().prepare(x), CKA().prepare(x))


def test_biased_max_cka_may_be_negative_and_says_so():
    assert CKA("max", "biased").range == (-1, 1) and CKA("linear", "biased").range == (0, 1)


def test_max_cka_of_noise_stays_at_zero_as_channels_grow():
    """v2 D.8: the maximum over more channels drifts, as sqrt(2 log C); its CKA does not."""
    means = []
    for c in (16, 256):
        x, y = normal(150, c), normal(150, c, seed=1)
        off = max_gram(x)[torch.ones(150, 150).tril(-1).bool()]
        means.append(float(off.mean()))
        assert abs(cka(x, y, "max")) < 0.05
    assert means[1] > 1.5 * means[0] and means[1] < 3 * sqrt(2 * 5.6)


def test_max_cka_of_noisy_copies_falls_as_channels_grow():
    """v2 D.8 suspects it: at one noise level the CKA of the max kernel falls with width, others stay."""
    scores = {kernel: [] for kernel in ("max", "laplace", "linear")}
    for c in (16, 64, 256):
        x = normal(300, c)
        y = x + normal(300, c, seed=1)
        for kernel, found in scores.items():
            found.append(cka(x, y, kernel))
    assert scores["max"][0] > scores["max"][1] + 0.05 > scores["max"][2] + 0.07
    for kernel in ("laplace", "linear"):
        assert max(scores[kernel]) - min(scores[kernel]) < 0.06
