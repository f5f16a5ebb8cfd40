import made_comparison as _module
import pytest


@pytest.fixture
def made_comparison():
    return _module.made_comparison


@pytest.fixture
def hostile():
    return _module.HOSTILE
