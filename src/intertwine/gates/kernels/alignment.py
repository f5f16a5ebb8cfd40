"""Uses of path kernels: the overlap of two inputs, the centred alignment of two networks, ridge regression."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ...features.evaluate import correct
from ..gated_network import check_hard
from .path_kernel import neural_path_kernel


@in_usual_mode
def overlap(model: nn.Module, x: Tensor, y: Tensor | None = None, *, log: bool = False) -> Tensor:
    """Overlap of active sub-networks: the number of paths active for both inputs (P2 definition 2.2), not enumerated.

    It is the path kernel with constant input 1: paths from all sources are counted, those of biases too, and pairs of
    paths in one bundle if layers share weights between positions. Hard gates do not change when a unit is scaled by a
    positive number and are permuted with the units, so the overlap is an invariant of ``G_ReLU``.

    Args:
        model: A ReLU network, or a gated network with hard gates.
        x: Inputs ``(N, C, *S)``.
        y: Inputs ``(M, C, *S)``; by default ``x`` itself.
        log: Return natural logarithms, ``-inf`` where nothing overlaps.

    Returns:
        Counts ``(N, M)`` in float64.

    Raises:
        ValueError: If the gates are soft.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> overlap(model, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))  # two inputs times active units
        tensor([[4., 2.],
                [2., 2.]], dtype=torch.float64)
    """  # noqa: DOC502 - raised by the check
    check_hard(model, "model")
    found = neural_path_kernel(model, x, y, input="ones", log=log)
    return found[0] if isinstance(found, tuple) else found


def npk_alignment(a: nn.Module, b: nn.Module, x: Tensor, *, input: str = "x", output: int = 0) -> float:
    """Similarity of two networks by what they switch on: the alignment of their neural path kernels.

    One number for two networks of any architectures, invariant under every permutation and positive scaling of hidden
    units of either. The weights of the last layers play no part except through the gates.

    Args:
        a: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network with hard gates.
        b: Another such network; its inputs have the same shape.
        x: Inputs ``(N, C, *S)``, at least 4.
        input: ``"x"``, or ``"ones"`` to count shared paths whatever the inputs at their sources.
        output: Which output the paths lead to.

    Returns:
        1 for networks that are the same up to symmetry, about 0 for kernels that have nothing in common.

    Raises:
        ValueError: If a network's gates are soft, or there are fewer than 4 inputs.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> make = lambda: nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> a, b, x = make(), make(), torch.randn(30, 3)
        >>> round(npk_alignment(a, a, x), 6), 0.5 < npk_alignment(a, b, x) < 1
        (1.0, True)
    """
    if len(x) < 4:
        raise ValueError(f"x must be (N, C, *S) with N at least 4. Got N = {len(x)}.")
    kernels = []
    for name, model in (("a", a), ("b", b)):
        check_hard(model, name)
        kernels.append(unscaled(*neural_path_kernel(model, x, input=input, log=True, output=output)))
    return kernel_alignment(*kernels)


def unscaled(log: Tensor, sign: Tensor) -> Tensor:
    """A kernel of any depth divided by its largest entry; 0 where no path is on."""
    top = log.max()
    return sign * (log - top).exp() if top.isfinite() else torch.zeros_like(log)


def kernel_alignment(k: Tensor, l: Tensor) -> float:
    """Centred alignment of two kernels of the same examples, by the unbiased HSIC.

    Args:
        k: Symmetric ``(N, N)``, N at least 4.
        l: Symmetric ``(N, N)``.

    Returns:
        ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))``, without diagonals: what is the same for all pairs, and what an
        example shares with itself, carries no information.

    Raises:
        ValueError: If the kernels are not square matrices of one size, too small, or constant.

    References:
        Song, Smola, Gretton, Bedo, Borgwardt, "Feature selection via dependence maximization", JMLR 2012.

    Examples:
        >>> k = torch.eye(6) + torch.arange(6.0).outer(torch.arange(6.0))
        >>> round(kernel_alignment(k, 5 * k + 2), 6)
        1.0
    """
    for name, kernel in (("k", k), ("l", l)):
        if kernel.dim() != 2 or kernel.shape[0] != kernel.shape[1] or len(kernel) < 4:
            raise ValueError(f"{name} must be (N, N) with N at least 4. Got shape {tuple(kernel.shape)}.")
    if k.shape != l.shape:
        raise ValueError(f"k and l must be kernels of the same examples. Got {len(k)} and {len(l)}.")
    a, b = _centred(k), _centred(l)
    size = float(a.norm() * b.norm())
    if not size > 0:
        raise ValueError("kernels must tell examples apart. Got one that is the same for all pairs of examples.")
    return float((a * b).sum()) / size


def _centred(kernel: Tensor) -> Tensor:
    """U-centred in float64: rows without their diagonal sum to 0; all 0 where only rounding is left."""
    n = len(kernel)
    whole = kernel.double()
    k = (whole / whole.abs().max().clamp_min(torch.finfo(torch.float64).tiny)).fill_diagonal_(0)  # its square is finite
    rows = k.sum(1) / (n - 2)
    centred = (k - rows[:, None] - rows[None] + k.sum() / ((n - 1) * (n - 2))).fill_diagonal_(0)
    rounding = 8 * torch.finfo(torch.float64).eps * k.norm()
    return centred if centred.norm() > rounding else torch.zeros_like(centred)


RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class KernelRegression:
    """A fitted ridge regression.

    Attributes:
        strength: The chosen ridge, in units of the kernel's mean diagonal.
        accuracies: Accuracy of each candidate over the held-out folds; empty if there was nothing to choose.
        weights: ``(K + ridge I)^-1 Y`` ``(N, classes)``.
    """

    strength: float
    accuracies: dict[float, float]
    weights: Tensor = field(repr=False)

    def predict(self, kernel: Tensor) -> Tensor:
        """Classes ``(M,)`` of new examples, by ``kernel`` ``(M, N)`` between new and training examples.

        Raises:
            ValueError: If the kernel does not have a column for each of the ``N`` training examples.
        """  # noqa: DOC502 - raised by what it calls
        return self._logits(kernel).argmax(1).cpu()

    def accuracy(self, kernel: Tensor, labels: Tensor) -> float:
        """Share of new examples that are classified correctly, by a kernel as for ``predict`` and classes ``(M,)``."""
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

    ``f(x) = K(x, X) (K + lambda I)^-1 Y`` with ``Y`` the classes' indicators minus ``1 / classes``, and ``lambda`` in
    units of the kernel's mean diagonal, since path kernels have any size. It is the candidate with the best accuracy
    over stratified folds of the training examples (the larger one, if several); nothing else is used.

    Args:
        kernel: Kernel between training examples ``(N, N)``, symmetric.
        labels: Their classes ``(N,)``, from 0.
        strengths: Ridges to choose from; with one, nothing is chosen.
        folds: Number of folds.
        seed: Seed of the folds.

    Returns:
        The fitted method, for kernels between new and training examples.

    Raises:
        ValueError: If the kernel is not a finite symmetric ``(N, N)`` matrix with a positive diagonal, labels do not
            match it, or an option is out of range.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]])
        >>> fit = kernel_regression(x @ x.T, torch.tensor([0, 0, 1, 1]), folds=2)
        >>> fit.predict(torch.tensor([[0.2, 2.0]]) @ x.T)
        tensor([0])
    """  # noqa: DOC502 - raised by _check()
    candidates = sorted(strengths, reverse=True)
    _check(kernel, labels, candidates, folds)
    matrix, labels = kernel.detach().double(), labels.to(kernel.device, torch.long)
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
