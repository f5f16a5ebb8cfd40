"""Progress: a line of a notebook's output, written over, or plain lines, each with the time that is left."""

import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace

from intertwine import _progress
from intertwine.cli._command import session


def test_a_notebook_shows_one_line_that_says_how_far_the_work_is(monkeypatch):
    said = []
    line = SimpleNamespace(update=lambda data, raw: said.append(data["text/plain"]))
    shown = SimpleNamespace(display=lambda data, raw, display_id: (said.append(data["text/plain"]), line)[1])
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(_progress, "_WRITTEN_EVERY", 0.0)
    assert list(_progress.track("abc", "reading")) == ["a", "b", "c"]
    assert said[0] == "reading: 0 of 3" and said[2].startswith("reading: 2 of 3 after") and "3 done in" in said[-1]
    said.clear()
    assert list(_progress.track("abc", "reading", enabled=None)) == ["a", "b", "c"] and said == []  # short work
    shown.display = lambda *_, **__: None  # ipykernel is imported, but this is no notebook
    assert list(_progress.track("ab", "reading")) == ["a", "b"]


def test_plain_lines_say_how_long_it_will_go_on(monkeypatch, capsys):
    clock = iter(range(0, 4000, 10))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(_progress, "_PLAIN_EVERY", 15.0)
    batches = [[0] * 10, *[[0] * 5] * 6]
    assert list(_progress.track(batches, "reading", 40, size=len)) == batches
    *lines, last = capsys.readouterr().err.splitlines()
    for line in lines:
        spent, *left = (float(word) for word in re.findall(r"(\d+) s", line))
        done = int(re.search(r": (\d+) of 40", line)[1])
        assert left == [round(spent * (40 - done) / done)] * (done < 40)
    assert len(lines) > 1 and last.startswith("reading: 40 done in")


def test_the_display_is_there_before_the_first_item(monkeypatch):
    told = []

    @contextmanager
    def lines(*facts):
        told.append(facts)
        yield told.append

    def items():
        assert told, "the first item may take long"
        yield 1

    monkeypatch.setattr(_progress, "_lines", lines)
    assert list(_progress.track(items(), "work")) == [1] and told[1:] == [1]


def test_long_work_of_a_command_is_logged_without_a_terminal(monkeypatch, capsys):
    clock = iter(range(0, 4000, 4))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(clock)))
    with session():
        assert list(_progress.track(range(9), "learning", enabled=None)) == [*range(9)]
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines and all(" of 9 after " in line for line in lines) and last.startswith("learning: 9 done in")
    with session():
        assert list(_progress.track(range(2), "learning", enabled=None)) == [0, 1]  # less than ten seconds
    with session(quiet=True):
        assert list(_progress.track(range(9), "learning", enabled=None)) == [*range(9)]
    assert list(_progress.track(range(9), "learning", enabled=None)) == [*range(9)]  # in Python nobody asked for it
    assert capsys.readouterr().err == ""
