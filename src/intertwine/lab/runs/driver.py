"""Driver of a plan: it gives the missing jobs to an executor, keeps the log, and shows progress."""

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._io import check_writable, read_json, write_json
from ..._progress import track
from .executors import Executor, Local
from .job import PLAN, Jobs, job_key, reference
from .store import FILE, Log, Outcome, RunError, State, Task, finished, intact, only_driver, result_path

_PATIENCE = 0.5  # seconds between checks of the clock


@dataclass(frozen=True)
class RunReport:
    """The outcome of running a plan."""

    plan: str  # Name of the plan
    folder: Path  # Folder with log and results
    values: list[Any]  # Return values of the jobs, in the plan's order; ``None`` for failed jobs
    # Labels of the jobs that failed after all retries, with the last line of the error
    failed: dict[str, str] = field(default_factory=dict)
    ran: int = 0  # Number of jobs run now
    found: int = 0  # Number of jobs whose results existed already
    seconds: float = 0.0  # Duration of this run
    # Seconds that each job took when it was run, in the plan's order; 0 for failed jobs
    spent: tuple[float, ...] = ()
    machines: tuple[str, ...] = ()  # Machine that ran each job, in the plan's order; empty for failed jobs

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.plan}: {self.ran} run, {self.found} found{failed}, in {self.seconds:.1f} s"


def run(
    plan: Jobs,
    folder: str | Path = "runs",
    *,
    executor: Executor | None = None,
    retries: int = 2,
    progress: bool = True,
) -> RunReport:
    """Run the jobs of a plan that have no result yet.

    Everything may be killed at any moment, and the same call runs only what is missing: a job writes its result before
    it reports completion (a temporary file, then a rename), and only that file decides whether it is finished. A job
    that fails is retried ``retries`` times and then skipped, while the others go on; the next run tries it again.
    Clocks are used for display only.

    The plan's own folder is ``folder / plan.name``, which workers on other machines must see too. ``Local()`` runs the
    jobs unless another executor is given, which is closed at the end. Progress is shown on standard error. A job is a
    class with fields and a method ``run``; see ``docs/guide/runs.md``.

    Raises:
        ValueError: If nothing can be written to the folder, or the number of retries is negative.
        RunError: If another driver works there, the disk is full, or the executor cannot continue. Finished jobs are
            kept in every case.
    """  # noqa: DOC502 - helpers raise them
    if retries < 0:
        raise ValueError(f"retries must be at least 0. Got {retries}.")
    home = Path(folder) / plan.name
    keys = [job_key(job) for job in plan.listed]  # refuses what workers could not import, before any writing
    for part in ("results", "files", "logs"):  # refuses an unwritable place
        check_writable(home / part / "probe", "runs folder")
    executor = Local() if executor is None else executor
    with only_driver(home):
        try:
            for leftover in (home / "results").glob(".*"):  # left by kills in the middle of a write
                leftover.unlink(missing_ok=True)
            return _Drive(plan, home, keys, executor, retries, progress).finish()
        finally:
            executor.close()


class _Drive:
    """One run of a plan."""

    def __init__(
        self, plan: Jobs, home: Path, keys: list[str], executor: Executor, retries: int, progress: bool
    ) -> None:
        self.name, self.home, self.keys, self.executor = plan.name, home, keys, executor
        self.retries, self.progress = retries, progress
        self.labels = {key: job.label for key, job in zip(keys, plan.listed)}  # equal jobs are merged
        listed = [
            Task(key, reference(type(job)), job.model_dump(mode="json"), str(home.resolve()), job.gpus)
            for key, job in zip(keys, plan.listed)
        ]
        self.tasks = {task.key: task for task in listed}
        named = [{"job": task.job, "settings": task.config} for task in listed]
        write_json(home / PLAN, {"name": plan.name, "listed": named})
        self.attempts: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.running: set[str] = set()

    def finish(self) -> RunReport:
        start = time.monotonic()
        there = {key for key in finished(self.home) & self.tasks.keys() if intact(self.tasks[key])}
        self.log = Log(self.home / FILE, self.labels, there)
        waiting = deque(key for key in self.tasks if key not in there)
        found = f", {len(there)} found" if there else ""
        title, missing = f"{self.name} on {self.executor.words}{found}", len(waiting)
        try:
            done = sum(track(self._settled(waiting), title, missing, enabled=self.progress))
        finally:
            self._stop()
        results = [{} if key in self.errors else read_json(result_path(self.home, key)) for key in self.keys]
        values, spent = [r.get("value") for r in results], tuple(float(r.get("seconds", 0.0)) for r in results)
        machines = tuple(str(r.get("machine", "")) for r in results)
        times = Counter(self.labels[key] for key in self.errors)  # labels are cut, so they may be equal
        named = {key: f"{label} ({key[:8]})" if times[label] > 1 else label for key, label in self.labels.items()}
        failed = {named[key]: error.splitlines()[-1] for key, error in self.errors.items()}
        seconds = time.monotonic() - start
        return RunReport(self.name, self.home, values, failed, done, len(there), seconds, spent, machines)

    def _settled(self, waiting: deque[str]) -> Iterator[bool]:
        """Run the jobs; for each one that is finished or given up, yields whether it is finished."""
        while waiting or self.running:
            while waiting and self.executor.fits(self.tasks[waiting[0]]):
                key = waiting.popleft()
                self.log.enter(key, "running")
                self.executor.submit(self.tasks[key])
                self.running.add(key)
            for outcome in self.executor.wait(_PATIENCE):
                if outcome.key in self.running:
                    self.running.remove(outcome.key)
                    yield from self._enter(outcome, waiting)
            self.log.write(now=False)

    def _enter(self, outcome: Outcome, waiting: deque[str]) -> list[bool]:
        """Write an outcome into the log; returns whether it finishes a job, or nothing if the job is retried."""
        key = outcome.key
        # It may have died between writing the result and reporting it.
        done = outcome.state == "done" or (outcome.state == "died" and intact(self.tasks[key]))
        failed = outcome.state in ("failed", "died") and not done
        self.attempts[key] = self.attempts.get(key, 0) + failed
        given_up = self.attempts[key] > self.retries
        state: State = "done" if done else "failed" if given_up else "waiting"
        self.log.enter(key, state, seconds=outcome.seconds, error=outcome.error, worker=outcome.worker)
        if outcome.state == "storage":
            raise RunError(
                f"runs folder must be writable and have space left. Got {outcome.error.splitlines()[-1]} in "
                f"{str(self.home)!r}. Finished jobs are kept: free space and run the same again."
            )
        if given_up:
            self.errors[key] = outcome.error
        elif failed:
            waiting.append(key)  # behind the others
        return [done] if done or given_up else []

    def _stop(self) -> None:
        # Jobs that still run are stopped and count as missing, unless their result has just been written.
        self.executor.close()
        with suppress(RunError):  # a full disk stops the run with its own error; the next run corrects the log
            for key in self.running:
                done = intact(self.tasks[key])
                how = {"seconds": 0.0, "error": "", "worker": ""} if done else {}
                self.log.enter(key, "done" if done else "waiting", **how)
            self.log.write()
