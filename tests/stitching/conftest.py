"""Lets the tests of this folder import their shared models, and those of symmetries, by name."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "symmetry"))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small are slower on several threads, ten times so where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
