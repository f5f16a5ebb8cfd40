"""The command that runs: what was said for all commands, and what is to be undone when it ends."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version

from .._progress import silenced


@dataclass(frozen=True)
class Running:
    """A command that runs."""

    stack: ExitStack  # Undone when it ends: locks, numbers of threads
    threads: int | None = None  # What ``--threads`` says
    overwrite: bool = False  # What ``--overwrite`` says


_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights

_running: ContextVar[Running | None] = ContextVar("running", default=None)


@contextmanager
def session(
    threads: int | None = None, overwrite: bool = False, quiet: bool = False, verbose: bool = False
) -> Iterator[None]:
    """Run a command; when it ends, everything that it put on the stack is undone."""
    start = time.monotonic()
    with ExitStack() as stack, silenced(quiet):
        token = _running.set(Running(stack, threads, overwrite))
        try:
            yield
            if verbose:
                print(_costs(time.monotonic() - start), file=sys.stderr)
        finally:
            _running.reset(token)


def running() -> Running:
    """The command that runs."""
    found = _running.get()
    if found is None:
        raise RuntimeError("a command must run for this. Got none.")
    return found


def use_threads(number: int) -> None:
    """Go on with so many threads until the command ends."""
    from .._threads import threads

    running().stack.enter_context(threads(number))


def one_thread() -> None:
    """Go on with one thread, unless ``--threads`` says another number: small operations only wait for other threads."""
    if running().threads is None:
        use_threads(1)


def threads_for(values: int | None = None, weights: int | None = None) -> None:
    """Go on with one thread where the work is small."""
    if (values is None or values <= _SMALL_INPUT) and (weights is None or weights <= _SMALL_NETWORK):
        one_thread()


def _costs(seconds: float) -> str:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    torch = sys.modules.get("torch")
    used = f", {torch.get_num_threads()} threads, torch {torch.__version__}" if torch else ""
    return f"{seconds:.1f} s, {peak:,.0f} MB at most{used}, intertwine {version('intertwine')}"
