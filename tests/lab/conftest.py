"""Decoded images and caches of the tests stay in the tests' folders."""

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("INTERTWINE_CACHE", str(folder))
    return folder
