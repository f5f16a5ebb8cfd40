"""Rare operations recorded as the plain ones that torch makes them of, so that they need no rules of their own."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from ..operations import DECOMPOSED


@cache
def decomposition(func: Any, within: bool = False) -> Callable[..., Any] | None:
    """Plain operations in the place of one of ``DECOMPOSED``; ``None`` for any other.

    One that writes into its first argument computes the same, and copies it there. ``within`` another decomposition,
    operations that torch itself composes for the sake of gradients come whole, and are taken apart too.
    """
    name = func._schema.name
    if name.removesuffix("_") not in DECOMPOSED:
        composed = within and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        return func.decompose if composed else None
    if not name.endswith("_"):
        return decomposition_table.get(func)
    plain: Any = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"), None)
    steps: Any = decomposition_table.get(getattr(plain, func._overloadname, None))  # type: ignore[arg-type]
    return None if steps is None else lambda x, *args, **kwargs: x.copy_(steps(x, *args, **kwargs))
