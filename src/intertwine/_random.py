"""Torch's global random numbers: borrowed for a block, begun at a seed, and given back as they were."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock

import numpy as np
import torch
from torch import Tensor

# There is one global generator for all threads. Whoever holds this takes no lock of a model (see _evaluation).
_turn = RLock()


def mixed(seed: int, purpose: str, count: int = 0) -> int:
    """Another seed for each purpose and count: 63 bits, the same in every process."""
    digest = hashlib.blake2b(f"{seed} {purpose} {count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def host_state() -> tuple[object, ...]:
    """The state of the global generators of torch, Python and NumPy: the same as long as none of them draws."""
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002 - what people still draw from
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(numbers).tobytes(), *rest


def seeded(seed: int, device: torch.device | None = None) -> AbstractContextManager[None]:
    """Begin the global random numbers at ``seed``, for one thread at a time; after the block they are as before.

    Args:
        seed: Where they begin, on the CPU and on ``device``.
        device: Whose random numbers are drawn besides those of the CPU, if it is an accelerator.
    """
    return Stream(seed, device).drawing()


class Stream:
    """Global random numbers that begin at a seed, and go on in each block from where the last one left them.

    Args:
        seed: Where they begin.
        device: Whose random numbers belong to it besides those of the CPU; by default the current CUDA device, where
            CUDA is in use.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        if device is None and torch.cuda.is_initialized():
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device if device is not None and device.type == "cuda" else None
        self._seed = seed
        self._inside: list[Tensor] | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let everybody in the block draw from this stream, one thread at a time."""
        with _turn:
            outside = self._states()
            if self._inside is None:
                self._begin()
            else:
                self._restore(self._inside)
            try:
                yield
            finally:
                self._inside = self._states()
                self._restore(outside)

    def _begin(self) -> None:
        torch.default_generator.manual_seed(self._seed)
        if self._device is not None:
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(self._seed)

    def _states(self) -> list[Tensor]:
        own = [torch.default_generator.get_state()]
        return own if self._device is None else [*own, torch.cuda.get_rng_state(self._device)]

    def _restore(self, states: list[Tensor]) -> None:
        torch.default_generator.set_state(states[0])
        if self._device is not None:
            torch.cuda.set_rng_state(states[1], self._device)
