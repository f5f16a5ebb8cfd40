"""Executors of jobs: a small interface; this process, or worker processes with capped threads and shares of GPUs."""

import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..._threads import threads
from ..._words import counted
from .store import Outcome, RunError, Task, perform

_DEATHS_AT_START = 3  # consecutive deaths per worker before its first task that mean something is broken
_READY = "ready\n"
_WORK = f"from {__name__} import work; work"
# Otherwise glibc returns every large tensor to the system when it is freed, and the next one is mapped and zeroed page
# by page: two thirds of the time of a job that makes many short-lived tensors.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


class Executor(ABC):
    """Base of executors, which run tasks. The driver repeatedly asks ``fits``, calls ``submit``, then ``wait``."""

    @abstractmethod
    def fits(self, task: Task) -> bool:
        """Whether there is room for the task now."""

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Start the task; only after ``fits``."""

    @abstractmethod
    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Outcomes since the last call, after at most ``timeout`` seconds; ``RunError`` if nothing can run."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything immediately, including running tasks."""

    @property
    @abstractmethod
    def words(self) -> str:
        """A description for people."""


class InProcess(Executor):
    """Executor in this process, on one thread, during ``wait``. A job that kills its process ends the driver too."""

    words = "this process"

    def __init__(self) -> None:
        self._task: Task | None = None

    def fits(self, task: Task) -> bool:
        """One task at a time."""
        return self._task is None

    def submit(self, task: Task) -> None:
        """Keep the task for ``wait``."""
        self._task = task

    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Run the task."""
        if self._task is None:
            return []
        task, self._task = self._task, None
        with threads(1):
            return [perform(task, "this process")]

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""
        self._task = None


@dataclass(eq=False)
class _Worker:
    name: str
    gpu: int | None
    process: subprocess.Popen[str] | None = None
    task: Task | None = None
    since: float = 0.0
    late: bool = False  # whether its process was killed for taking too long


class Local(Executor):
    """Worker processes on this machine.

    Workers are plain subprocesses that exchange JSON over pipes: nothing is pickled, and the caller's script is not run
    again. The death of a worker is a failed attempt of exactly its own job, which a shared pool could not tell. A
    worker that dies is replaced; workers die with the driver.

    Args:
        workers: Number of processes; if ``None``, one per ``threads`` cores, or 4 per GPU if that is less.
        threads: Threads per process, for numerical libraries.
        gpus: Number of GPUs; all that torch sees if ``None``. Worker k sees only GPU k modulo their number.
        timeout: Seconds that an attempt may take; then its worker is killed, and the attempt has failed. Otherwise a
            worker that was stopped, or waits for something that never comes, would hold up the run.

    Raises:
        ValueError: If a number is below its minimum.
    """

    def __init__(
        self, workers: int | None = None, threads: int = 1, gpus: int | None = None, timeout: float | None = None
    ) -> None:
        for name, value, least in (("workers", workers, 1), ("threads", threads, 1), ("gpus", gpus, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}. Got {value}.")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be positive. Got {timeout}.")
        self.timeout, self.threads = timeout, threads
        if gpus is None:
            import torch

            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.gpus = gpus
        count = workers or max(1, (os.cpu_count() or 1) // threads)
        if workers is None and self.gpus:
            count = min(count, 4 * self.gpus)
        self._workers = [_Worker(f"worker {k}", k % self.gpus if self.gpus else None) for k in range(count)]
        self._deaths = 0
        self._open()

    def _open(self) -> None:
        self._pool = ThreadPoolExecutor(len(self._workers))  # one waiting thread per worker with a task
        self._running: dict[Future[Outcome], _Worker] = {}
        self._closed = False

    @property
    def words(self) -> str:
        """The numbers of processes, threads and GPUs."""
        gpus = f", {counted(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{counted(len(self._workers), 'process')} of {counted(self.threads, 'thread')}{gpus}"

    def fits(self, task: Task) -> bool:
        """Whether there is an idle worker whose GPU has room."""
        return self._idle(task) is not None

    def submit(self, task: Task) -> None:
        """Give the task to an idle worker, starting its process if need be."""
        worker = self._idle(task)
        if worker is None:
            raise RunError("submit must follow fits. Got a task, and no idle worker.")
        worker.task, worker.since, worker.late = task, time.monotonic(), False
        self._running[self._pool.submit(self._attempt, worker, task)] = worker

    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Outcomes, including deaths of workers; ``RunError`` if workers keep dying while they start."""
        for worker in self._running.values():
            late = self.timeout is not None and time.monotonic() - worker.since > self.timeout
            if late and worker.process:
                worker.late = True
                worker.process.kill()
        ended, _ = wait(self._running, timeout, FIRST_COMPLETED)
        outcomes = [future.result() for future in ended]
        for future in ended:
            self._running.pop(future).task = None
        if self._deaths >= _DEATHS_AT_START * len(self._workers):
            raise RunError(
                f"workers must be able to start. Got {self._deaths} that died one after the other before their first "
                "job. Finished jobs are kept; the logs folder of the run has what they said."
            )
        return outcomes

    def close(self) -> None:
        """Kill all workers; files are written atomically, so this breaks nothing."""
        self._closed = True  # for threads that are starting a process
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()
        self._pool.shutdown()
        for worker in self._workers:
            _end(worker)
            worker.task = None
        self._open()

    def _idle(self, task: Task) -> _Worker | None:
        used: dict[int | None, float] = {}
        for worker in self._workers:
            used[worker.gpu] = used.get(worker.gpu, 0.0) + (worker.task.gpus if worker.task else 0.0)
        idle = [w for w in self._workers if w.task is None]
        room = [w for w in idle if w.gpu is None or used[w.gpu] + min(task.gpus, 1.0) <= 1 + 1e-9]
        return min(room, key=lambda w: used[w.gpu], default=None)

    def _attempt(self, worker: _Worker, task: Task) -> Outcome:
        """Run the task through a worker's pipes, in a thread of the pool."""
        if worker.process is None or worker.process.poll() is not None:
            _end(worker)
            worker.process = self._started(worker, Path(task.folder))
            if self._closed:
                worker.process.kill()
            ready = worker.process.stdout.readline() == _READY  # type: ignore[union-attr]
            self._deaths = 0 if ready else self._deaths + 1
        process = worker.process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # the worker died: there is no reply
            process.stdin.write(json.dumps(asdict(task)) + "\n")
            process.stdin.flush()
        reply = process.stdout.readline()
        if reply.endswith("\n"):  # a kill may truncate a line
            return Outcome(**json.loads(reply))
        code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if worker.late:
            how = f"it took longer than {self.timeout:g} s"
        seconds = time.monotonic() - worker.since
        return Outcome(task.key, "died", seconds, f"the worker died ({how}); see its log", worker.name)

    def _started(self, worker: _Worker, folder: Path) -> subprocess.Popen[str]:
        number = str(self.threads)
        caps = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), number)
        places = [*(p or os.getcwd() for p in sys.path), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, places))
        environment = {**_KEEP_MEMORY, **os.environ, **caps, "PYTHONPATH": path}
        if worker.gpu is not None:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            names = seen.split(",") if seen else [str(k) for k in range(self.gpus)]
            environment["CUDA_VISIBLE_DEVICES"] = names[worker.gpu]
        words = [sys.executable, "-P", "-c", f"{_WORK}({worker.name!r}, {number})"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        log = folder / "logs" / f"{worker.name.replace(' ', '-')}.txt"
        with log.open("a", encoding="utf-8") as said:  # in its own session: the driver handles Ctrl-C
            return subprocess.Popen(words, stderr=said, env=environment, start_new_session=True, **pipes)


def _end(worker: _Worker) -> None:
    """Kill a worker's process, if it has one, and close its pipes."""
    if (process := worker.process) is not None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # the rest of the buffer has no reader any more
                pipe.close()  # type: ignore[union-attr]
    worker.process = None


def work(name: str, threads: int) -> None:
    """Work as a process of ``Local``, with tasks and outcomes as lines of JSON, until the driver is gone."""
    replies, source = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a job, or its subprocess, must neither read the driver's tasks nor wait for them
    os.dup2(2, 1)  # output of jobs goes to the log, not between the replies
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)
    tasks: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in source:
            tasks.put(line)
        os._exit(0)

    # The driver's death closes our input: then we end at once, even in the middle of a job, whose result is either
    # missing or complete, never partial. Another driver may then run the job without a competitor.
    threading.Thread(target=listen, daemon=True).start()
    replies.write(_READY)
    replies.flush()
    while True:
        outcome = perform(Task(**json.loads(tasks.get())), name)
        replies.write(json.dumps(asdict(outcome)) + "\n")
        replies.flush()
