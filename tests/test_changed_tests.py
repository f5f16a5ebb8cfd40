"""``tests/support/changed_tests.py``: which tests stand near a change, and that a minute is a minute."""

from types import SimpleNamespace

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
    files = sorted((changed.ROOT / "src" / "intertwine").rglob("*.py"))[::8]
    found = changed.tests_of(str(file.relative_to(changed.ROOT)) for file in files)
    assert len(found) > 100
    assert all((changed.ROOT / name).exists() for name in found)


def test_tests_that_would_begin_too_late_are_left_out(request):
    plugins = request.config.pluginmanager.get_plugins()
    (plugin,) = (p for p in plugins if getattr(p, "__file__", "") == str(changed.ROOT / "conftest.py"))
    set_up = lambda seconds: plugin.pytest_runtest_setup(
        SimpleNamespace(config=SimpleNamespace(getoption={"--seconds": seconds}.get))
    )
    assert set_up(request.config.getoption("--seconds")) is set_up(None) is set_up(1e9) is None
    with pytest.raises(pytest.skip.Exception, match="1e-09 seconds are over: make test runs all"):
        set_up(1e-9)
