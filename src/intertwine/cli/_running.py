"""The command that runs: what was said for all commands, and what is to be undone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Running", "running", "session"]


@dataclass(frozen=True)
class Running:
    """A command that runs.

    Args:
        stack: Undone when it ends: locks, numbers of threads.
        threads: What ``--threads`` says.
        overwrite: What ``--overwrite`` says.
    """

    stack: ExitStack
    threads: int | None = None
    overwrite: bool = False


_running: ContextVar[Running | None] = ContextVar("running", default=None)


@contextmanager
def session(threads: int | None, overwrite: bool) -> Iterator[None]:
    """Run a command; when it ends, everything that it put on the stack is undone."""
    with ExitStack() as stack:
        token = _running.set(Running(stack, threads, overwrite))
        try:
            yield
        finally:
            _running.reset(token)


def running() -> Running:
    """The command that runs.

    Raises:
        RuntimeError: If none does.
    """
    found = _running.get()
    if found is None:
        raise RuntimeError("a command must run for this. Got none.")
    return found
