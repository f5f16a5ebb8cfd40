"""Empirical neural tangent kernel of any PyTorch model, by the structure of its layers or by Jacobians."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ..._evaluation import check_module, evaluating, in_usual_mode, run_with
from .budget import check_fits
from .layer_kernel import contracted
from .layer_sum import covered_names, layerwise_kernel

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


Kind = Literal["full", "per_output", "trace"]


@in_usual_mode
def neural_tangent_kernel(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    kind: Kind = "full",
    method: Literal["auto", "layers", "jacobian"] = "auto",
    parameters: Collection[str] | None = None,
    memory: float = 2**30,
) -> Tensor:
    """Neural tangent kernel ``<d f_o(x) / d theta, d f_p(y) / d theta>`` at the present weights (P2 section 2.1).

    ``"layers"`` never makes a whole Jacobian. A linear layer's part is the Gram of its inputs times the Gram of the
    gradients at its outputs. For a convolution the same two Grams over pairs of positions are multiplied and summed, or
    per-example gradients of blocks of output channels are compared: whichever needs fewer operations. ``"jacobian"``
    contracts Jacobians by ``vmap(jacrev)`` (Novak et al. 2022 call it Jacobian contraction), example by example where a
    model cannot be mapped (parametric ReLUs, recurrent cells). Batch norm is in evaluation mode throughout. ``"auto"``
    takes ``"layers"`` for the parameters of linear, convolutional and batch norm layers, and Jacobians for all others.

    Args:
        model: Any module whose output is ``(N, outputs)`` and treats examples one by one in evaluation mode.
        x: Inputs ``(N, ...)``.
        y: Inputs ``(M, ...)``; ``x`` itself without.
        kind: ``"full"``: ``(N, M, O, O)``; ``"per_output"``: its diagonal ``(N, M, O)``; ``"trace"``: the sum over
            outputs ``(N, M)``.
        method: How; all give the same numbers.
        parameters: Names of the parameters to differentiate, such as those of the value network of a DGN; all without.
        memory: Bytes for what is held at once beside inputs and result.

    Raises:
        TypeError: If the inputs are no tensors.
        ValueError: If an option is unknown, the model's output is not ``(N, outputs)`` or the kernel fits in no memory.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> neural_tangent_kernel(model, torch.tensor([[1.0, 2.0], [0.0, 3.0]]), kind="trace")
        tensor([[5., 6.],
                [6., 9.]])
    """
    check_module(model)
    if kind not in ("full", "per_output", "trace"):
        raise ValueError(f'kind must be "full", "per_output" or "trace". Got {kind!r}.')
    if method not in ("auto", "layers", "jacobian"):
        raise ValueError(f'method must be "auto", "layers" or "jacobian". Got {method!r}.')
    for name, given in (("x", x), ("y", x if y is None else y)):
        if not isinstance(given, Tensor) or not given.ndim:
            raise TypeError(f"{name} must be a tensor of examples (N, ...). Got {type(given).__name__}.")
        if given.is_floating_point() and not given.isfinite().all():
            raise ValueError(f"{name} must be finite. Got NaN or infinite entries.")
    if y is not None and y.shape[1:] != x.shape[1:]:
        raise ValueError(f"y must have examples of x's shape {tuple(x.shape[1:])}. Got {tuple(y.shape[1:])}.")
    if not len(x):
        raise ValueError("x must hold at least one example. Got none.")
    with evaluating(model), torch.enable_grad():
        chosen = _chosen(model, parameters)
        out = _one(model, x)
        if not isinstance(out, Tensor) or out.dim() != 2:
            raise ValueError(f"model must return (N, outputs). Got {tuple(getattr(out, 'shape', ()))} for one example.")
        pairs = {"full": out.shape[1] ** 2, "per_output": out.shape[1], "trace": 1}[kind]
        check_fits((len(x), len(x if y is None else y), pairs), 2 * out.element_size(), out.device)  # parts are added
        if method == "jacobian":
            return _by_jacobians(model, x, y, chosen, kind, memory)
        return _by_layers(model, x, y, chosen, kind, memory, rest=method == "auto")


@torch.no_grad()
def _one(model: nn.Module, x: Tensor) -> Any:
    """What the model returns for the first example."""
    try:
        return model(x[:1])
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "").rstrip(".")
        raise ValueError(
            f"x must be inputs of the model. Got {x.dtype} examples of shape {tuple(x.shape[1:])}, on which it fails: "
            f"{first}. Check shape, dtype and device."
        ) from error


def _chosen(model: nn.Module, names: Collection[str] | None) -> dict[str, Tensor]:
    """The parameters to differentiate."""
    known = dict(model.named_parameters())
    wanted = list(known) if names is None else list(names)
    unknown = [n for n in wanted if n not in known]
    if not known:
        raise ValueError("model must have parameters. Got buffers or constants alone.")
    if unknown or not wanted:
        raise ValueError(f"parameters must be names of parameters, such as {list(known)[:3]}. Got {unknown or 'none'}.")
    return {n: known[n].detach() for n in wanted}


class _Combined(nn.Module):
    """One number made of a model's outputs."""

    def __init__(self, model: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) @ self.weights[:, None]


def _certified(model: nn.Module, x: Tensor, covered: dict[str, Tensor], memory: float) -> bool:
    """Whether layers add up to the gradient of one random number made of the outputs of two examples.

    A weight that a hook computes, or that is used outside its layer too, has a gradient that no single layer sees.
    """
    out = model(x).detach()
    u = torch.randn(out.shape[1], generator=torch.Generator().manual_seed(0)).to(out)
    one = _Combined(model, u)  # one output: one pass backwards
    ours = float(layerwise_kernel(one, x, None, {f"model.{name}" for name in covered}, "trace", memory).result().sum())
    true = float(gradient(model, covered, x, u.expand_as(out)).square().sum())
    return abs(ours - true) <= 10 * torch.finfo(out.dtype).eps ** 0.5 * max(abs(ours), true)


def _by_jacobians(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float
) -> Tensor:
    """Per-example Jacobians of some examples at a time, contracted block by block."""
    with torch.no_grad():
        outputs = model(x[:1]).shape[1]
    size = sum(t.numel() * t.element_size() for t in chosen.values()) * outputs
    step = max(1, int(memory / (2 * size)))

    jacobian = jacobian_of(model, chosen, x[:2])
    z = x if y is None else y
    rows = []
    for i in range(0, len(x), step):
        left = jacobian(x[i : i + step])
        blocks = [contracted(left, jacobian(z[j : j + step]), kind) for j in range(0, len(z), step)]
        rows.append(torch.cat(blocks, 1))
    return torch.cat(rows)


def _by_layers(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float, rest: bool
) -> Tensor:
    """What layers of a known kind add, and Jacobians of the parameters that no such layer holds."""
    covered = covered_names(model, x, chosen)
    if covered and not _certified(model, x[:2], {name: chosen[name] for name in sorted(covered)}, memory):
        if not rest:
            raise ValueError(
                'method "layers" must find every weight used by its own layer alone. Got a model that computes weights '
                "by a hook, or uses them elsewhere too. Use method='auto'."
            )
        return _by_jacobians(model, x, y, chosen, kind, memory)
    left_over = {name: chosen[name] for name in sorted(set(chosen) - covered)}
    if left_over and not rest:
        raise ValueError(
            'method "layers" must find every parameter in a linear, convolutional or batch norm layer. Got '
            f"{list(left_over)[:5]}. Use method='auto'."
        )
    kernel = layerwise_kernel(model, x, y, covered, kind, memory)
    if left_over:
        kernel.add_part(_by_jacobians(model, x, y, left_over, kind, memory), 0, 0)
    return kernel.result()
