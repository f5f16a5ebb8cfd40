"""Global random numbers of torch, Python and NumPy: seeded for a block, and restored after it."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

# All threads share one global generator. Whoever holds this lock takes no lock of a model (see _evaluation).
_turn = RLock()
_KNOWN = ("cuda", "mps", "xpu")  # accelerators whose random state is saved


def mixed(seed: int, purpose: str, count: int = 0) -> int:
    """A different seed for each purpose and count: 63 bits, the same in every process."""
    digest = hashlib.blake2b(f"{seed} {purpose} {count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def host_state() -> tuple[object, ...]:
    """State of the global generators of torch, Python and NumPy: unchanged as long as none of them draws."""
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002 - what people still draw from
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(numbers).tobytes(), *rest


def begin(seed: int, device: torch.device | None = None) -> None:
    """Seed the global random numbers of the CPU and of ``device``; ``torch.manual_seed`` seeds those of all devices."""
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type in _KNOWN:
        with _current(device) as module:
            module.manual_seed(seed)
    elif device is not None and device.type not in ("cpu", "meta"):
        torch.manual_seed(seed)  # other accelerators have no calls in common


@contextmanager
def _current(device: torch.device) -> Iterator[Any]:
    """Module of a device's type, with ``device`` the current one in the block; MPS has only one device."""
    module = torch.get_device_module(device)
    with nullcontext() if device.type == "mps" else module.device(device):
        yield module


def seeded(seed: int, device: torch.device | None = None) -> AbstractContextManager[None]:
    """Seed the global random numbers with ``seed`` for the block, one thread at a time; then restore them.

    Args:
        seed: Seed of torch on the CPU and on ``device``, of Python's ``random`` and of NumPy.
        device: Accelerator whose random numbers are drawn besides those of the CPU, if any.
    """
    return Stream(seed, device).drawing()


class Stream:
    """Global random numbers that start from a seed and continue in each block where the last one stopped.

    Args:
        seed: Seed from which they start.
        device: Device whose random numbers belong to the stream besides those of the CPU; by default the current CUDA
            device, where CUDA is in use.
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
                seed, device = self._begun
                begin(seed, device)
                random.seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002 - what people still draw from
            else:
                self._restore(self._inside)
            try:
                yield
            finally:
                self._inside = self._states()
                self._restore(outside)

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
