"""One progress display for all long work: a bar on a terminal, a line in a notebook, an occasional line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from ._untrusted.text import printable

T = TypeVar("T")
Tell: TypeAlias = Callable[[int], object]  # takes the amount done
_SHORT = 2.0  # seconds of work that need no bar
_WRITTEN_EVERY = 0.5  # seconds between changes of a line in a notebook
_PLAIN_EVERY = 10.0  # seconds between plain lines, so that logs stay short
_MINUTES = 120.0  # seconds from which the time left is given in minutes
_silent: ContextVar[bool] = ContextVar("silent", default=False)
_logged: ContextVar[bool] = ContextVar("logged", default=False)


@contextmanager
def silenced(quiet: bool = True, logged: bool = False) -> Iterator[None]:
    """Show no progress in the block, whatever ``enabled`` says; ``logged`` shows long work without a terminal too."""
    token, other = _silent.set(quiet or _silent.get()), _logged.set(logged or _logged.get())
    try:
        yield
    finally:
        _silent.reset(token)
        _logged.reset(other)


def is_silent() -> bool:
    """Whether only results are shown."""
    return _silent.get()


def track(
    items: Iterable[T],
    description: str,
    total: int | None = None,
    enabled: bool | None = True,
    size: Callable[[T], int] = lambda _: 1,
) -> Iterator[T]:
    """Yield ``items`` while showing on standard error how far the work is and how long it will still take.

    Args:
        items: What to go through.
        description: Name of the work, in the user's words.
        total: Number of items, or the sum of their sizes; by default ``len(items)``, if it has one.
        enabled: ``False`` shows nothing. ``None`` shows long work only: on a terminal or in a notebook after 2 s, in
            the logs of commands after 10 s.
        size: Amount of work in an item, such as the examples of a batch; taken before the item is handed out.

    Yields:
        The items, unchanged.
    """
    if total is None:
        with suppress(TypeError):  # generators have no length; len() of a streaming loader fails
            total = len(items)  # type: ignore[arg-type]
    notebook = "ipykernel" in sys.modules
    seen = notebook or sys.stderr.isatty()
    if is_silent() or enabled is False or (enabled is None and not seen and not _logged.get()):
        yield from items
        return
    start, done, tell = time.monotonic(), 0, None
    shown = (_in_place if notebook else _bar if seen else _lines)(printable(description), total, start)
    with ExitStack() as stack:
        if enabled:
            tell = stack.enter_context(shown)
        for item in items:
            if tell is None and time.monotonic() - start >= (_SHORT if seen else _PLAIN_EVERY):
                tell = stack.enter_context(shown)
            done += size(item)
            yield item
            if tell:
                tell(done)


@contextmanager
def _bar(description: str, total: int | None, _: float) -> Iterator[Tell]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task(escape(description), total=total)
        yield lambda done: shown.update(task, completed=done)


@contextmanager
def _in_place(description: str, total: int | None, start: float) -> Iterator[Tell]:
    """One line of a notebook's output, overwritten as the work goes on; it needs no widgets."""
    shown: Any = import_module("IPython.display")
    text = lambda words: {"text/plain": f"{description}: {words}"}
    line = shown.display(text(f"0 of {total or '?'}"), raw=True, display_id=True)
    write = lambda words: line.update(text(words), raw=True) if line else None  # none where no notebook runs
    with _written(write, _WRITTEN_EVERY, total, start) as tell:
        yield tell


@contextmanager
def _lines(description: str, total: int | None, start: float) -> Iterator[Tell]:
    with _written(lambda words: print(f"{description}: {words}", file=sys.stderr), _PLAIN_EVERY, total, start) as tell:
        yield tell


@contextmanager
def _written(write: Callable[[str], object], every: float, total: int | None, start: float) -> Iterator[Tell]:
    """Write a line now and then, and one at the end unless the work fails."""
    last, finished = start, 0

    def tell(done: int) -> None:
        nonlocal last, finished
        finished = done
        if time.monotonic() - last >= every:
            last = time.monotonic()
            write(f"{done} of {total or '?'} {_time_left(last - start, done, total)}")

    yield tell
    write(f"{finished} done in {time.monotonic() - start:.1f} s")


def _time_left(spent: float, done: int, total: int | None) -> str:
    """Time that the work has taken, and the time left if it goes on at this rate.

    Examples:
        >>> _time_left(30.0, 10, 40), _time_left(30.0, 10, 4000), _time_left(30.0, 0, 40)
        ('after 30 s, about 90 s left', 'after 30 s, about 200 min left', 'after 30 s')
    """
    after = f"after {spent:.0f} s"
    if not done or total is None or total <= done:
        return after
    left = spent * (total - done) / done
    return f"{after}, about {f'{left:.0f} s' if left < _MINUTES else f'{left / 60:.0f} min'} left"
