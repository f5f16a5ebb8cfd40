"""One progress display for all long work: a bar on a terminal, a line in a notebook, now and then a line elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeVar

from ._untrusted.text import printable

T = TypeVar("T")
_SHORT = 2.0  # seconds of work that need no bar
_WRITTEN_EVERY = 0.5  # seconds between changes of a line in a notebook
_PLAIN_EVERY = 10.0  # seconds between plain lines, so that logs stay short
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """No progress is shown inside, whatever ``enabled`` says."""
    token = _silent.set(quiet or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent() -> bool:
    """Whether nothing but results is shown."""
    return _silent.get()


def track(items: Iterable[T], description: str, total: int | None = None, enabled: bool | None = True) -> Iterator[T]:
    """Yield ``items`` while showing how far the work is, on standard error.

    Args:
        items: What to go through.
        description: What is being done, as the user would say it.
        total: Number of items; taken from ``len(items)`` where it has one.
        enabled: ``False`` shows nothing; ``None`` shows long work to people: on a terminal or in a notebook, after 2 s.

    Yields:
        The items, unchanged.
    """
    description = printable(description)
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    if is_silent() or enabled is False or (enabled is None and not seen):
        yield from items
    elif seen:
        yield from _bar(items, description, total, 0.0 if enabled else _SHORT)
    else:
        yield from _lines(items, description, total)


def _bar(items: Iterable[T], description: str, total: int | None, wait: float) -> Iterator[T]:
    rest, start, done = iter(items), time.monotonic(), 0
    while wait and time.monotonic() - start < wait:
        try:
            item = next(rest)
        except StopIteration:
            return
        yield item
        done += 1
    if "ipykernel" in sys.modules:
        yield from _in_place(rest, description, total, done)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    yield from rich_track(rest, escape(description), total=total, completed=done, console=console)


def _in_place(items: Iterable[T], description: str, total: int | None, done: int) -> Iterator[T]:
    """One line of a notebook's output, written over as the work goes on; it needs no widgets."""
    shown: Any = import_module("IPython.display")
    start = last = time.monotonic()
    text = lambda words: {"text/plain": f"{description}: {words}"}
    line = shown.display(text(f"{done} of {total or '?'}"), raw=True, display_id=True)
    for item in items:
        yield item
        done += 1
        if line and time.monotonic() - last >= _WRITTEN_EVERY:
            last = time.monotonic()
            line.update(text(f"{done} of {total or '?'} after {last - start:.0f} s"), raw=True)
    if line:  # none where no notebook runs, whatever is imported
        line.update(text(f"{done} done in {time.monotonic() - start:.1f} s"), raw=True)


def _lines(items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    start = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        if time.monotonic() - last >= _PLAIN_EVERY:
            last = time.monotonic()
            print(f"{description}: {done}/{total or '?'} after {last - start:.0f} s", file=sys.stderr)
    print(f"{description}: {done} done in {time.monotonic() - start:.1f} s", file=sys.stderr)
