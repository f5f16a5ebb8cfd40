"""Plans and jobs of the tests; workers import them by name."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch

from intertwine.lab.runs import Job, Jobs


class Square(Job):
    """x squared, after a delay; every run that finishes adds a line to ``log``."""

    x: int
    seconds: float = 0.0
    log: str = ""

    def run(self, files):
        time.sleep(self.seconds)
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{self.x}\n")
        return {"y": self.x**2, "nan": float("nan")}


def squares(count=6, **settings):
    return Jobs("squares", tuple(Square(x=x, **settings) for x in range(count)))


class Moody(Job):
    """A job that fails in one of several ways."""

    mood: str
    x: int = 0

    def run(self, files):
        if self.mood == "raises":
            raise ValueError(f"no luck with {self.x}")
        if self.mood == "dies":
            os._exit(3)
        if self.mood == "asks":
            return {"x": self.x, "read": sys.stdin.read() + os.read(0, 10).decode()}
        if self.mood == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.mood == "writes too much":
            torch.save(torch.zeros(1 << 18), files / "large.pt")
        if self.mood == "full disk":
            raise OSError(28, "No space left on device")
        if self.mood == "second time":
            tried = files / "tried"
            if not tried.exists():
                tried.write_text("once")
                raise RuntimeError("the first time always fails")
        return {"x": self.x}


def moods(*moods):
    return Jobs("moods", tuple(Moody(mood=mood, x=x) for x, mood in enumerate(moods)))


class Faults(Job):
    """Page faults of five steps, after a first one; each makes and frees twenty tensors of 1,024 pages."""

    def run(self, files):
        import resource

        faults = []
        for _ in range(6):
            [torch.ones(1 << 20) for _ in range(20)]
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return faults[-1] - faults[0]


class Threads(Job):
    def run(self, files):
        import torch

        return torch.get_num_threads()


class Gpu(Job):
    gpus: ClassVar[float] = 0.5
    x: int

    def run(self, files):
        time.sleep(0.2)
        return os.environ.get("CUDA_VISIBLE_DEVICES")
