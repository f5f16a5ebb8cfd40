"""The theory pages name functions and tests; every name must exist."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs" / "theory").glob("*.md")), ROOT / "docs" / "fidelity.md"]


@cache
def names_in(file: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def resolve(dotted: str) -> object:
    """The module, class, function or attribute with this dotted name."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_function_named_exists(page):
    for dotted in re.findall(r"`(intertwine(?:\.\w+)+)(?:\(\))?`", page.read_text()):
        resolve(dotted)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_test_named_exists(page):
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:\[[^`]*\])?`", page.read_text()):
        assert (ROOT / path).is_file(), path
        assert not name or name in names_in(ROOT / path), f"{path}::{name}"


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("intertwine.errors.NoSuchError")
