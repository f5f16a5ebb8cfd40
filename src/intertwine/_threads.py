"""Threads of numerical libraries: sums and decompositions have other last digits with another number of them."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch, NumPy and SciPy use so many threads in the block, whatever the environment says."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(number):
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)
