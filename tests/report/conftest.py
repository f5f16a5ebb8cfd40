import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("made_comparison", Path(__file__).parent / "made_comparison.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.fixture
def made_comparison():
    return _module.made_comparison


@pytest.fixture
def hostile():
    return _module.HOSTILE
