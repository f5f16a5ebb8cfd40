"""Jobs one after the other in this process: for tests, smoke scale and the debugger."""

from collections.abc import Sequence

from ..._threads import threads
from .executor import Executor, Outcome, Task
from .store import perform


class InProcess(Executor):
    """Runs each task here, when it is waited for. A job that kills its process takes the driver with it.

    Args:
        threads: That numerical libraries may use in a job, as in ``Local``.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._task: Task | None = None

    def fits(self, task: Task) -> bool:
        """One task at a time."""
        return self._task is None

    def submit(self, task: Task) -> None:
        """Keep the task for ``wait``."""
        self._task = task

    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Do the task."""
        if self._task is None:
            return []
        task, self._task = self._task, None
        with threads(self.threads):
            return [perform(task, "this process")]

    def close(self) -> None:
        """Nothing to stop."""
        self._task = None

    @property
    def words(self) -> str:
        """What it is."""
        return "this process"
