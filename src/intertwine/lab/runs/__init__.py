"""Plans, jobs, logs and results: work that never loses what it has finished.

A plan is a list of independent *jobs*; each result is kept under a hash of the job's settings and code. A job writes
its result before it reports completion, so anything may be killed at any moment: the same call runs what is missing.
"""

from .driver import RunReport, run
from .executors import Executor, InProcess, Local
from .job import Job, Jobs, job_key, load_plan, plan_name
from .on_ray import OnRay, choose_executor
from .store import Entry, Log, Outcome, Overview, RunError, Task, clean, overview, overviews

__all__ = [
    # what to do
    "Job", "Jobs", "job_key", "load_plan", "plan_name",
    # doing it
    "run", "RunReport", "RunError",
    # who does it
    "Executor", "InProcess", "Local", "OnRay", "choose_executor", "Task", "Outcome",
    # what became of it
    "Entry", "Log", "Overview", "overview", "overviews", "clean",
]  # fmt: skip
