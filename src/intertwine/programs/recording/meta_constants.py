"""Values of constants on the meta device, computed on the CPU: masks and positions decide which axes are fixed."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

# what gives memory without contents
UNWRITTEN = {"aten::empty", "aten::empty_strided", "aten::empty_permuted", "aten::empty_like", "aten::new_empty",
             "aten::new_empty_strided"}  # fmt: skip

_LARGEST = 1 << 22  # elements of a constant that is still computed


class MetaConstants:
    """Real tensors for the meta tensors that are constant."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # id -> the meta tensor, kept alive, and its values

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor: its own, or those behind it; ``None`` where they are unknown."""
        if not tensor.is_meta:
            return tensor
        entry = self._known.get(id(tensor))
        return None if entry is None else entry[1]

    def follow(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Repeat an operation on constants with their values, and keep what comes out behind ``result``."""
        made = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        if not any(t.is_meta for t in made) or any(t.numel() > _LARGEST for t in made):
            return
        values = self._values(func, args, kwargs)
        if values is not None:
            if func._schema.name in UNWRITTEN:
                values.zero_()
            for meta, value in zip(made, (t for t in tree_flatten(values)[0] if isinstance(t, Tensor))):
                self._known[id(meta)] = (meta, value)

    def number(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The number that a meta tensor holds; ``None`` where it is unknown."""
        return self._values(func, args, kwargs)

    def _values(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        flat = tree_flatten((args, kwargs))[0]
        if any(isinstance(t, Tensor) and self.of(t) is None for t in flat):
            return None
        real = lambda x: (
            self.of(x) if isinstance(x, Tensor) else torch.device("cpu") if isinstance(x, torch.device) else x
        )
        try:
            return func(*tree_map(real, args), **tree_map(real, kwargs))
        except (RuntimeError, TypeError, NotImplementedError):  # an operation that only runs on meta tensors
            return None
