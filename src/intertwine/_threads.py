"""Threads of numerical libraries: sums and decompositions have other last digits with another number of them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


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


def in_threads(tasks: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """Results of tasks in their order, ``workers`` of them at a time, between whom torch's threads are shared.

    What uses one core alone, as assignments and eigenvalues do, so uses them all. Tasks are taken as they are needed;
    those that did not begin are left out where the work ends early.
    """
    import torch

    if workers < 2:
        yield from (task() for task in tasks)
        return
    share, waiting = max(1, torch.get_num_threads() // workers), deque[Future[T]]()
    with threads(share), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(share,)) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
