"""Empirical neural tangent kernel of any PyTorch model, by the structure of its layers or by Jacobians."""

from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from ._layer_signals import Layer, LayerRun, gram, record_layers
from ._memory import check_fits
from .patterns import evaluating

__all__ = ["neural_tangent_kernel"]

Kind = Literal["full", "per_output", "trace"]


def neural_tangent_kernel(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    kind: Kind = "full",
    method: Literal["auto", "layers", "jacobian", "products"] = "auto",
    parameters: Collection[str] | None = None,
    memory: float = 2**30,
) -> Tensor:
    """Neural tangent kernel ``<d f_o(x) / d theta, d f_p(y) / d theta>`` at the present weights (P2 section 2.1).

    ``"layers"`` never makes a whole Jacobian. A linear layer's part is the Gram of its inputs times the Gram of the
    gradients at its outputs. For a convolution the same two Grams over pairs of positions are multiplied and summed, or
    per-example gradients of blocks of output channels are compared: whichever needs fewer operations. ``"jacobian"``
    contracts Jacobians by ``vmap(jacrev)`` (Novak et al. 2022 call it Jacobian contraction), ``"products"`` applies the
    kernel to one output at a time by ``vjp`` and ``jvp``. Batch norm is in evaluation mode throughout. ``"auto"`` takes
    ``"layers"`` for the parameters of linear, convolutional and batch norm layers, and Jacobians for all others.

    Args:
        model: Any module whose output is ``(N, outputs)`` and treats examples one by one in evaluation mode.
        x: Inputs ``(N, ...)``.
        y: Inputs ``(M, ...)``; ``x`` itself without.
        kind: ``"full"``: ``(N, M, O, O)``; ``"per_output"``: its diagonal ``(N, M, O)``; ``"trace"``: the sum over
            outputs ``(N, M)``.
        method: How; all give the same numbers.
        parameters: Names of the parameters to differentiate, such as those of the value network of a DGN; all without.
        memory: Bytes for what is held at once beside inputs and result.

    Returns:
        The kernel, in the dtype of the model's output.

    Raises:
        ValueError: If an option is unknown, the model's output is not ``(N, outputs)`` or the kernel fits in no memory.
        TypeError: If ``model`` is not a module.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> neural_tangent_kernel(model, torch.tensor([[1.0, 2.0], [0.0, 3.0]]), kind="trace")
        tensor([[5., 6.],
                [6., 9.]])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module. Got {type(model).__name__}.")
    if kind not in ("full", "per_output", "trace"):
        raise ValueError(f'kind must be "full", "per_output" or "trace". Got {kind!r}.')
    if method not in ("auto", "layers", "jacobian", "products"):
        raise ValueError(f'method must be "auto", "layers", "jacobian" or "products". Got {method!r}.')
    with evaluating(model):
        chosen = _chosen(model, parameters)
        with torch.no_grad():
            out = model(x[:1])
        if not isinstance(out, Tensor) or out.dim() != 2:
            raise ValueError(f"model must return (N, outputs). Got {tuple(getattr(out, 'shape', ()))} for one example.")
        pairs = {"full": out.shape[1] ** 2, "per_output": out.shape[1], "trace": 1}[kind]
        check_fits((len(x), len(x if y is None else y), pairs), 2 * out.element_size(), out.device)  # parts are added
        if method == "products":
            return _reduce(_by_products(model, x, x if y is None else y, chosen), kind)
        if method == "jacobian":
            return _by_jacobians(model, x, y, chosen, kind, memory)
        return _by_layers(model, x, y, chosen, kind, memory, out.shape[1], rest=method == "auto")


def _chosen(model: nn.Module, names: Collection[str] | None) -> dict[str, Tensor]:
    """The parameters to differentiate.

    Raises:
        ValueError: If a name is unknown or none is left.
    """
    known = dict(model.named_parameters())
    wanted = list(known) if names is None else list(names)
    unknown = [n for n in wanted if n not in known]
    if unknown or not wanted:
        raise ValueError(f"parameters must be names of parameters, such as {list(known)[:3]}. Got {unknown or 'none'}.")
    return {n: known[n].detach() for n in wanted}


def _reduce(full: Tensor, kind: Kind) -> Tensor:
    if kind == "full":
        return full
    diagonal = full.diagonal(dim1=2, dim2=3)
    return diagonal if kind == "per_output" else diagonal.sum(-1)


def _pairs(a: Tensor, b: Tensor, kind: Kind) -> Tensor:
    """Contract Jacobians ``(n, O, P)`` and ``(m, O, P)``."""
    if kind == "full":
        flat = a.flatten(0, 1) @ b.flatten(0, 1).T
        return flat.view(len(a), a.shape[1], len(b), b.shape[1]).transpose(1, 2)
    return torch.einsum("nop,mop->nmo" if kind == "per_output" else "nop,mop->nm", a, b)


def _by_jacobians(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float
) -> Tensor:
    """Per-example Jacobians of some examples at a time, contracted block by block."""
    others = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()] if n not in chosen}
    one = lambda p, example: functional_call(model, {**others, **p}, (example[None],))[0]
    with torch.no_grad():
        outputs = model(x[:1]).shape[1]
    size = sum(t.numel() * t.element_size() for t in chosen.values()) * outputs
    step = max(1, int(memory / (2 * size)))

    def jacobian(batch: Tensor) -> Tensor:
        parts = vmap(jacrev(one), (None, 0), chunk_size=8)(chosen, batch)
        return torch.cat([p.flatten(2) for p in parts.values()], 2).detach()

    z = x if y is None else y
    rows = []
    for i in range(0, len(x), step):
        left = jacobian(x[i : i + step])
        blocks = [_pairs(left, jacobian(z[j : j + step]), kind) for j in range(0, len(z), step)]
        rows.append(torch.cat(blocks, 1))
    return torch.cat(rows)


def _by_products(model: nn.Module, x: Tensor, y: Tensor, chosen: dict[str, Tensor]) -> Tensor:
    """Column by column: the kernel applied to one output of one example, ``J_x (J_y^T e)``."""
    others = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()] if n not in chosen}
    f = lambda p, batch: functional_call(model, {**others, **p}, (batch,))
    columns = []
    for example in y:
        out, pull = vjp(lambda p, e=example: f(p, e[None])[0], chosen)[:2]
        per_output = [jvp(lambda p: f(p, x), (chosen,), pull(e))[1] for e in torch.eye(len(out)).to(out)]
        columns.append(torch.stack(per_output, -1))
    return torch.stack(columns, 1).detach()


def _by_layers(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float, outputs: int,
    rest: bool,
) -> Tensor:  # fmt: skip
    """Sum over layers of what their recorded inputs and output gradients give.

    Raises:
        ValueError: If parameters are left over and ``rest`` is false.
    """
    probe = record_layers(model, x[:1], outputs, chosen)
    left_over = set(chosen) - probe.covered
    if left_over and not rest:
        raise ValueError(
            'method "layers" must find every parameter in a linear, convolutional or batch norm layer. Got '
            f"{sorted(left_over)[:5]}. Use method='auto'."
        )
    step = _examples_at_once(model, x, outputs, memory)
    n, m = len(x), len(x if y is None else y)
    sizes = [layer.bytes_kept(n, m, kind) * (n + (0 if y is None else m)) for layer in probe.layers]
    parts = []
    for group in _groups(sizes, memory / 2):
        names = {name: chosen[name] for k in group for name in probe.names[k]}
        if sum(sizes[k] for k in group) > memory / 2:  # one layer that cannot be kept
            parts.append(_by_tiles(model, x, y, names, kind, memory, outputs, step))
            continue
        layers = [probe.layers[k] for k in group]
        few = min(step, _FEW)  # no slower, and what autograd holds for them stays small
        sides = [_keep(model, side, layers, outputs, names, kind, few, m) for side in ([x] if y is None else [x, y])]
        parts.append(_of_kept(sides[0], sides[-1], kind, memory))
    if left_over or not parts:
        parts.append(_by_jacobians(model, x, y, {name: chosen[name] for name in sorted(left_over)}, kind, memory))
    return sum(parts[1:], parts[0])


def _groups(sizes: Sequence[float], room: float) -> list[list[int]]:
    """Layers in their order, as many together as fit; one that does not fit is alone."""
    groups: list[list[int]] = []
    free = 0.0
    for k, size in enumerate(sizes):
        if not groups or size > free:
            groups.append([])
            free = room
        groups[-1].append(k)
        free -= size
    return groups


def _by_tiles(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: dict[str, Tensor], kind: Kind, memory: float, outputs: int,
    step: int,
) -> Tensor:  # fmt: skip
    """Tile by tile, running the examples again for each, where nothing of them can be kept."""
    z = x if y is None else y
    kernel: Tensor | None = None
    for i in range(0, len(x), step):
        left = record_layers(model, x[i : i + step], outputs, chosen)
        for j in range(i if y is None else 0, len(z), step):
            right = left if y is None and j == i else record_layers(model, z[j : j + step], outputs, chosen)
            part = _tile(left, right, kind, memory)
            if kernel is None:
                kernel = part.new_zeros(len(x), len(z), *part.shape[2:])
            kernel[i : i + step, j : j + step] = part
            if y is None and j > i:
                flipped = part.transpose(0, 1)
                kernel[j : j + step, i : i + step] = flipped.transpose(2, 3) if kind == "full" else flipped
    return x.new_zeros(0) if kernel is None else kernel


_FEW = 16
_Kept = Tensor | list[Layer]  # the Jacobian of all examples, or a layer's inputs and signals, some examples at a time


def _keep(
    model: nn.Module, x: Tensor, layers: Sequence[Layer], outputs: int, chosen: dict[str, Tensor], kind: Kind,
    step: int, m: int,
) -> list[_Kept]:  # fmt: skip
    """Run all examples once and keep of each layer what is smaller to work with."""
    kept: list[_Kept] = []
    for i in range(0, len(x), step):
        run = record_layers(model, x[i : i + step], outputs, chosen)
        for k, (layer, first) in enumerate(zip(run.layers, layers)):
            found: _Kept = [layer] if first.is_better_kept_whole(len(x), m, kind) else layer.jacobian()
            if i == 0:
                kept.append(found.new_empty(len(x), *found.shape[1:]) if isinstance(found, Tensor) else [])
            place = kept[k]
            if isinstance(place, Tensor) and isinstance(found, Tensor):
                place[i : i + step] = found
            elif isinstance(place, list) and isinstance(found, list):
                place += found
    return kept


def _of_kept(left: list[_Kept], right: list[_Kept], kind: Kind, memory: float) -> Tensor:
    parts = []
    for a, b in zip(left, right):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            parts.append(gram(a, b, kind))
        elif isinstance(a, list) and isinstance(b, list):
            parts.append(torch.cat([torch.cat([p.kernel(q, kind, memory) for q in b], 1) for p in a]))
    return sum(parts[1:], parts[0])


def _tile(left: LayerRun, right: LayerRun, kind: Kind, memory: float) -> Tensor:
    parts = [a.kernel(b, kind, memory) for a, b in zip(left.layers, right.layers)]
    return sum(parts[1:], parts[0]) if parts else left.zeros(right, kind)


def _examples_at_once(model: nn.Module, x: Tensor, outputs: int, memory: float) -> int:
    """How many examples' layer inputs and output gradients fit."""
    sizes: list[int] = []
    hooks = [
        m.register_forward_hook(lambda _m, a, r: sizes.append(a[0].nbytes + r.nbytes * (1 + outputs)))
        for m in model.modules()
        if isinstance(m, nn.Linear | nn.modules.conv._ConvNd | nn.modules.batchnorm._BatchNorm)
    ]
    try:
        with torch.no_grad():
            model(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, min(len(x), int(memory / (4 * max(1, sum(sizes))))))
