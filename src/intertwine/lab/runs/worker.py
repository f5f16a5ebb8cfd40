"""A worker process: reads tasks as lines of JSON, writes outcomes as lines of JSON, and dies with its driver."""

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from .executor import Outcome, Task
from .store import perform

READY = "ready\n"


def task_line(task: Task) -> str:
    """A task as one line."""
    return json.dumps({**asdict(task), "folder": str(task.folder)}) + "\n"


def outcome_line(outcome: Outcome) -> str:
    """An outcome as one line."""
    return json.dumps(asdict(outcome)) + "\n"


def main(name: str, threads: int) -> None:
    """Work until the driver closes the pipe or is gone."""
    replies, source = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a job, or what it starts, must not read the driver's tasks, nor wait for them
    os.dup2(2, 1)  # what jobs print goes to the log, not between the replies
    _cap_threads(threads)
    tasks: SimpleQueue[str] = SimpleQueue()
    # The driver's death closes our input: then we end at once, even in the middle of a job, whose result is missing
    # or complete but never half there. Another driver may then do the job without a rival.
    threading.Thread(target=_listen, args=(source, tasks), daemon=True).start()
    replies.write(READY)
    replies.flush()
    while True:
        said = json.loads(tasks.get())
        replies.write(outcome_line(perform(Task(**{**said, "folder": Path(said["folder"])}), name)))
        replies.flush()


def _listen(source: TextIO, tasks: SimpleQueue[str]) -> None:
    for line in source:
        tasks.put(line)
    os._exit(0)


def _cap_threads(threads: int) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
