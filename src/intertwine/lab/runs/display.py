"""Live progress of a run: jobs that run, the rate, the estimated end; plain lines where there is no terminal."""

import math
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

_PLAIN_EVERY = 10.0  # seconds between plain lines
_ROWS = 12  # running jobs that are listed


@dataclass
class Tally:
    """Numbers of jobs."""

    total: int  # Of the plan
    found: int = 0  # Finished before this run
    done: int = 0  # Finished by this run
    failed: int = 0  # Given up by this run

    def words(self, seconds: float) -> str:
        """Finished jobs, rate and estimated end.

        Examples:
            >>> Tally(total=200, found=50, done=50, failed=1).words(100.0)
            '100 of 200 done, 1 failed, 0.50 jobs/s, about 3 min 18 s left'
        """
        said = f"{self.found + self.done} of {self.total} done"
        if self.failed:
            said += f", {self.failed} failed"
        if self.done and seconds > 0:
            rate = self.done / seconds
            speed = f"{rate:.2f} jobs/s" if rate >= 0.1 else f"{rate * 3600:.1f} jobs/h"
            left = self.total - self.found - self.done - self.failed
            said += f", {speed}" + (f", about {duration(left / rate)} left" if left else "")
        return said


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(7), duration(75), duration(7260)
        ('7 s', '1 min 15 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Display:
    """Shows how far a run of a plan is, on standard error, by a tally that the driver keeps up to date."""

    def __init__(self, name: str, where: str, tally: Tally, enabled: bool) -> None:
        self.title, self.tally, self.enabled = f"{name} on {where}", tally, enabled
        self.start = self.said = time.monotonic()
        self.live: Any = nullcontext()
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(self._shown({}), console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.said = -math.inf
        self.show({})
        self.live.__exit__(*error)

    def show(self, running: Mapping[str, float]) -> None:
        """Show the present state: jobs that run, since when."""
        now = time.monotonic()
        if not isinstance(self.live, nullcontext):
            self.live.update(self._shown(running))
        elif self.enabled and now - self.said >= _PLAIN_EVERY:
            self.said = now
            print(f"{self.title}: {self.tally.words(now - self.start)}", file=sys.stderr)

    def _shown(self, running: Mapping[str, float]) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        now, tally = time.monotonic(), self.tally
        bar = ProgressBar(total=max(tally.total, 1), completed=tally.found + tally.done, width=40)
        lines = [f"{duration(now - since):>12}  {label}" for label, since in list(running.items())[:_ROWS]]
        lines += [f"and {len(running) - _ROWS} more"] * (len(running) > _ROWS)
        return Group(Text(self.title), bar, Text("\n".join([tally.words(now - self.start), "", *lines])))
