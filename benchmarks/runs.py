"""Runs: what a job costs beside its work, and kills of workers and drivers during a run of 200 jobs.

Budget: at most 50 ms for each job; ten kills of workers and ten of the driver lose no finished job and repeat none.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _timing import describe, verdict

JOBS = 200
BUDGET = 0.050  # seconds for each job
KILLS = 10

MODULE = """
import os, time
from pathlib import Path
from intertwine.lab.runs import Job, Jobs


class Count(Job):
    x: int
    seconds: float
    log: str

    def run(self, files):
        time.sleep(self.seconds)
        with Path(self.log).open("a") as file:
            file.write(f"{self.x}\\n")
        return self.x * self.x


def counts(seconds, log, count=200):
    return Jobs("counts", tuple(Count(x=x, seconds=seconds, log=log) for x in range(count)))
"""

DRIVER = """
import sys
sys.path.insert(0, {home!r})
from counting import counts
from intertwine.lab.runs import Local, run
run(counts(seconds=0.02, log={log!r}), {folder!r}, executor=Local(2), retries=20, progress=False)
"""


def children(pid):
    """Process ids of a process's children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def overhead(home, workers):
    """Seconds for each job that does nothing, after the workers have started."""
    from counting import counts

    from intertwine.lab.runs import InProcess, Local, run

    executor = Local(workers) if workers else InProcess()
    close, executor.close = executor.close, lambda: None  # one pool for the warm-up and the measured run
    log = str(home / f"log{workers}")
    run(
        counts(seconds=0, log=log, count=max(2 * workers, 1)),
        home / f"runs{workers}",
        executor=executor,
        progress=False,
    )
    start = time.perf_counter()
    run(counts(seconds=0, log=log), home / f"runs{workers}", executor=executor, progress=False)
    each = (time.perf_counter() - start) / (JOBS - max(2 * workers, 1))
    close()
    return each


def kills(home):
    """Run 200 jobs under kills; how often each was done, and how many results were there twice or not at all."""
    log, folder = home / "log", home / "killed"
    code = DRIVER.format(home=str(home), log=str(log), folder=str(folder))
    results = folder / "counts" / "results"
    victims = ["worker", "driver"] * KILLS
    dice, done, seen = random.Random(0), 0, {}
    while True:
        driver = subprocess.Popen([sys.executable, "-c", code])
        while driver.poll() is None:
            for file in results.glob("[!.]*.json"):  # a result that is there must never be written again
                seen.setdefault(file.name, file.stat().st_mtime_ns)
            found = children(driver.pid)
            if done < len(victims) and len(seen) >= 9 * (done + 1) and found:
                os.kill(driver.pid if victims[done] == "driver" else dice.choice(found), signal.SIGKILL)
                done += 1
            time.sleep(0.005)
        if driver.wait() == 0:
            break
    there = {file.name: json.loads(file.read_text())["value"] for file in results.glob("[!.]*.json")}
    again = sum((results / name).stat().st_mtime_ns != at for name, at in seen.items())
    return done, JOBS - len(there), again, sorted(there.values()) == [x * x for x in range(JOBS)]


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", action="store_true", help="also kill workers and drivers (a minute or two)")
    options = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "counting.py").write_text(MODULE)
        sys.path.insert(0, str(home))
        for workers, name in ((0, "this process"), (2, "2 processes")):
            each = min(overhead(Path(tempfile.mkdtemp(dir=home)), workers) for _ in range(3))
            said = f"{each * 1e3:7.2f} ms each (budget {BUDGET * 1e3:.0f})"
            print(f"{JOBS} jobs that do nothing, {name:14s} {said}  {verdict(BUDGET, each)}")
        if options.kills:
            done, lost, again, equal = kills(home)
            said = f"{done} kills, {lost} results lost, {again} written again, values {'equal' if equal else 'DIFFER'}"
            print(f"{JOBS} jobs under kills                   {said}  {verdict(int(equal), 1 + lost + again)}")


if __name__ == "__main__":
    main()
