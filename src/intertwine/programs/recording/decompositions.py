"""Functions of torch replaced by equivalent ones, so that a capture sees what depends on what.

Rare operations are recorded as the plain ones that they are made of. Circular padding writes into a new tensor piece by
piece, and one-hot codes look at the numbers to check their range: each is recorded as one operation.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode

from ..operations import DECOMPOSED


def _pieces(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """A tensor cut into slices, all of one size but the last, or of given ones."""
    if isinstance(sizes, int):
        count = -(-x.shape[dim] // max(sizes, 1)) or 1
        sizes = [*[sizes] * (count - 1), x.shape[dim] - sizes * (count - 1)]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [x.narrow(dim, end - size, size) for size, end in zip(sizes, ends)]


def _moments(spread: Callable[..., Tensor], x: Tensor, dim: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    return spread(x, dim, **options), x.mean(dim, options.get("keepdim", False))


_units = lambda x, dim=0: [x.select(dim, i) for i in range(x.shape[dim])]
# where torch's own take strides, write in place, or convert
_PLAIN: dict[str, Callable[..., Any]] = {
    "var_mean": partial(_moments, torch.var),
    "std_mean": partial(_moments, torch.std),
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "polar": lambda size, angle: torch.complex(size * angle.cos(), size * angle.sin()),
}


@cache
def decomposition(func: Any, composed: bool = False) -> Callable[..., Any] | None:
    """Plain operations in place of one of ``DECOMPOSED``; ``None`` for any other operation.

    An operation that writes into its first argument computes the same, and copies it there. ``composed`` says that
    operations which torch itself composes for the sake of gradients come whole, and are decomposed too.
    """
    name = func._schema.name
    if name.removesuffix("_") not in DECOMPOSED:
        composite = composed and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        return func.decompose if composite else None
    if not name.endswith("_"):
        pieces = _pieces if "split" in name else _units if "unbind" in name else None
        return pieces or _PLAIN.get(name.removeprefix("aten::")) or decomposition_table.get(func)
    plain: Any = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"), None)
    steps: Any = decomposition(getattr(plain, func._overloadname, None))
    return None if steps is None else lambda x, *args, **kwargs: x.copy_(steps(x, *args, **kwargs))


class Plainly(TorchFunctionMode):
    """Records circular padding as a choice of positions, one-hot codes as ones written in place, bilinear maps."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, or its equivalent."""
        kwargs = kwargs or {}
        if func is F.pad and (kwargs.get("mode") or (args[2] if len(args) > 2 else "constant")) == "circular":
            x = args[0] if args else kwargs["input"]
            return _wrap(x, args[1] if len(args) > 1 else kwargs["pad"])
        if func is torch.bilinear:
            return _bilinear(*args, **kwargs)
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        if func is F.one_hot and isinstance(classes, int) and classes > 0:
            places = args[0] if args else kwargs["tensor"]
            zeros = torch.zeros(*places.shape, classes, dtype=torch.int64, device=places.device)
            return zeros.scatter(-1, places.unsqueeze(-1), 1)
        return func(*args, **kwargs)


def _wrap(x: Tensor, pad: tuple[int, ...]) -> Tensor:
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        size = x.shape[-1 - k]
        positions = torch.arange(-before, size + after, device=x.device) % size
        x = torch.index_select(x, x.dim() - 1 - k, positions)
    return x


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    first = input1 @ weight.permute(1, 0, 2).flatten(1)
    result = (first.unflatten(-1, (len(weight), -1)) * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias
