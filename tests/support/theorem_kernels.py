"""Path kernels as the theorems state them, from gates alone, for each theorem's networks: slow and obvious.

The tangent kernel as it is defined.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap


def signal(x: Tensor, input: str = "x") -> Tensor:
    return x.double() if input == "x" else torch.ones_like(x, dtype=torch.float64)


def product(gates: Sequence[Tensor]) -> Tensor | float:
    kernel: Tensor | float = 1.0
    for g in gates:
        kernel = kernel * (g.double() @ g.double().T)
    return kernel


def ensemble_kernel(x: Tensor, outer: Sequence[Tensor], blocks: Sequence[Sequence[Tensor]], input: str = "x") -> Tensor:
    """``<x, x'> B_outer prod_j (1 + B_j)`` (P2 theorem 3.3, lemma B.1): skips around blocks with ReLUs inside them."""
    kernel = signal(x, input) @ signal(x, input).T * product(outer)
    for block in blocks:
        kernel = kernel * (1 + product(block))
    return kernel


def sum_kernel(gates: Sequence[Tensor]) -> Tensor:
    """``sum_l <G_l(x), G_l(y)>``: what concatenated gates would give instead of the product (P2 section 3.1.1)."""
    return sum(g.double() @ g.double().T for g in gates)


def rotation_kernel(x: Tensor, gates: Sequence[Tensor], windows: Sequence[tuple[int, ...]], input: str = "x") -> Tensor:
    """``sum_r sum_i x(i) rot(x', r)(i) overlap(i, x, rot(x', r))`` (P2 theorem 3.2, lemma A.1).

    For circular convolutions with the ``windows`` of stride 1, each followed by a gate, a global average, and linear
    layers with the gates that are left; without biases. The pooling mask 1/d_in is left out: the paper counts it twice.
    """
    space = tuple(range(2, x.dim()))
    total = torch.zeros(len(x), len(x), dtype=torch.float64)
    for shift in itertools.product(*(range(s) for s in x.shape[2:])):
        back = tuple(-s for s in shift)  # rot(x, r)(i) = x(i + r)
        overlap = torch.ones(len(x), len(x), *x.shape[2:], dtype=torch.float64)
        for window, g in zip(reversed(windows), reversed(gates[: len(windows)])):
            both = torch.einsum("nc...,mc...->nm...", g.double(), g.roll(back, space).double())
            overlap = _enter(overlap * both, window)
        given = signal(x, input)
        inner = torch.einsum("nc...,mc...->nm...", given, given.roll(back, space))
        total += (inner * overlap).flatten(2).sum(-1)
    return total * product(gates[len(windows) :])


def _enter(active: Tensor, window: tuple[int, ...]) -> Tensor:
    """Number of paths from each position on into a layer, whose positions around it read it."""
    dims = tuple(range(2, 2 + len(window)))
    offsets = itertools.product(*(range(-((k - 1) // 2), k // 2 + 1) for k in window))
    return sum(active.roll(offset, dims) for offset in offsets)  # position q reads q + offset, so p goes to p - offset


def tangent_kernel(model, x, y, names=None):
    """The definition of a tangent kernel: whole Jacobians, contracted."""
    model.eval()
    state = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    chosen = {n: state[n] for n in (names or dict(model.named_parameters()))}
    f = lambda p, example: functional_call(model, {**state, **p}, (example[None],))[0]
    jacobians = [
        torch.cat([j.flatten(2) for j in vmap(jacrev(f), (None, 0))(chosen, z).values()], 2).detach() for z in (x, y)
    ]
    return torch.einsum("nop,mkp->nmok", *jacobians)
