"""The rooms of the code: imports point down only, and importing the package is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "intertwine"

# room -> the rooms it may import at module level or inside functions (everything may use the ground files)
GROUND = {"errors", *(path.stem for path in SOURCE.glob("_[a-z]*") if path.stem != "__init__")}
LIBRARY = {"groups", "programs", "features", "symmetry", "similarity", "matching"}
LIBRARY |= {"merging", "provenance", "exchange", "dissection", "gates", "stitching"}
BELOW = {"groups", "programs", "features", "symmetry", "testing"}
MAY_IMPORT = {
    "groups": set(), "programs": {"features"}, "features": set(), "testing": set(),
    "symmetry": {"groups", "programs", "features", "testing"}, "similarity": BELOW, "matching": BELOW,
    "exchange": BELOW | {"matching"}, "dissection": BELOW | {"matching"}, "gates": BELOW | {"matching"},
    "stitching": BELOW | {"matching"}, "merging": BELOW | {"matching"}, "provenance": BELOW | {"matching"},
    "lab": LIBRARY | {"testing"}, "report": LIBRARY, "cli": LIBRARY | {"report", "lab", "testing"}, "__main__": {"cli"},
}  # fmt: skip


def imported_rooms(file: Path) -> set[str]:
    """Rooms of intertwine that a file imports, type-checking blocks left out."""
    package = ["intertwine", *file.relative_to(SOURCE).with_suffix("").parts]
    tree = ast.parse(file.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    rooms = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            if module == ["intertwine"]:
                rooms |= {alias.name for alias in node.names}
            elif module and module[0] == "intertwine":
                rooms.add(module[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("intertwine.")}
    return rooms


def files():
    return sorted(p for p in SOURCE.rglob("*.py") if p.name != "__init__.py" or p.parent != SOURCE)


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_down_only(file):
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    allowed = MAY_IMPORT.get(room, set()) | {room} | GROUND
    wrong = imported_rooms(file) - allowed
    assert not wrong, f"{room} may not import {sorted(wrong)}"


def test_the_rule_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "groups").mkdir()
    bad = tmp_path / "groups" / "bad.py"
    bad.write_text("from ..lab.data import load\n")
    assert imported_rooms(bad) == {"lab"}


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_is_cheap():
    heavy = {"sklearn", "plotly", "pandas", "transformers", "matplotlib", "pyarrow", "scipy", "rich", "typer"}
    assert not heavy & loaded_after("import intertwine")


def test_recording_proving_and_experiments_need_no_compiler_and_no_tables():
    net, x = "nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))", "torch.ones(2, 4)"
    work = f"a, x = {net}, {x}; iw.same(a, a, x); iw.fold(a, x); iw.symmetries(a, x).verify(a, x)"
    listed = "from intertwine.lab.experiments import experiments; experiments()"
    loaded = loaded_after(f"import torch; from torch import nn; import intertwine as iw; {work}; {listed}")
    assert not {"torch._dynamo", "pandas", "plotly", "sklearn", "rich", "pyarrow", "ray"} & loaded


def test_help_needs_no_torch():
    assert "torch" not in loaded_after("import intertwine.cli")
