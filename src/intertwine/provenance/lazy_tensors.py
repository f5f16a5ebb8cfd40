"""Tensors that are made when they are asked for."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor


class Lazy(Mapping[str, Tensor]):
    """Tensors by name, each made when it is asked for.

    Args:
        make: What makes each.
    """

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._make

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


def changed(state: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> Lazy:
    """Tensors of a checkpoint, each changed by a function of its name and itself."""
    return Lazy({n: partial(lambda n: change(n, state[n]), n) for n in state})
