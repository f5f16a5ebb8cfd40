"""``tests/support/changed_tests.py``: which tests stand near a change, and that a minute is a minute."""

import subprocess
import sys

import changed_tests as changed
import pytest


@pytest.mark.parametrize(
    ("files", "first", "there", "absent"),
    [
        (["src/intertwine/lab/statistics/statements.py"], "src/intertwine/lab/statistics/statements.py",
         "tests/lab/test_statistics.py", "tests/lab/test_data.py"),
        (["tests/lab/test_values.py"], "tests/lab/test_values.py", "tests/lab/test_values.py",
         "tests/lab/test_data.py"),
        (["tests/support/tiny_experiment.py"], "tests/lab/test_fingerprint.py", "tests/lab/test_values.py",
         "tests/lab/test_data.py"),
        (["docs/guide/same.md"], "docs/guide/same.md", "docs/guide/same.md", "tests/lab/test_data.py"),
        ([], "tests/test_architecture.py", "tests/test_architecture.py", "tests/lab/test_data.py"),
    ],
    ids=["module", "test", "support", "page", "nothing"],
)  # fmt: skip
def test_what_stands_near_a_change_comes_first(files, first, there, absent):
    found = changed.tests_of(files)
    assert found[0] == first
    assert there in found
    assert absent not in found


def test_every_file_that_is_named_is_there():
    every = [str(file.relative_to(changed.ROOT)) for file in (changed.ROOT / "src" / "intertwine").rglob("*.py")]
    found = changed.tests_of(every)
    assert len(found) > 200
    assert all((changed.ROOT / name).exists() for name in found)


def test_tests_that_would_begin_too_late_are_left_out_and_counted():
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--seconds", "1e-9", "-k", "near"]
    ran = subprocess.run([*words, __file__], cwd=changed.ROOT, capture_output=True, text=True)
    assert "5 skipped" in ran.stdout
    assert "seconds are over: make test runs all" in ran.stdout
