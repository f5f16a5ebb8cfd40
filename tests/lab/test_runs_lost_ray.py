"""A Ray whose own processes die, played by a stand-in: the jobs are not to blame."""

import sys
import types

import pytest
from run_jobs import squares

from intertwine.lab.runs import OnRay, RunError, overview, run


class RayError(Exception):
    pass


def stand_in(error, lost):
    """What ``OnRay`` uses of Ray; every task ends with ``error``, and of the kind ``lost`` it means a dead Ray."""

    def get(task):
        raise error

    remote = types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=lambda *_: object()))
    return types.SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": 1.0},
        get_runtime_context=lambda: types.SimpleNamespace(gcs_address="127.0.0.1:1"),
        remote=lambda function: remote,
        wait=lambda tasks, num_returns, timeout: (tasks, []),
        get=get,
        cancel=lambda task, force: None,
        exceptions=types.SimpleNamespace(RayError=RayError, RayTaskError=RayError, LocalRayletDiedError=lost),
    )


class LocalRayletDiedError(RayError):
    pass


def test_a_dead_raylet_ends_the_run_and_fails_no_job(tmp_path, monkeypatch):
    died = LocalRayletDiedError("The task's local raylet died.")
    monkeypatch.setitem(sys.modules, "ray", stand_in(died, LocalRayletDiedError))
    with pytest.raises(RunError, match=r"Ray cluster must stay reachable. Got The task's local raylet died"):
        run(squares(count=3), tmp_path, executor=OnRay(), progress=False)
    assert {entry.state for entry in overview(tmp_path / "squares").entries} == {"waiting"}


def test_a_dead_worker_is_a_failed_attempt_of_its_job(tmp_path, monkeypatch):
    died = RayError("The worker died unexpectedly.")
    monkeypatch.setitem(sys.modules, "ray", stand_in(died, LocalRayletDiedError))
    report = run(squares(count=2), tmp_path, executor=OnRay(), retries=0, progress=False)
    assert len(report.failed) == 2
