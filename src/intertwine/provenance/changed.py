"""Tensors of a checkpoint that are changed when they are read."""

from collections.abc import Callable, Mapping

from torch import Tensor

from ..symmetry.sharded import Renamed


class Changed(Renamed):
    """Tensors of a checkpoint, each changed by a function of its name and itself.

    Args:
        state: The checkpoint.
        change: The function.
    """

    def __init__(self, state: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__(state, {n: n for n in state})
        self._change = change

    def __getitem__(self, name: str) -> Tensor:
        return self._change(name, super().__getitem__(name))
