"""Progress in a notebook: one line of the cell's output, written over."""

import sys
from types import SimpleNamespace

from intertwine import _progress


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
