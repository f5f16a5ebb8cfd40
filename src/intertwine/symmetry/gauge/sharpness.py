r"""Gradient norm and sharpness of a loss, the same for all symmetric copies of a network.

Rescaled copies of one network have the same loss and any gradient norm and sharpness (Dinh et al., 2017). Here both are
taken at one representative of all copies, the one in balanced coordinates: what remains of the symmetry there are
permutations, signs and rotations, which move weights without changing lengths.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ..._evaluation import in_usual_mode
from ..action import moved
from ..symmetry import Symmetry
from ..tangent import project
from .batch_norms import fold
from .canonical import balanced, check_weights

Loss = Callable[[dict[str, Tensor]], Tensor]


@in_usual_mode
def gradient_norm(sym: Symmetry, loss: Loss, state: Mapping[str, Tensor]) -> float:
    """Norm of the gradient in balanced coordinates.

    Args:
        sym: The symmetry of the architecture.
        loss: A function of the weights by name, such as one built with ``torch.func.functional_call``.
        state: The weights.
    """
    gradient = torch.func.grad(loss)(_balanced(sym, state))
    return float(sum(t.square().sum() for t in gradient.values())) ** 0.5


@in_usual_mode
def sharpness(sym: Symmetry, loss: Loss, state: Mapping[str, Tensor], seed: int = 0) -> float:
    """Largest eigenvalue of the Hessian in balanced coordinates, on directions orthogonal to all symmetric copies.

    Args:
        sym: The symmetry of the architecture.
        loss: A function of the weights by name, twice differentiable there.
        state: The weights.
        seed: Of the start of the Lanczos iteration.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    weights = _balanced(sym, state)
    sizes = {name: t.numel() for name, t in weights.items()}

    def split(flat: np.ndarray) -> dict[str, Tensor]:
        parts = torch.from_numpy(np.ascontiguousarray(flat).reshape(-1)).double().split(list(sizes.values()))
        return {name: part.reshape(weights[name].shape) for name, part in zip(sizes, parts)}

    def apply(flat: np.ndarray) -> np.ndarray:
        direction = project(sym, split(flat), weights)
        turned = torch.func.jvp(torch.func.grad(loss), (weights,), (direction,))[1]
        found = project(sym, turned, weights)
        return torch.cat([found[name].flatten() for name in sizes]).numpy()

    n = sum(sizes.values())
    start = np.random.default_rng(seed).standard_normal(n)
    values = eigsh(LinearOperator((n, n), matvec=apply, dtype=np.float64), k=1, which="LA", v0=start, tol=1e-8)[0]
    return float(values[0])


def _balanced(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All floating-point tensors in balanced coordinates, in float64."""
    check_weights(sym, state)
    wide = {n: t.detach().cpu().double() for n, t in state.items() if t.is_floating_point() and n not in sym.aliases}
    return {**wide, **moved(sym, balanced(fold(sym, wide)), wide)}
