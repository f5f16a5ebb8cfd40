"""Timing that survives a shared machine: best of several, rates over a matrix product of the same run; memory."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def synchronise(device: torch.device) -> None:
    """Wait for the work queued on an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def best_of(
    work: Callable[[], object], repeats: int = 5, device: torch.device | str = "cpu",
    clock: Callable[[], float] | None = None,
) -> float:  # fmt: skip
    """Shortest of several runs in seconds, after one to warm up: process time on one thread, wall clock on more."""
    return best_in_turns([work], repeats, device, clock)[0]


def best_in_turns(
    works: Sequence[Callable[[], object]], repeats: int = 5, device: torch.device | str = "cpu",
    clock: Callable[[], float] | None = None,
) -> list[float]:  # fmt: skip
    """The same for several that take turns, so that they share the machine's slow minutes."""
    device = torch.device(device)
    clock = clock or (time.process_time if _alone(device) else time.perf_counter)
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, seconds in zip(works, times):
            synchronise(device)
            start = clock()
            work()
            synchronise(device)
            seconds.append(clock() - start)
    return [min(seconds) for seconds in times]


def sgemm_rate(size: int = 2048, repeats: int = 5, device: torch.device | str = "cpu") -> float:
    """Multiply-adds times two per second of a square float32 matrix product: this machine's ceiling at this moment."""
    a, b, out = (torch.randn(size, size, device=device) for _ in range(3))
    return 2 * size**3 / best_of(lambda: torch.mm(a, b, out=out), repeats, device)


def peak_memory() -> float:
    """Highest resident memory of this process so far, in MiB.

    From ``/proc`` where there is one, because ``getrusage`` begins with the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def describe(device: torch.device | str = "cpu") -> str:
    """One line on the machine."""
    device = torch.device(device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    clock = "process time, which bears a busy machine" if _alone(device) else "wall clock"
    return f"torch {torch.__version__}, {name}, {clock}, load {os.getloadavg()[0]:.1f}"


def _alone(device: torch.device) -> bool:
    """Whether all work is done by one thread, whose time the system counts."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def verdict(value: float, budget: float) -> str:
    """``pass`` or ``FAIL``."""
    return "pass" if value >= budget else "FAIL"
