"""Lets the tests of this folder import their shared models, and those of symmetries, by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "symmetry"))
