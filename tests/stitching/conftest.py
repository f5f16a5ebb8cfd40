"""One thread for the tests of this folder."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small are slower on several threads, ten times so where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
