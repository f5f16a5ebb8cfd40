"""Threads of numerical libraries: their number changes the last digits of sums and decompositions."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch, NumPy and SciPy use exactly this many threads in the block, whatever the environment says."""
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
    """Results of tasks in their order, computed ``workers`` at a time, which share torch's threads between them.

    Work that uses one core only, such as assignments and eigenvalues, thus uses all of them. Tasks are taken as needed;
    if the work ends early, those that have not begun are dropped.
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
