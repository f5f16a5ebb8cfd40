"""Jacobians of each example's outputs with respect to parameters."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ...._evaluation import run_with

Jacobian = Callable[[Tensor], Tensor]
"""From inputs ``(n, ...)`` to ``(n, O, P)``."""


def jacobian_of(model: nn.Module, chosen: Mapping[str, Tensor], examples: Tensor) -> Jacobian:
    """The fastest way to Jacobians that is right for this model: many examples at a time, or one after the other.

    The fast way is compared with ordinary gradients on a few ``examples``: some operations (parametric ReLUs, recurrent
    cells) cannot be mapped over examples, or not correctly.

    Raises:
        OutOfMemoryError: If the device has no room; a slower way needs no less.
    """
    fast = lambda batch: _mapped(model, chosen, batch)
    try:
        found = fast(examples)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, NotImplementedError):
        return lambda batch: _one_by_one(model, chosen, batch)
    weights = torch.randn(found.shape[:2], generator=torch.Generator().manual_seed(0)).to(found)
    ours, true = torch.einsum("no,nop->p", weights, found), gradient(model, chosen, examples, weights)
    if float((ours - true).norm()) <= 10 * torch.finfo(found.dtype).eps ** 0.5 * max(float(true.norm()), 1e-30):
        return fast
    return lambda batch: _one_by_one(model, chosen, batch)


def gradient(model: nn.Module, chosen: Mapping[str, Tensor], x: Tensor, weights: Tensor) -> Tensor:
    """Gradient of ``sum(weights * f(x))``, all parameters in one vector ``(P,)``."""
    with torch.enable_grad():
        leaves = {name: t.detach().requires_grad_() for name, t in chosen.items()}
        total = (run_with(model, leaves, x) * weights).sum()
        return _flat(torch.autograd.grad(total, list(leaves.values()), allow_unused=True), chosen)


def _mapped(model: nn.Module, chosen: Mapping[str, Tensor], batch: Tensor) -> Tensor:
    fixed = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()] if n not in chosen}
    one = lambda p, example: run_with(model, {**fixed, **p}, example[None])[0]
    parts = vmap(jacrev(one), (None, 0), chunk_size=8)(dict(chosen), batch)
    return torch.cat([p.flatten(2) for p in parts.values()], 2).detach()


def _one_by_one(model: nn.Module, chosen: Mapping[str, Tensor], batch: Tensor) -> Tensor:
    return torch.stack([_rows(model, chosen, example[None]) for example in batch])


def _rows(model: nn.Module, chosen: Mapping[str, Tensor], example: Tensor) -> Tensor:
    with torch.enable_grad():
        leaves = {name: t.detach().requires_grad_() for name, t in chosen.items()}
        out = run_with(model, leaves, example)[0]
        parameters = list(leaves.values())
        grads = (torch.autograd.grad(o, parameters, retain_graph=True, allow_unused=True) for o in out)
        return torch.stack([_flat(found, chosen) for found in grads])


def _flat(grads: tuple[Tensor | None, ...], chosen: Mapping[str, Tensor]) -> Tensor:
    whole = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, chosen.values())]
    return torch.cat([g.flatten() for g in whole])
