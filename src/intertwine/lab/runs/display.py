"""Live progress of a run: jobs that run, the rate, the estimated end; plain lines where there is no terminal."""

import math
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Self

_PLAIN_EVERY = 10.0  # seconds between plain lines
_ROWS = 12  # running jobs that are listed


def told(total: int, found: int, done: int, failed: int, seconds: float) -> str:
    """Finished jobs of a plan, ``found`` before this run; its rate, and its estimated end.

    Examples:
        >>> told(total=200, found=50, done=50, failed=1, seconds=100.0)
        '100 of 200 done, 1 failed, 0.50 jobs/s, about 0:03:18 left'
    """
    said = f"{found + done} of {total} done" + (f", {failed} failed" if failed else "")
    if done and seconds > 0:
        rate, left = done / seconds, total - found - done - failed
        said += f", {rate:.2f} jobs/s" if rate >= 0.1 else f", {rate * 3600:.1f} jobs/h"
        said += f", about {_clock(left / rate)} left" if left else ""
    return said


class Display:
    """Shows how far a run is, on standard error, of ``total`` jobs of which some were ``found`` finished."""

    def __init__(self, title: str, total: int, found: int, enabled: bool) -> None:
        self.title, self.total, self.found, self.enabled = title, total, found, enabled
        self.start = self.said = time.monotonic()
        self.done = self.failed = 0
        self.live: Any = nullcontext()
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.said = -math.inf
        self.show(self.done, self.failed, {})
        self.live.__exit__(*error)

    def show(self, done: int, failed: int, running: Mapping[str, float]) -> None:
        """Show jobs that this run finished and gave up, and those that run, since when."""
        self.done, self.failed, now = done, failed, time.monotonic()
        words = told(self.total, self.found, done, failed, now - self.start)
        if not isinstance(self.live, nullcontext):
            from rich.console import Group
            from rich.progress_bar import ProgressBar
            from rich.text import Text

            bar = ProgressBar(total=max(self.total, 1), completed=self.found + done, width=40)
            lines = [f"{_clock(now - since):>12}  {label}" for label, since in list(running.items())[:_ROWS]]
            lines += [f"and {len(running) - _ROWS} more"] * (len(running) > _ROWS)
            self.live.update(Group(Text(self.title), bar, Text("\n".join([f" {words}", *lines]))))  # beside the bar
        elif self.enabled and now - self.said >= _PLAIN_EVERY:
            self.said = now
            print(f"{self.title}: {words}", file=sys.stderr)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
