"""Runs: what is missing runs, whatever was killed; failures, logs, disks and clocks."""

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from run_jobs import Faults, Gpu, Moody, Square, Threads, moods, squares

from intertwine.errors import StorageError
from intertwine.lab.runs import (
    InProcess,
    Jobs,
    Local,
    Outcome,
    RunError,
    Task,
    clean,
    job,
    job_key,
    load_plan,
    overview,
    overviews,
    run,
)
from intertwine.lab.runs.store import FILE, Log, finished, perform

HERE = Path(__file__).parent.parent / "support"


def here(plan, folder, **options):
    return run(plan, folder, executor=InProcess(), progress=False, **options)


def states(folder):
    return [entry.state for entry in overview(folder).entries]


# --- keys ----------------------------------------------------------------------------------------


def test_the_key_depends_on_settings_and_code_and_on_nothing_else():
    assert job_key(Square(x=1)) == job_key(Square(x=1, seconds=0.0))
    assert job_key(Square(x=1)) != job_key(Square(x=2))


def test_the_key_changes_with_the_bytes_of_the_file_of_the_class(tmp_path, monkeypatch):
    """What it calls elsewhere does not count, and nothing does but ``code`` where a class says one."""
    name = f"pack{os.urandom(4).hex()}"
    monkeypatch.syspath_prepend(tmp_path)
    words = (
        "from intertwine.lab.runs import Job\nclass A(Job):\n    x: int\n    def run(self, files):\n        return {}\n"
    )
    said = "class B(A):\n    code = 'one'\n"

    def key(which, body, more=""):
        (tmp_path / f"{name}.py").write_text(words.format(body) + said + more)
        job._bytes_of.cache_clear()
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(name)
        finally:
            sys.dont_write_bytecode = before
        return job_key(getattr(module, which)(x=1))

    assert key("A", "1") == key("A", "1")
    assert key("A", "1") != key("A", "22")
    assert key("A", "1") != key("A", "1", "# a comment\n")
    assert key("B", "1") == key("B", "22")
    job._bytes_of.cache_clear()


def test_results_of_other_code_are_not_taken(tmp_path, monkeypatch):
    here(squares(count=3), tmp_path)
    monkeypatch.setattr(Square, "code", "changed")
    assert here(squares(count=3), tmp_path).ran == 3
    assert overview(tmp_path / "squares").stale == 3


# --- running -------------------------------------------------------------------------------------


def test_only_what_is_missing_runs(tmp_path):
    log = str(tmp_path / "log")
    first = here(squares(count=4, log=log), tmp_path)
    second = here(squares(count=6, log=log), tmp_path)
    assert (first.ran, first.found, second.ran, second.found) == (4, 0, 2, 4)
    assert Path(log).read_text().split() == ["0", "1", "2", "3", "4", "5"]
    assert [v["y"] for v in second.values] == [0, 1, 4, 9, 16, 25]
    assert second.values[0]["nan"] is None


def test_a_job_that_always_fails_is_left_out_and_the_rest_goes_on(tmp_path):
    plan = moods("raises", "fine", "second time", "fine")
    report = here(plan, tmp_path, retries=1)
    assert report.values == [None, {"x": 1}, {"x": 2}, {"x": 3}]
    assert report.failed == {"mood=raises, x=0": "ValueError: no luck with 0"}
    assert states(tmp_path / "moods") == ["failed", "done", "done", "done"]
    assert [e.attempts for e in overview(tmp_path / "moods").entries] == [2, 1, 2, 1]
    again = here(plan, tmp_path, retries=0)  # tried anew, the others are not
    assert (again.ran, again.found, len(again.failed)) == (0, 3, 1)


def test_failures_with_equal_labels_are_told_one_by_one(tmp_path):
    plan = Jobs("equal", tuple(Square(x=1, log=f"nowhere/{'n' * 60}/{k}") for k in "ab"))
    assert len({one.label for one in plan.listed}) == 1
    found = here(plan, tmp_path, retries=0)
    assert len(found.failed) == 2 and "2 failed" in str(found)


def test_jobs_that_kill_or_stop_their_worker_are_told_from_the_others(tmp_path):
    executor = Local(2, gpus=0, timeout=1000.0)

    def hurry():
        """As if the time had passed, once a worker has stopped."""
        while not (found := [w for w in executor._workers if w.process and stopped(w.process.pid)]):
            time.sleep(0.05)
        found[0].since -= 1000

    threading.Thread(target=hurry, daemon=True).start()
    report = run(moods("dies", "stops", "fine", "fine"), tmp_path, executor=executor, retries=0, progress=False)
    assert report.values == [None, None, {"x": 2}, {"x": 3}]
    assert report.failed == {
        "mood=dies, x=0": "the worker died (exit code 3); see its log",
        "mood=stops, x=1": "the worker died (it took longer than 1000 s); see its log",
    }
    assert [e.attempts for e in overview(tmp_path / "moods").entries] == [1, 1, 1, 1]


def stopped(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def test_workers_that_cannot_start_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="workers must be able to start"):
        run(squares(count=2), tmp_path, executor=Local(1), progress=False, retries=9)


def test_gpus_are_shared_out(tmp_path):
    shared = run(Jobs("machine", (Gpu(x=0), Gpu(x=1))), tmp_path, executor=Local(2, gpus=2), progress=False)
    assert sorted(shared.values) == ["0", "1"]
    assert [worker.gpu for worker in Local(4, gpus=2)._workers] == [0, 1, 0, 1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_a_worker_has_capped_threads_keeps_freed_memory_and_reads_an_end_of_file(tmp_path):
    """Twenty tensors of 1,024 pages are made where those of the step before were."""
    jobs = Jobs("machine", (Threads(), Faults(), Moody(mood="asks")))
    threads, faults, asked = run(jobs, tmp_path, executor=Local(1, threads=1, gpus=0), progress=False).values
    assert threads == 1
    assert faults < 20 * 1024  # one step; given back, they would be mapped anew in all five
    assert asked == {"x": 0, "read": ""}


def test_a_gpu_is_not_given_to_more_than_it_holds(tmp_path):
    local = Local(workers=3, gpus=1)
    task = Task("k", "m:C", {}, str(tmp_path), gpus=0.5)
    assert local.fits(task)
    local._workers[0].task = local._workers[1].task = task
    assert not local.fits(task)
    assert local.fits(Task("k", "m:C", {}, str(tmp_path)))  # one that needs none


# --- kills ---------------------------------------------------------------------------------------

DRIVER = """
import sys
sys.path.insert(0, {here!r})
from run_jobs import squares
from intertwine.lab.runs import Local, run
run(squares(count=40, seconds=0.02, log={log!r}), {folder!r}, executor=Local(1), retries=20, progress=False)
"""


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_kills_of_workers_and_driver_lose_and_repeat_nothing(tmp_path):
    """A worker, and the driver, each after 11 more jobs; then this process goes on. The benchmark kills ten times."""
    log, folder = tmp_path / "log", tmp_path / "runs"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(here=str(HERE), log=str(log), folder=str(folder))])
    done = lambda: len(finished(folder / "squares"))
    while done() < 11:
        time.sleep(0.01)
    (first,) = children(driver.pid)
    kill(first)
    while done() < 22:
        time.sleep(0.01)
    (second,) = children(driver.pid)
    assert second != first
    kill(driver.pid)
    driver.wait()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{second}").exists() and time.monotonic() < deadline:  # it ends by itself
        time.sleep(0.01)
    assert not Path(f"/proc/{second}").exists()
    plan = squares(count=40, seconds=0.02, log=str(log))
    final = run(plan, folder, executor=Local(2), progress=False)
    assert 22 <= final.found < 40 and (final.ran, final.failed) == (40 - final.found, {})
    undisturbed = here(squares(count=40), tmp_path / "quiet")
    assert [v["y"] for v in final.values] == [v["y"] for v in undisturbed.values]
    # a job may be cut between its end and its result, once for each kill; whatever had a result ran once
    lines = log.read_text().split()
    assert set(lines) == {str(x) for x in range(40)}
    assert len(lines) - 40 <= 2
    assert states(folder / "squares") == ["done"] * 40
    assert not list((folder / "squares" / "results").glob(".*"))


def test_a_job_that_was_running_when_the_driver_died_is_waiting_again(tmp_path):
    here(squares(count=2), tmp_path)
    home = tmp_path / "squares"
    key = job_key(Square(x=1))
    (home / "results" / f"{key}.json").unlink()
    (home / "results" / f".{key}.json.abc.json").write_text('{"half')  # a write that was cut
    log = Log(home / FILE, {job_key(Square(x=x)): f"{x}" for x in range(2)}, {job_key(Square(x=0))})
    log.enter(key, "running")
    log.write()
    assert states(home) == ["done", "running"]
    assert here(squares(count=2), tmp_path).ran == 1
    assert states(home) == ["done", "done"]
    assert not list((home / "results").glob(".*"))


def test_a_worker_that_dies_after_writing_has_done_its_job(tmp_path):
    class Lying(InProcess):
        def wait(self, timeout):
            task, self._task = self._task, None
            perform(task)
            return [Outcome(task.key, "died", 0.0, "killed")]

    report = run(squares(count=3), tmp_path, executor=Lying(), retries=0, progress=False)
    assert (report.ran, report.failed) == (3, {})


def test_ctrl_c_leaves_nothing_running(tmp_path):
    class Stopped(InProcess):
        def wait(self, timeout):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(squares(count=3), tmp_path, executor=Stopped(), progress=False)
    assert states(tmp_path / "squares") == ["waiting"] * 3


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["no JSON", "{}", '[{"key": 3}]'])
def test_a_damaged_or_lost_log_loses_no_result(text, tmp_path):
    here(squares(count=3), tmp_path)
    path = tmp_path / "squares" / FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=r"jobs\.json must be"):
        states(tmp_path / "squares")
    assert here(squares(count=3), tmp_path).found == 3
    assert states(tmp_path / "squares") == ["done"] * 3
    path.unlink()
    assert here(squares(count=3), tmp_path).found == 3


def test_a_run_that_has_not_begun_hides_no_other(tmp_path):
    here(squares(2), tmp_path)
    (tmp_path / "begins").mkdir()
    (tmp_path / "begins" / "plan.json").write_text("{}")
    assert [one.name for one in overviews(tmp_path)] == ["squares"]


def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(tmp_path):
    plan = moods("fine", "full disk", "fine")
    with pytest.raises(RunError, match=r"have space left\. Got OSError: .*No space left.*run the same again"):
        here(plan, tmp_path)
    assert states(tmp_path / "moods") == ["done", "waiting", "waiting"]


def test_a_full_disk_under_the_log_ends_the_run(tmp_path, monkeypatch):
    here(squares(count=1), tmp_path)

    def full(path, value):
        raise StorageError("Got 'No space left on device'.", 28)

    monkeypatch.setattr("intertwine.lab.runs.store.write_json", full)
    with pytest.raises(RunError, match=r"have space left\. Got 'No space left on device'"):
        here(squares(count=2), tmp_path)


def test_an_unwritable_folder_is_refused_first(tmp_path):
    (tmp_path / "squares").write_text("a file where the folder should be")
    with pytest.raises(ValueError, match="runs folder must be a place where files can be written"):
        here(squares(count=1), tmp_path)


def test_two_drivers_are_refused(tmp_path):
    class Nested(InProcess):
        def wait(self, timeout):
            with pytest.raises(RunError, match="one driver at a time"):
                here(squares(count=1), tmp_path)
            return super().wait(timeout)

    assert run(squares(count=1), tmp_path, executor=Nested(), progress=False).ran == 1


def test_clocks_that_jump_do_no_harm(tmp_path, monkeypatch):
    times = iter([2e9, 1e9, 0.0, 3e9, 5.0] * 50)
    monkeypatch.setattr(time, "time", lambda: next(times))
    report = here(squares(count=5), tmp_path)
    assert report.ran == 5
    assert 0 <= report.seconds < 60
    assert all(0 <= entry.seconds < 60 for entry in overview(tmp_path / "squares").entries)


def test_classes_that_workers_cannot_import_are_refused(tmp_path):
    class Hidden(Square):
        pass

    with pytest.raises(TypeError, match="job classes must be importable by name"):
        here(Jobs("hidden", (Hidden(x=1),)), tmp_path)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads": 0}, {"gpus": -1}], ids=str)
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least"):
        Local(**wrong)


def test_negative_retries_are_refused(tmp_path):
    with pytest.raises(ValueError, match="retries must be at least 0"):
        here(squares(), tmp_path, retries=-1)


# --- overview ------------------------------------------------------------------------------------


def test_runs_are_listed_resumed_and_cleaned(tmp_path):
    here(squares(count=3), tmp_path)
    here(moods("fine"), tmp_path)
    here(squares(count=2), tmp_path)
    found = overviews(tmp_path)
    assert [(o.name, len(o.entries), o.count("done"), o.stale) for o in found] == [
        ("moods", 1, 1, 0),
        ("squares", 2, 2, 1),
    ]
    assert load_plan(tmp_path / "squares") == squares(count=2)
    assert clean(tmp_path / "squares") == 1
    assert overview(tmp_path / "squares").stale == 0
    assert clean(tmp_path / "squares", everything=True) == 2
    assert [o.name for o in overviews(tmp_path)] == ["moods"]
    with pytest.raises(ValueError, match="folder must be of a run"):
        overview(tmp_path / "squares")


def test_listed_jobs_of_several_classes_are_saved_with_their_classes(tmp_path):
    plan = Jobs("both", (Square(x=3), Moody(mood="fine", x=2), Square(x=1)))
    values = here(plan, tmp_path).values
    assert [v.get("y", v.get("x")) for v in values] == [9, 2, 1]
    again = load_plan(tmp_path / "both")
    assert again == plan
    assert [type(job) for job in again.listed] == [Square, Moody, Square]
    assert here(again, tmp_path).ran == 0
    assert overview(tmp_path / "both").plan == "2 Square, 1 Moody"


# results that are not what they should be


def results(folder, name="squares"):
    return sorted((folder / name / "results").glob("*.json"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path, other: path.write_bytes(path.read_bytes()[:20]),
        lambda path, other: path.write_bytes(b""),
        lambda path, other: path.write_bytes(b"\xff\xfe\x00"),
        lambda path, other: path.write_text("[1]"),
        lambda path, other: path.write_text('{"value": 3}'),
        lambda path, other: shutil.copy(other, path),
    ],
    ids=["cut", "empty", "noise", "a list", "of nobody", "of another job"],
)
def test_a_result_that_is_damaged_or_of_another_job_is_run_again(tmp_path, damage):
    whole = here(squares(count=3), tmp_path)
    first, other, _ = results(tmp_path)
    damage(first, other)
    again = here(squares(count=3), tmp_path)
    assert (again.ran, again.found) == (1, 2)
    assert again.values == whole.values


def test_settings_that_json_has_no_word_for_are_found_again(tmp_path):
    plan = Jobs("nan", (Square(x=1, seconds=0.0, log=""), Square(x=2, seconds=1e-9)))
    assert here(plan, tmp_path).ran == 2
    assert here(plan, tmp_path).found == 2


def test_a_full_disk_that_a_library_says_in_words_of_its_own_ends_the_run_at_once(tmp_path, full_disk):
    with pytest.raises(RunError, match=r"must be writable and have space left. Got .*File too large"):
        here(moods("writes too much", "fine"), tmp_path)
    assert {entry.attempts for entry in overview(tmp_path / "moods").entries} == {0, 1}
