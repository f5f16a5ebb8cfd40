"""Slow, obvious definitions against which the fast ones are tested."""

from itertools import permutations
from math import sqrt

import torch


def max_kernel(x):
    """Explicit N x N x C tensor of inner products over space, then the maximum over channels."""
    f = x.reshape(*x.shape[:2], -1)
    return torch.einsum("mcp,ncp->mnc", f, f).amax(-1)


def laplace_distance(x):
    """Sum over channels of the distance over space, by explicit differences."""
    f = x.reshape(*x.shape[:2], -1)
    return (f[:, None] - f[None]).norm(dim=-1).sum(-1)


def normalised(x):
    """Centred channels of norm 1."""
    others = [d for d in range(x.ndim) if d != 1]
    x = x - x.mean(others, keepdim=True)
    return x / x.square().sum(others, keepdim=True).sqrt()


def hsic_unbiased_by_quadruples(k, l):
    """HSIC_1 as the mean over ordered quadruples of distinct examples of k_ij (l_ij + l_qr - 2 l_iq)."""
    values = [k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]) for i, j, q, r in permutations(range(len(k)), 4)]
    return float(sum(values) / len(values))


def hsic_biased(k, l):
    n = len(k)
    h = torch.eye(n, dtype=k.dtype) - 1 / n
    return float((k @ h @ l @ h).trace() / (n - 1) ** 2)


def permutation_procrustes(x, y):
    """1 - min over all permutations |X - Y P| / (2 sqrt d) on normalised columns, by trying all of them."""
    x, y = x / x.norm(dim=0), y / y.norm(dim=0)
    d = x.shape[1]
    delta = min(float((x - y[:, list(p)]).norm()) for p in permutations(range(d)))
    return 1 - delta / (2 * sqrt(d))
