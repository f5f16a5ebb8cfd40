"""Best pairings of units: linear assignments, and couplings if one side has more units."""

from math import inf, lcm, log

import torch
from torch import Tensor

from ..errors import MissingExtraError

__all__ = ["assign", "assign_nearly", "couple", "stochastic"]

_EXACT = 512  # units up to which the assignment is always solved exactly
_SETTLED = 1e-6  # largest error of the logarithm of a row sum
_PRICED, _COOL, _ROUNDS = 256, 0.06, 10  # units from which on prices pay off, deviations of a temperature, iterations
_PREFERRED = 0.1  # share of units that prefer each other, below which the others are solved exactly


def assign(gain: Tensor, fast: bool = False) -> Tensor:
    """The permutations with the largest total gain, ``max_p Σ_i gain[..., i, p[i]]``.

    ``p`` is int64 ``(..., n)`` on the device of ``gain``; the assignment itself runs on the CPU. ``-inf`` forbids a
    pair. ``fast`` uses the algorithm of Jonker and Volgenant from the extra ``[fast]`` instead of SciPy's: the same
    optimum, up to ties, and faster from some 2,000 units on.

    Raises:
        ValueError: If every permutation uses a forbidden pair.
    """  # noqa: DOC502 - raised by what it calls
    order, (n, m) = torch.zeros(gain.shape[:-1], dtype=torch.int64), gain.shape[-2:]
    for out, one in zip(order.view(-1, n), gain.detach().cpu().reshape(-1, n, m)) if gain.numel() else ():
        out.copy_(_solved(one, fast))
    return order.to(gain.device)


def assign_nearly(gain: Tensor, fast: bool = False) -> Tensor:
    """A permutation with almost the largest total gain: mutually preferred pairs, then the assignment of the rest.

    Maps ``(n, n)`` to ``(n,)``, like ``assign``. Up to 512 units it is the optimum. Costs with few degrees of freedom,
    such as distances of profiles, have many near ties, on which an exact assignment of thousands of units takes long.
    """
    device, gain = gain.device, gain.detach().cpu()
    order = torch.empty(len(gain), dtype=torch.int64)
    rows = columns = torch.arange(len(gain))
    left = gain
    while len(left) > _EXACT:
        beside = left - 0.5 * left.amax(1, keepdim=True)  # units that all prefer compete
        beside -= 0.5 * left.amax(0, keepdim=True)
        best = beside.argmax(1)
        mutual = beside.argmax(0)[best] == torch.arange(len(left))
        del beside
        order[rows[mutual]] = columns[best[mutual]]
        kept = torch.ones(len(left), dtype=torch.bool).index_fill_(0, best[mutual], value=False)
        rows, columns = rows[~mutual], columns[kept]
        left = gain[rows][:, columns]
        if int(mutual.sum()) < _PREFERRED * len(mutual):
            break
    order[rows] = columns[assign(left, fast)]
    return order.to(device)


def couple(gain: Tensor) -> Tensor:
    """Masses ``T`` moved between units of masses ``1 / n`` and ``1 / m`` that maximise ``sum_ij T_ij gain_ij``.

    Exact: an assignment between copies of the units, ``lcm(n, m)`` on each side; float64 ``(n, m)``.
    """
    copies = lcm(*gain.shape)
    rows, columns = (torch.arange(n, device=gain.device).repeat_interleave(copies // n) for n in gain.shape)
    index = rows, columns[assign(gain[rows][:, columns])]
    masses = torch.zeros_like(gain, dtype=torch.float64)
    return masses.index_put(index, masses.new_tensor(1 / copies), accumulate=True)


def stochastic(scores: Tensor, iterations: int) -> tuple[Tensor, bool]:
    """``log(diag(u) exp(X) diag(v))`` with rows summing to 1 and columns to ``n / m``, by Sinkhorn's iteration.

    ``scores`` are ``X``, ``(..., n, m)``. Also returns whether all rows sum to 1 within 1e-6, as columns always do.
    """
    share, settled = log(scores.shape[-2] / scores.shape[-1]), False
    for _ in range(iterations):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True) + share
        settled = bool((scores.logsumexp(-1).abs() < _SETTLED).all())
        if settled:
            break
    return scores, settled


def _solved(gain: Tensor, fast: bool) -> Tensor:
    """Best assignment of one matrix in float64, by SciPy or by the extra ``[fast]``."""
    if fast:
        try:
            from lap import lapjv
        except ImportError:
            raise MissingExtraError("lapx", "fast") from None
        return torch.as_tensor(lapjv(gain.double().neg().numpy())[1], dtype=torch.int64)
    best, order = gain.max(1)
    if len(set(order.tolist())) == len(order) and best.isfinite().all():
        return order
    from scipy.optimize import linear_sum_assignment

    cost = gain.to(torch.float64, copy=True).neg_()
    if _PRICED <= len(gain) == gain.shape[1]:
        cost += _prices(gain.float())
    try:
        return torch.from_numpy(linear_sum_assignment(cost.numpy())[1])
    except ValueError:
        raise ValueError(
            "gain must allow at least one permutation. Got forbidden pairs (-inf) in every one, or NaN."
        ) from None


def _prices(gain: Tensor) -> Tensor:
    """A price for each column, ``(n,)`` in float64: every permutation pays all of them, so the best stays the best.

    At the prices of Sinkhorn's iteration few rows want the same column, so the best is found in a third of the time.
    """
    step = _COOL * float(gain.std())
    if not 0 < step < inf:  # all equal, or forbidden pairs
        return torch.zeros(len(gain))
    kernel = ((gain - gain.amax(1, keepdim=True)) / step).clamp_(min=-80).exp_()  # in the range of float32
    held = kernel.new_ones(len(gain))
    for _ in range(_ROUNDS):
        held = 1 / (1 / (kernel @ held).clamp(min=1e-30) @ kernel).clamp(min=1e-30)
    return held.double().log() * -step
