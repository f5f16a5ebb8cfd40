"""Overlap of active sub-networks: the number of paths that two inputs share, an invariant of positive scalings."""

from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..networks.gated import check_hard
from .path.path_kernel import neural_path_kernel


@in_usual_mode
def overlap(model: nn.Module, x: Tensor, y: Tensor | None = None, *, log: bool = False) -> Tensor:
    """Overlap of active sub-networks: how many paths are active for both inputs (P2 definition 2.2), not enumerated.

    It is the path kernel with constant input 1: paths from all sources are counted, those of biases too, and where
    layers share weights between positions, pairs of paths in one bundle. Hard gates do not change when a unit is scaled
    by a positive number and are permuted with the units, so the overlap is the same for every network that
    ``iw.symmetries`` reaches by permutations and positive scalings: an invariant of ``G_ReLU``. Soft gates
    ``sigmoid(beta q)`` do change, and are refused.

    Args:
        model: A ReLU network, or a gated network with hard gates.
        x: Inputs ``(N, C, *S)``.
        y: Inputs ``(M, C, *S)``; ``x`` itself without.
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
