"""Jobs on Ray: on this machine or on a cluster by address, which provides resources, queues and new workers."""

import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..._words import first_line
from ...errors import MissingExtraError
from .executors import Executor, Local
from .store import Outcome, RunError, Task, perform

_CHECK_EVERY = 5.0  # seconds between checks that the cluster's head still answers
_ANSWER = 10.0  # seconds that an answer may take
_AHEAD = 2  # tasks per core queued with Ray, so that no worker waits for the driver


def choose_executor(
    workers: int | None = None, threads: int = 1, ray: str | None = None, timeout: float | None = None
) -> Executor:
    """An executor: processes of this machine (``Local``), or Ray at ``"local"``, ``"auto"`` or ``"HOST:PORT"``."""
    if ray is None:
        return Local(workers, threads, timeout=timeout)
    local = ray == "local"
    return OnRay(None if local else ray, threads, workers if local else None)


class OnRay(Executor):
    """Workers of a Ray cluster, which must see the runs folder under the same path.

    Ray starts and replaces workers and counts cores and GPUs; attempts are counted by the driver, as everywhere.

    Args:
        address: ``None`` starts Ray on this machine, ``"auto"`` joins this machine's cluster, and ``"HOST:6379"`` or
            ``"ray://HOST:10001"`` joins one elsewhere.
        cpus: Cores that each job takes, and threads that it may use.
        workers: Cores of a Ray instance that is started here; all if ``None``.

    Raises:
        MissingExtraError: If Ray is not installed.
        RunError: If the cluster does not answer.
    """

    def __init__(self, address: str | None = None, cpus: int = 1, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("ray", "ray") from None
        self._ray, self._address, self._cpus = ray, address, cpus
        self._started = not ray.is_initialized()
        self._tasks: dict[Any, tuple[Task, float]] = {}
        own: dict[str, Any] = {"address": address or "local"}  # "local" never joins a cluster already running here
        if address is None:  # a Ray started here imports jobs from this process's path
            own |= {"num_cpus": workers, "include_dashboard": False}
            own["runtime_env"] = {"env_vars": {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}}
        try:
            if address is not None and ":" in address:
                _reach(address.removeprefix("ray://"))  # Ray itself would wait for minutes
            if self._started:
                ray.init(**own, log_to_driver=False, configure_logging=True, logging_level=logging.ERROR)
            self._resources = ray.cluster_resources()
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(
                f"Ray cluster must answer. Got none at {address or 'this machine'!r} ({first_line(error)}). Start one "
                "with 'ray start --head', or leave the address out."
            ) from None
        names = ("LocalRayletDiedError", "RaySystemError")  # the raylet of this machine, or the cluster, is gone
        self._lost = tuple(getattr(ray.exceptions, name) for name in names if hasattr(ray.exceptions, name))
        self._remote = ray.remote(_perform)
        by_address = address is not None and "ray://" in address
        self._head = str(address).removeprefix("ray://") if by_address else ray.get_runtime_context().gcs_address
        self._checked = time.monotonic()

    @property
    def words(self) -> str:
        """The address and size of the cluster."""
        gpus = f", {self._resources['GPU']:.0f} GPUs" if self._resources.get("GPU") else ""
        return f"Ray at {self._address or 'this machine'}: {self._resources.get('CPU', 0):.0f} cores{gpus}"

    def fits(self, task: Task) -> bool:
        """Whether Ray's queue is short."""
        return len(self._tasks) < max(1, _AHEAD * int(self._resources.get("CPU", 1) // self._cpus))

    def submit(self, task: Task) -> None:
        """Queue the task."""
        gpus = task.gpus if self._resources.get("GPU") else 0
        try:
            # Ray must not repeat a task by itself: the driver counts attempts.
            options = self._remote.options(num_cpus=self._cpus, num_gpus=gpus, max_retries=0)
            waited = options.remote(asdict(task), self._cpus)
        except Exception as error:
            raise self._gone(error) from None
        self._tasks[waited] = (task, time.monotonic())

    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Outcomes, including deaths of workers; a ``RunError`` if the cluster is gone."""
        if not self._tasks:
            return []
        try:
            ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
            if ready:  # and all others that have ended by now
                ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
            if time.monotonic() - self._checked >= _CHECK_EVERY:  # a minute without its head, and Ray ends us
                _reach(self._head)
                self._checked = time.monotonic()
        except Exception as error:
            raise self._gone(error) from None
        return [self._outcome(waited) for waited in ready]

    def close(self) -> None:
        """Stop the tasks, and Ray itself if it was started here."""
        with suppress(Exception):  # a cluster that is gone runs nothing
            _reach(self._head)
            for waited in self._tasks:
                self._ray.cancel(waited, force=True)
        self._tasks.clear()
        if self._started:
            self._started = False
            self._ray.shutdown()

    def _outcome(self, waited: Any) -> Outcome:
        task, since = self._tasks.pop(waited)
        try:
            return Outcome(**self._ray.get(waited))
        except self._lost as error:  # nothing can run any more, which is not the jobs' fault
            raise self._gone(error) from None
        except (self._ray.exceptions.RayError, self._ray.exceptions.RayTaskError) as error:
            return Outcome(task.key, "died", time.monotonic() - since, f"its Ray worker died ({first_line(error)})")

    def _gone(self, error: Exception) -> RunError:
        return RunError(
            f"Ray cluster must stay reachable. Got {first_line(error)}. Finished jobs are kept: run the same again "
            "once it is back, or on this machine."
        )


def _perform(said: dict[str, Any], threads: int) -> dict[str, Any]:
    """The outcome of one task, run on a Ray worker."""
    import torch

    torch.set_num_threads(threads)
    return asdict(perform(Task(**said), f"{os.uname().nodename} {os.getpid()}"))


def _reach(address: str) -> None:
    """Connect to ``HOST:PORT`` and disconnect."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=_ANSWER).close()
