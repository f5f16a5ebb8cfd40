"""What every test, doctest and guide page starts from: a fixed seed, one thread for each worker, float64 by default."""

import os
import time
from importlib import import_module

import pytest
import torch
from upstream import lacks, runs_on_meta

import intertwine

collect_ignore = [
    "docs/site",
    "docs/results/remake.py",
]  # one needs the tools of the site, one is a script beside another


PAGES = {"mappings.md": runs_on_meta}  # pages of the guide that show what older releases lack


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device that tests with a `device` fixture run on, such as cuda")
    parser.addoption(
        "--seconds", type=float, help="leave out tests that would begin later than so long after the start"
    )
    parser.addoption("--dtype", default="float64", choices=["float32", "float64"], help="dtype of the `dtype` fixture")


def pytest_configure(config):
    # Tests are small: threads of their own, also in the commands they start, would only fight for the cores.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Pytest imports files for their doctests and would put the module `same` in the place of the function `same`,
    # unless the package was imported before.
    for room in intertwine._ROOMS:
        import_module(f"intertwine.{room}")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in PAGES:
            item.add_marker(PAGES[item.name])


_BEGAN = time.monotonic()


@pytest.fixture(autouse=True)
def _seeded():
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes where it was called, for devices to come


def pytest_runtest_setup(item):
    seconds = item.config.getoption("--seconds")
    if seconds and time.monotonic() - _BEGAN > seconds:
        pytest.skip(f"{seconds:g} seconds are over: make test runs all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except AttributeError as error:
        if not lacks(error):
            raise
        pytest.skip(f"{error} in this release")


@pytest.fixture
def device(request):
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def dtype(request):
    return getattr(torch, request.config.getoption("--dtype"))


@pytest.fixture
def generator(device):
    return torch.Generator(device=device).manual_seed(0)
