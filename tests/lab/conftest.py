"""Fixtures of the lab: caches stay in the tests' folders; states are written after every step."""

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("INTERTWINE_CACHE", str(folder))
    return folder


@pytest.fixture
def every_step(monkeypatch):
    """Training writes its state after every step."""
    monkeypatch.setattr("intertwine.lab.training.loop.SAVE_EVERY", 0.0)
