"""What every test, doctest and guide page starts from: a fixed seed, one thread for each worker, float64 by default."""

import os

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device that tests with a `device` fixture run on, such as cuda")
    parser.addoption("--dtype", default="float64", choices=["float32", "float64"], help="dtype of the `dtype` fixture")


def pytest_configure(config):
    # Two workers with two threads each would only fight for two cores.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def device(request):
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def dtype(request):
    return getattr(torch, request.config.getoption("--dtype"))


@pytest.fixture
def generator(device):
    return torch.Generator(device=device).manual_seed(0)
