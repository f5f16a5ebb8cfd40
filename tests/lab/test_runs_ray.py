"""Jobs on Ray, where it is installed."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from run_jobs import moods, squares
from torch import nn

import intertwine as iw
from intertwine.lab.runs import InProcess, OnRay, RunError, run

pytest.importorskip("ray", reason="Ray is not installed: pip install 'intertwine[ray]'")


def test_ray_gives_what_one_process_gives(tmp_path):
    plan = squares(count=8)
    alone = run(plan, tmp_path / "a", executor=InProcess(), progress=False)
    assert run(plan, tmp_path / "b", executor=OnRay(workers=2), progress=False).values == alone.values


def test_failing_jobs_and_dying_workers_are_left_out(tmp_path):
    report = run(
        moods("fine", "raises", "dies", "second time"), tmp_path, executor=OnRay(workers=2), retries=1, progress=False,
    )  # fmt: skip
    assert report.values == [{"x": 0}, None, None, {"x": 3}]
    assert set(report.failed) == {"mood=raises, x=1", "mood=dies, x=2"}


def test_a_cluster_that_does_not_answer_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(RunError, match="Ray cluster must answer"):
        OnRay(f"127.0.0.1:{port}")


@pytest.mark.slow
def test_a_cluster_that_disappears_ends_the_run_and_keeps_what_is_finished(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    start = [*ray, "start", "--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    # a cluster finds modules of jobs where its own processes do
    support = str(Path(__file__).parent.parent / "support")
    paths = [support, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    head = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        code = (
            f"import sys; sys.path.insert(0, {support!r})\n"
            "from run_jobs import squares\nfrom intertwine.lab.runs import OnRay, RunError, run\n"
            f"executor = OnRay('127.0.0.1:{port}')\n"
            f"try: run(squares(count=500, seconds=0.2), {str(tmp_path)!r}, executor=executor, progress=False)\n"
            "except RunError as error: print(error); sys.exit(7)\n"
        )
        for _ in range(60):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        while driver.poll() is None and len(list(tmp_path.glob("squares/results/*.json"))) < 5:
            time.sleep(0.1)
        head.terminate()  # with --block, ends all that it started
        said, _ = driver.communicate(timeout=120)
    finally:
        head.kill()
    assert driver.returncode == 7, said
    assert "Ray cluster must stay reachable" in said
    kept = len(list(tmp_path.glob("squares/results/*.json")))
    assert kept >= 5
    again = run(squares(count=kept, seconds=0.2), tmp_path, executor=InProcess(), progress=False)
    assert again.found >= 5


def test_pairs_of_networks_are_compared_on_ray(tmp_path):
    make = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU())
    models, x = {name: make() for name in "abc"}, list(torch.randn(200, 5).split(100))
    alone = iw.compare_many(models, x, progress=False)
    work = iw.lab.tiles.by_jobs(tmp_path, OnRay(workers=2), progress=False)
    found = iw.compare_many(models, x, folder=tmp_path / "kept", work=work, progress=False)
    for measure in alone.measures:
        torch.testing.assert_close(found.scores[measure], alone.scores[measure])
