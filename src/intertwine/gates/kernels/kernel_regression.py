"""Ridge regression on precomputed kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ...features.evaluate import correct

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class KernelRegression:
    """A fitted ridge regression.

    Attributes:
        strength: The chosen ridge, in units of the kernel's mean diagonal.
        accuracies: Accuracy of each candidate over the held-out folds; empty where there was nothing to choose.
        weights: ``(K + ridge I)^-1 Y`` ``(N, classes)``.
    """

    strength: float
    accuracies: dict[float, float]
    weights: Tensor = field(repr=False)

    def predict(self, kernel: Tensor) -> Tensor:
        """Classes ``(M,)`` of new examples, by ``kernel`` ``(M, N)`` between new and training examples.

        Raises:
            ValueError: If the kernel is not with the ``N`` training examples.
        """  # noqa: DOC502 - raised by what it calls
        return self._logits(kernel).argmax(1).cpu()

    def accuracy(self, kernel: Tensor, labels: Tensor) -> float:
        """Share of new examples that are named rightly; as ``predict``, with their classes ``(M,)``."""
        return float(correct(self._logits(kernel), labels).double().mean())

    def _logits(self, kernel: Tensor) -> Tensor:
        if kernel.dim() != 2 or kernel.shape[1] != len(self.weights):
            raise ValueError(
                f"kernel must be (M, {len(self.weights)}), new examples by training. Got {tuple(kernel.shape)}."
            )
        return kernel.detach().double() @ self.weights.to(kernel.device)


def kernel_regression(
    kernel: Tensor, labels: Tensor, *, strengths: Sequence[float] = RIDGES, folds: int = 5, seed: int = 0
) -> KernelRegression:
    """Fit what an infinitely wide network with these gates would learn (P2 sections 2.2.3, 2.2.4).

    ``f(x) = K(x, X) (K + lambda I)^-1 Y`` with ``Y`` the classes' indicators less ``1 / classes``, and ``lambda`` in
    units of the kernel's mean diagonal, since path kernels have any size. It is the candidate with the best accuracy
    over stratified folds of the training examples (the larger one, if several); nothing else is looked at.

    Args:
        kernel: Between training examples ``(N, N)``, symmetric.
        labels: Their classes ``(N,)``, from 0.
        strengths: Ridges to choose from; with one, nothing is chosen.
        folds: Number of folds.
        seed: Of the folds.

    Returns:
        The fitted method, for kernels between new and training examples.

    Raises:
        ValueError: If the kernel is no finite symmetric ``(N, N)`` matrix with a positive diagonal, labels do not
            match it, or an option is out of range.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]])
        >>> fit = kernel_regression(x @ x.T, torch.tensor([0, 0, 1, 1]), folds=2)
        >>> fit.predict(torch.tensor([[0.2, 2.0]]) @ x.T)
        tensor([0])
    """  # noqa: DOC502 - raised by _check()
    candidates = sorted(strengths, reverse=True)
    _check(kernel, labels, candidates, folds)
    matrix, labels = kernel.detach().double(), labels.to(kernel.device)
    scale = float(matrix.diagonal().mean())
    targets = F.one_hot(labels).double() - 1 / (int(labels.max()) + 1)
    accuracies: dict[float, float] = {}
    if len(candidates) > 1:
        right = dict.fromkeys(candidates, 0)
        for kept, held in _folds(labels, folds, seed):
            fitted = _weights(matrix[kept][:, kept], targets[kept], [s * scale for s in candidates])
            for strength, weights in zip(candidates, fitted):
                right[strength] += int(correct(matrix[held][:, kept] @ weights, labels[held]).sum())
        accuracies = {s: count / len(labels) for s, count in right.items()}
    best = max(accuracies, key=lambda s: accuracies[s]) if accuracies else candidates[0]
    return KernelRegression(best, accuracies, _weights(matrix, targets, [best * scale])[0])


def _weights(matrix: Tensor, targets: Tensor, ridges: Sequence[float]) -> list[Tensor]:
    """``(K + ridge I)^-1 Y`` for several ridges, from one eigendecomposition."""
    values, vectors = torch.linalg.eigh(matrix)
    turned = vectors.T @ targets
    return [vectors @ (turned / (values + ridge)[:, None]) for ridge in ridges]


def _folds(labels: Tensor, folds: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    from sklearn.model_selection import StratifiedKFold

    classes = labels.cpu().numpy()
    split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(classes, classes)
    return [(torch.from_numpy(kept), torch.from_numpy(held)) for kept, held in split]


def _check(kernel: Tensor, labels: Tensor, strengths: Sequence[float], folds: int) -> None:
    """Check everything before the long work."""
    if kernel.dim() != 2 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"kernel must be (N, N), between training examples. Got {tuple(kernel.shape)}.")
    if not torch.isfinite(kernel).all() or not kernel.diagonal().double().mean() > 0:
        raise ValueError("kernel must be finite with a positive diagonal. Got NaN, infinite or no positive entries.")
    if not torch.allclose(kernel, kernel.T, rtol=1e-3, atol=1e-5 * float(kernel.abs().max())):
        raise ValueError("kernel must be symmetric. Got one that is not: is it between training and new examples?")
    if labels.shape != kernel.shape[:1] or labels.is_floating_point() or int(labels.min()) < 0:
        raise ValueError(f"labels must be N = {len(kernel)} whole numbers from 0. Got shape {tuple(labels.shape)}.")
    if len(labels.unique()) < 2:
        raise ValueError("labels must hold at least two classes. Got one.")
    if not strengths or not all(s > 0 for s in strengths):
        raise ValueError(f"strengths must be positive. Got {tuple(strengths)}.")
    smallest = int(labels.unique(return_counts=True)[1].min())
    if len(strengths) > 1 and not 2 <= folds <= smallest:
        raise ValueError(
            f"folds must be at least 2 and at most the examples of the smallest class ({smallest}). Got {folds}. "
            "Give one strength to choose none."
        )
