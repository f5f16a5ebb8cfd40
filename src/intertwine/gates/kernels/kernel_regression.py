"""Ridge regression and support vector machines on precomputed kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["KernelRegression", "kernel_regression"]

Method = Literal["ridge", "svm"]

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
COSTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class KernelRegression:
    """A fitted kernel method.

    Attributes:
        method: ``"ridge"`` or ``"svm"``.
        strength: The chosen ridge, in units of the kernel's mean diagonal; or the chosen cost of the SVM.
        accuracies: Accuracy of each candidate over the held-out folds; empty where there was nothing to choose.
        scale: Mean diagonal of the kernel that it was fitted to, by which all kernels are divided.
        classes: Number of classes.
        model: The scikit-learn estimator.
    """

    method: Method
    strength: float
    accuracies: dict[float, float]
    scale: float
    classes: int
    model: Any

    def predict(self, kernel: Tensor) -> Tensor:
        """Classes of new examples.

        Args:
            kernel: Between new and training examples, ``(M, N)``.

        Returns:
            Class of each ``(M,)``.

        Raises:
            ValueError: If the kernel is not with the ``N`` training examples.
        """
        found = self.model.n_features_in_ if self.method == "svm" else len(self.model.dual_coef_)
        if kernel.dim() != 2 or kernel.shape[1] != found:
            raise ValueError(f"kernel must be (M, {found}), new examples by training. Got {tuple(kernel.shape)}.")
        predicted = self.model.predict(_array(kernel, self.scale))
        return torch.from_numpy(predicted.argmax(1) if self.method == "ridge" else predicted).long()

    def accuracy(self, kernel: Tensor, labels: Tensor) -> float:
        """Share of new examples that are named rightly.

        Args:
            kernel: Between new and training examples, ``(M, N)``.
            labels: Their classes ``(M,)``.

        Returns:
            Between 0 and 1.
        """
        return float((self.predict(kernel) == labels.cpu()).double().mean())

    def __repr__(self) -> str:
        return f"KernelRegression({self.method}, strength={self.strength:g}, classes={self.classes})"


def kernel_regression(
    kernel: Tensor,
    labels: Tensor,
    *,
    method: Method = "ridge",
    strengths: Sequence[float] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> KernelRegression:
    """Fit a kernel method: what an infinitely wide network with these gates would learn (P2 sections 2.2.3, 2.2.4).

    ``f(x) = K(x, X) (K + lambda I)^-1 Y`` with ``Y`` the classes' indicators less ``1 / classes``, or a support vector
    machine, one against one; both are scikit-learn's, on a precomputed kernel. The kernel is divided by its mean
    diagonal, since path kernels have any size, so ridges compare between kernels. The strength is the candidate with
    the best accuracy over stratified folds of the training examples (the more regular one, if several); nothing else
    is looked at.

    Args:
        kernel: Between training examples ``(N, N)``, symmetric.
        labels: Their classes ``(N,)``, from 0.
        method: ``"ridge"`` or ``"svm"``.
        strengths: Ridges, or costs of the SVM, to choose from; with one, nothing is chosen.
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
    candidates = tuple(strengths or (RIDGES if method == "ridge" else COSTS))
    _check(kernel, labels, method, candidates, folds)
    scale = float(kernel.diagonal().double().mean())
    matrix, classes, answers = _array(kernel, scale), int(labels.max()) + 1, labels.cpu().numpy()
    accuracies: dict[float, float] = {}
    if len(candidates) > 1:
        ordered = sorted(candidates, reverse=method == "ridge")  # the most regular first
        accuracies = _over_folds(matrix, answers, classes, method, ordered, folds, seed)
    best = max(accuracies, key=lambda s: accuracies[s]) if accuracies else candidates[0]
    return KernelRegression(method, best, accuracies, scale, classes, _fit(matrix, answers, classes, method, best))


def _over_folds(
    matrix: Any, labels: Any, classes: int, method: Method, strengths: Sequence[float], folds: int, seed: int
) -> dict[float, float]:
    from sklearn.model_selection import StratifiedKFold

    splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels))
    right: Callable[[float, Any, Any], int] = lambda strength, kept, held: _right(
        _fit(matrix[kept][:, kept], labels[kept], classes, method, strength), matrix[held][:, kept], labels[held]
    )
    return {s: sum(right(s, kept, held) for kept, held in splits) / len(labels) for s in strengths}


def _right(model: Any, matrix: Any, labels: Any) -> int:
    predicted = model.predict(matrix)
    return int(((predicted.argmax(1) if predicted.ndim == 2 else predicted) == labels).sum())


def _fit(matrix: Any, labels: Any, classes: int, method: Method, strength: float) -> Any:
    import numpy as np
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.svm import SVC

    if method == "svm":
        return SVC(C=strength, kernel="precomputed").fit(matrix, labels)
    return KernelRidge(alpha=strength, kernel="precomputed").fit(matrix, np.eye(classes)[labels] - 1 / classes)


def _array(kernel: Tensor, scale: float) -> Any:
    return (kernel.detach().double() / scale).cpu().numpy()


def _check(kernel: Tensor, labels: Tensor, method: str, strengths: Sequence[float], folds: int) -> None:
    """Check everything before the long work.

    Raises:
        ValueError: If something is wrong.
    """
    if method not in ("ridge", "svm"):
        raise ValueError(f'method must be "ridge" or "svm". Got {method!r}.')
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
    if not all(s > 0 for s in strengths):
        raise ValueError(f"strengths must be positive. Got {tuple(strengths)}.")
    smallest = int(labels.unique(return_counts=True)[1].min())
    if len(strengths) > 1 and not 2 <= folds <= smallest:
        raise ValueError(
            f"folds must be at least 2 and at most the examples of the smallest class ({smallest}). Got {folds}. "
            "Give one strength to choose none."
        )
