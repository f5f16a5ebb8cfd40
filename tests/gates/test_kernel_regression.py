import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import intertwine as iw


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    x, y = torch.from_numpy(bunch.images).flatten(1) / 16, torch.from_numpy(bunch.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))  # its writers come one after another
    x, y = x[order], y[order]
    return x[:400], y[:400], x[400:700], y[400:700]


def test_ridge_is_the_formula(digits):
    x, y, new, _ = digits
    kernel = x @ x.T
    fit = iw.gates.kernel_regression(kernel, y, strengths=[0.01])
    ridge = 0.01 * kernel.diagonal().mean() * torch.eye(len(x), dtype=torch.float64)
    targets = nn.functional.one_hot(y, 10).double() - 0.1
    weights = torch.linalg.solve(kernel + ridge, targets)
    torch.testing.assert_close(fit.weights, weights, rtol=1e-6, atol=1e-9 * float(weights.abs().max()))
    expected = (new @ x.T) @ weights
    assert torch.equal(fit.predict(new @ x.T), expected.argmax(1))
    assert fit.strength == 0.01 and fit.accuracies == {}
    narrow = iw.gates.kernel_regression(kernel, y.byte(), strengths=[0.01])
    assert torch.equal(narrow.weights, fit.weights)


def test_size_of_the_kernel_does_not_matter(digits):
    x, y, new, _ = digits
    a = iw.gates.kernel_regression(x @ x.T, y)
    b = iw.gates.kernel_regression(1e9 * (x @ x.T), y)
    assert a.strength == b.strength and torch.equal(a.predict(new @ x.T), b.predict(1e9 * (new @ x.T)))


def test_strength_is_chosen_by_folds_of_the_training_examples(digits):
    """By hand, with other code; and the choice must not be at the edge for a kernel that needs a ridge."""
    x, y, _, _ = digits
    noisy = y.clone()
    generator = torch.Generator().manual_seed(0)
    wrong = torch.randperm(len(y), generator=generator)[:120]
    noisy[wrong] = torch.randint(0, 10, (120,), generator=generator)
    kernel = (-(torch.cdist(x, x) ** 2) / 4).exp()
    fit = iw.gates.kernel_regression(kernel, noisy, folds=4, seed=3)
    from sklearn.model_selection import StratifiedKFold

    folds = list(StratifiedKFold(4, shuffle=True, random_state=3).split(noisy, noisy))
    for strength, found in fit.accuracies.items():
        right = 0
        for kept, held in folds:
            targets = nn.functional.one_hot(noisy[kept], 10).double() - 0.1
            inner = kernel[kept][:, kept] + strength * torch.eye(len(kept), dtype=torch.float64)
            predicted = (kernel[held][:, kept] @ torch.linalg.solve(inner, targets)).argmax(1)
            right += int((predicted == noisy[held]).sum())
        assert found == pytest.approx(right / len(y))
    assert fit.accuracies[fit.strength] == max(fit.accuracies.values()) and fit.strength > 1e-6


def test_same_seed_same_choice_and_ties_go_to_the_more_regular():
    x = torch.eye(2).repeat_interleave(6, 0)
    labels = torch.tensor([0] * 6 + [1] * 6)
    assert iw.gates.kernel_regression(x @ x.T, labels, folds=3).strength == 1.0


def test_path_kernel_of_fixed_gates_classifies(digits):
    """An infinitely wide network with the gates of a random one; the linear kernel of the input is worse."""
    x, y, new, truth = digits
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).double()
    kernel, cross = iw.gates.neural_path_kernel(model, x), iw.gates.neural_path_kernel(model, new, x)
    found = iw.gates.kernel_regression(kernel, y).accuracy(cross, truth)
    assert found > 0.9
    assert found > iw.gates.kernel_regression(x @ x.T, y).accuracy(new @ x.T, truth)


def test_bad_arguments(digits):
    x, y, new, _ = digits
    fit = iw.gates.kernel_regression
    with pytest.raises(ValueError, match=r"kernel must be \(N, N\)"):
        fit(new @ x.T, y)
    with pytest.raises(ValueError, match="must be symmetric"):
        fit(new @ x[:300].T, y[:300])
    with pytest.raises(ValueError, match="positive diagonal"):
        fit(torch.full((4, 4), float("nan")), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="labels must be N = 400 whole numbers"):
        fit(x @ x.T, y[:5])
    with pytest.raises(ValueError, match="at least two classes"):
        fit(x @ x.T, torch.zeros(400, dtype=torch.long))
    with pytest.raises(ValueError, match="strengths must be positive"):
        fit(x @ x.T, y, strengths=[0.0])
    with pytest.raises(ValueError, match=r"smallest class \(1\). Got 5"):
        fit(torch.eye(3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"kernel must be \(M, 400\)"):
        fit(x @ x.T, y).predict(new @ new.T)
