"""Decoded images and caches of the tests stay in the tests' folders."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for lab_archives.py


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("INTERTWINE_CACHE", str(folder))
    return folder
