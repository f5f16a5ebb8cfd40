"""Empirical neural tangent kernel of any PyTorch model, by the structure of its layers or by Jacobians."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ..._evaluation import check_module, evaluating, in_usual_mode, run_with
from .gate_products import check_fits
from .layer_kernel import KernelSum, Layer, contracted, join_outputs, record_layers

Jacobian = Callable[[Tensor], Tensor]
"""From inputs ``(n, ...)`` to ``(n, O, P)``."""


def jacobian_of(model: nn.Module, chosen: Mapping[str, Tensor], examples: Tensor) -> Jacobian:
    """The fastest correct way to Jacobians for this model, checked against ordinary gradients on a few examples."""
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
    return torch.cat([p.reshape(*p.shape[:2], -1) for p in parts.values()], 2).detach()  # single numbers, too


def _one_by_one(model: nn.Module, chosen: Mapping[str, Tensor], batch: Tensor) -> Tensor:
    found = []
    with torch.enable_grad():
        leaves = {name: t.detach().requires_grad_() for name, t in chosen.items()}
        of = lambda o: torch.autograd.grad(o, list(leaves.values()), retain_graph=True, allow_unused=True)
        for example in batch:
            found.append(torch.stack([_flat(of(o), chosen) for o in run_with(model, leaves, example[None])[0]]))
    return torch.stack(found)


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
    parameters: Collection[str] | None = None,
    memory: float = 2**30,
) -> Tensor:
    """Neural tangent kernel ``<d f_o(x) / d theta, d f_p(y) / d theta>`` at the present weights (P2 section 2.1).

    For linear, convolutional and batch norm layers no whole Jacobian is formed. A linear layer's part is the Gram of
    its inputs times the Gram of the gradients at its outputs. For a convolution the same two Grams over pairs of
    positions are multiplied and summed, or per-example gradients of blocks of output channels are compared, whichever
    needs fewer operations. For all other parameters Jacobians are contracted (Novak et al. 2022) by ``vmap(jacrev)``,
    or example by example if a model cannot be mapped. Batch norm is in evaluation mode throughout.

    Args:
        model: Any module with output ``(N, outputs)`` that treats examples one by one in evaluation mode.
        x: Inputs ``(N, ...)``.
        y: Inputs ``(M, ...)``; by default ``x`` itself.
        kind: ``"full"``: ``(N, M, O, O)``; ``"per_output"``: its diagonal ``(N, M, O)``; ``"trace"``: the sum over
            outputs ``(N, M)``.
        parameters: Names of the parameters to differentiate, such as those of a DGN's value network; by default all.
        memory: Bytes that may be held at once besides inputs and result.

    Raises:
        TypeError: If the inputs are not tensors.
        ValueError: If an option is unknown, the model's output is not ``(N, outputs)``, or the kernel exceeds memory
            or overflows.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> neural_tangent_kernel(model, torch.tensor([[1.0, 2.0], [0.0, 3.0]]), kind="trace")
        tensor([[5., 6.],
                [6., 9.]])
    """
    check_module(model)
    if kind not in ("full", "per_output", "trace"):
        raise ValueError(f'kind must be "full", "per_output" or "trace". Got {kind!r}.')
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
            got = f"{tuple(out.shape)} for one example" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"model must return one tensor (N, outputs). Got {got}. Wrap it in a module that returns its logits."
            )
        pairs = {"full": out.shape[1] ** 2, "per_output": out.shape[1], "trace": 1}[kind]
        check_fits((len(x), len(x if y is None else y), pairs), 2 * out.element_size(), out.device)  # parts are added
        found = _by_layers(model, x, y, chosen, kind, memory)
    if found.numel() and not all(bound.isfinite() for bound in found.aminmax()):
        raise ValueError(
            f"the kernel must be finite. Got entries that {found.dtype} does not hold, or NaN weights. Give "
            "model.double() and x.double()."
        )
    return found


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
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    unknown = [n for n in wanted if n not in known]
    if not known:
        raise ValueError("model must have parameters. Got buffers or constants alone.")
    if unknown or not wanted:
        raise ValueError(f"parameters must be names of parameters, such as {list(known)[:3]}. Got {unknown or 'none'}.")
    return {n: known[n].detach() for n in wanted}


def _certified(model: nn.Module, x: Tensor, covered: dict[str, Tensor], memory: float) -> bool:
    """Whether layers account for the whole gradient of a random combination of two examples' outputs."""
    out = model(x).detach()
    u = torch.randn(out.shape[1], generator=torch.Generator().manual_seed(0)).to(out)
    head: nn.Linear = nn.utils.skip_init(nn.Linear, len(u), 1, bias=False, device=u.device, dtype=u.dtype)
    head.weight.data.copy_(u)
    one = nn.Sequential(model, head)  # one output: one pass backwards
    ours = float(layerwise_kernel(one, x, None, {f"0.{name}" for name in covered}, "trace", memory).result().sum())
    true = float(gradient(model, covered, x, u.expand_as(out)).square().sum())
    return abs(ours - true) <= 10 * torch.finfo(out.dtype).eps ** 0.5 * max(abs(ours), true)


def _by_layers(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float
) -> Tensor:
    """Contributions of layers of a known kind, and Jacobians of the parameters that no such layer holds."""
    covered = covered_names(model, x, chosen)
    if covered and not _certified(model, x[:2], {name: chosen[name] for name in sorted(covered)}, memory):
        covered = frozenset()
    total = layerwise_kernel(model, x, y, covered, kind, memory)
    if left_over := {name: chosen[name] for name in sorted(set(chosen) - covered)}:
        size = sum(t.nbytes for t in left_over.values()) * total.outputs
        between = lambda left, right: iter([contracted(left, right, kind)])
        _add_tiles(total, x, y, int(memory / (2 * size)), jacobian_of(model, left_over, x[:2]), between)
    return total.result()


_FEW = 8  # examples at once: more is not faster
_GRAPH = 4  # what the graph and one backward pass hold, in activations


@dataclass(frozen=True)
class _Part:
    """Some output channels of one layer; or all of it, if kept as inputs and signals rather than as a Jacobian."""

    layer: int
    start: int
    stop: int
    whole: bool


def covered_names(model: nn.Module, x: Tensor, chosen: Collection[str]) -> frozenset[str]:
    """Names of the chosen parameters that layers of a known kind hold: linear, convolutional, batch norm."""
    return frozenset().union(*(seen.names for seen in record_layers(model, x[:1], chosen).seen))


def layerwise_kernel(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: Collection[str], kind: str, memory: float
) -> KernelSum:
    """Sum the contributions of layers of a known kind, from their inputs and the gradients at their outputs.

    Groups of layers, or blocks of their channels, whose Jacobians fit in half of the memory take one run each. If not
    even one channel fits, tiles of examples are compared two by two, and run again for each.
    """
    probe = record_layers(model, x[:1], chosen)
    layers = probe.layers()
    total = KernelSum(kind, probe.outputs.shape[1], len(x), None if y is None else len(y), probe.outputs.detach())
    examples = len(x) + (0 if y is None else len(y))
    for parts in _plan(layers, total, examples, memory / 2):
        names = frozenset().union(*(probe.seen[part.layer].names for part in parts))
        if sum(_bytes(layers[part.layer], part) for part in parts) * examples > memory / 2:
            seen = lambda batch, names=names: record_layers(model, batch, names).layers()
            size = sum(t.nbytes for layer in seen(x[:1]) for t in (*layer.inputs, *layer.signals))
            between = lambda left, right: (a.kernel(b, kind, memory) for a, b in zip(left, right))
            _add_tiles(total, x, y, int(memory / 4 / size), seen, between)
            continue
        # as many examples as keep graph and windows within an eighth of the memory
        windows = sum(t.nbytes for part in parts for t in layers[part.layer].inputs)
        outputs = sum(t.nbytes / t.shape[1] for layer in layers for t in layer.signals)
        few = max(1, min(_FEW, int(memory / 8 / max(1.0, windows + _GRAPH * outputs))))
        left = _keep(model, x, names, parts, few)
        right = left if y is None else _keep(model, y, names, parts, few)
        for a, b in zip(left, right):
            _add(total, a, b, memory)
    return total


def _plan(layers: Sequence[Layer], total: KernelSum, examples: int, room: float) -> Iterator[list[_Part]]:
    """Groups of layers in order, each as large as fits; what can be neither kept nor cut is alone."""
    group: list[_Part] = []
    free = room
    for k, layer in enumerate(layers):
        whole = layer.pairs_are_cheaper(total.n, total.m, len(layer.inputs) ** 2, total.kind)
        step = layer.channels if whole else 1
        size = _bytes(layer, _Part(k, 0, step, whole)) * examples
        start = 0
        while start < layer.channels:
            fitting = step * max(0, int(free / size))
            if group and not fitting:
                yield group
                group, free = [], room
                continue
            stop = min(start + fitting, layer.channels) if fitting else layer.channels
            group.append(_Part(k, start, stop, whole))
            free -= size * (stop - start) / step
            start = stop
    if group:
        yield group


def _bytes(layer: Layer, part: _Part) -> float:
    """Bytes kept per example."""
    if part.whole:
        return sum(t.nbytes for t in (*layer.inputs, *layer.signals))
    first = layer.signals[0]
    return first.shape[1] * (part.stop - part.start) * layer.parameters_per_channel * first.element_size()


_Kept = Tensor | list[Layer]  # the Jacobian of all examples, or a layer's inputs and signals, some examples at a time


def _keep(model: nn.Module, x: Tensor, names: Collection[str], parts: Sequence[_Part], few: int) -> list[_Kept]:
    """Run all examples once and keep of each part whatever is smaller to work with."""
    jacobians: dict[int, Tensor] = {}
    wholes: list[list[Layer]] = [[] for _ in parts]
    for i in range(0, len(x), few):
        run = record_layers(model, x[i : i + few], names)
        runs: list[list[Layer]] = [[] for _ in parts]  # of the layers that are kept whole, one for each output
        for output, layers in enumerate(run.backward()):
            for k, (part, layer) in enumerate(zip(parts, layers)):
                if part.whole:
                    runs[k].append(layer)
                    continue
                found = layer.jacobian(part.start, part.stop)
                if k not in jacobians:
                    jacobians[k] = found.new_empty(len(x), run.outputs.shape[1], found.shape[2])
                jacobians[k][i : i + few, output] = found[:, 0]
        for k, part in enumerate(parts):
            if part.whole:
                wholes[k].append(join_outputs(runs[k]))
    return [wholes[k] if part.whole else jacobians[k] for k, part in enumerate(parts)]


def _add(total: KernelSum, left: _Kept, right: _Kept, memory: float) -> None:
    """Add the product of what two sides have kept of one part."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        total.add(left, right)
    elif isinstance(left, list) and isinstance(right, list):
        first = lambda runs: accumulate((len(run.signals[0]) for run in runs), initial=0)  # example of each
        for i, a in zip(first(left), left):
            for j, b in zip(first(right), right):
                if not total.same or i <= j:
                    total.add_part(a.kernel(b, total.kind, memory), i, j)


def _add_tiles(
    total: KernelSum,
    x: Tensor,
    y: Tensor | None,
    step: int,
    seen: Callable[[Tensor], Any],
    between: Callable[[Any, Any], Iterator[Tensor]],
) -> None:
    """Tile by tile, running ``step`` examples again for each: parts ``between`` what is ``seen`` of both sides."""
    z, step = x if y is None else y, max(1, step)
    for i in range(0, len(x), step):
        left = seen(x[i : i + step])
        for j in range(i if total.same else 0, len(z), step):
            for part in between(left, left if total.same and i == j else seen(z[j : j + step])):
                total.add_part(part, i, j)
