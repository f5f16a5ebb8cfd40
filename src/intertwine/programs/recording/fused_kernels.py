"""Switches of torch's fused kernels, off while a run is recorded operation by operation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch


class Switch:
    """A process-wide switch, off as long as one of several threads needs it off.

    Args:
        read: Whether it is on.
        write: Turns it on or off.
    """

    def __init__(self, read: Callable[[], bool], write: Callable[[bool], None]) -> None:
        self._read, self._write = read, write
        self._lock, self._users, self._before = Lock(), 0, True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Off in the block; restored when the last block ends."""
        with self._lock:
            if not self._users:
                self._before = self._read()
                self._write(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before)


FASTPATH = Switch(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
MKLDNN = Switch(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)
