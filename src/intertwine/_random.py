"""Global random numbers of torch, Python and NumPy: borrowed for a block, begun at a seed, and given back."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

# There is one global generator for all threads. Whoever holds this takes no lock of a model (see _evaluation).
_turn = RLock()
_KNOWN = ("cuda", "mps", "xpu")  # accelerators whose random numbers are kept


def mixed(seed: int, purpose: str, count: int = 0) -> int:
    """Another seed for each purpose and count: 63 bits, the same in every process."""
    digest = hashlib.blake2b(f"{seed} {purpose} {count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def host_state() -> tuple[object, ...]:
    """The state of the global generators of torch, Python and NumPy: the same as long as none of them draws."""
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002 - what people still draw from
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(numbers).tobytes(), *rest


def begin(seed: int, device: torch.device | None = None) -> None:
    """Begin the global random numbers of the CPU and of ``device``; ``torch.manual_seed`` begins all devices'."""
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type in _KNOWN:
        with _current(device) as module:
            module.manual_seed(seed)
    elif device is not None and device.type not in ("cpu", "meta"):
        torch.manual_seed(seed)  # of other accelerators, which have no calls in common


@contextmanager
def _current(device: torch.device) -> Iterator[Any]:
    """The module of a device, whose calls mean this device in the block; there is one device of MPS."""
    module = torch.get_device_module(device)
    with nullcontext() if device.type == "mps" else module.device(device):
        yield module


def seeded(seed: int, device: torch.device | None = None) -> AbstractContextManager[None]:
    """Begin the global random numbers at ``seed``, for one thread at a time; after the block they are as before.

    Args:
        seed: Where they begin, in torch on the CPU and on ``device``, in Python's ``random`` and in NumPy.
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
        self._device = device if device is not None and device.type in _KNOWN else None
        self._begun = seed, device
        self._inside: tuple[Any, ...] | None = None

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
        seed, device = self._begun
        begin(seed, device)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - what people still draw from

    def _states(self) -> tuple[Any, ...]:
        of_device: Tensor | None = None
        if self._device is not None:
            with _current(self._device) as module:
                of_device = module.get_rng_state()
        others = random.getstate(), np.random.get_state()  # noqa: NPY002 - what people still draw from
        return torch.default_generator.get_state(), *others, of_device

    def _restore(self, states: tuple[Any, ...]) -> None:
        of_torch, of_python, of_numpy, of_device = states
        torch.default_generator.set_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002 - what people still draw from
        if of_device is not None and self._device is not None:
            with _current(self._device) as module:
                module.set_rng_state(of_device)
