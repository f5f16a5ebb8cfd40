"""Threads of one command: as many as were asked for, and one for small work, which is then the same everywhere."""

from __future__ import annotations

from ._running import running

__all__ = ["one_thread", "threads_for", "use_threads"]

_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights


def use_threads(number: int) -> None:
    """Go on with so many threads until the command ends."""
    from .._threads import threads

    running().stack.enter_context(threads(number))


def one_thread() -> None:
    """Go on with one thread, unless ``--threads`` says another number: small operations only wait for other threads."""
    if running().threads is None:
        use_threads(1)


def threads_for(values: int | None = None, weights: int | None = None) -> None:
    """Go on with one thread where the work is small.

    Args:
        values: Numbers of one example.
        weights: Of the networks together.
    """
    if (values is None or values <= _SMALL_INPUT) and (weights is None or weights <= _SMALL_NETWORK):
        one_thread()
