"""Tests of the changes since the main branch, nearest first.

    pytest $(python tests/support/changed_tests.py) --seconds 45

These are doctests of changed files and pages, changed tests, and tests of a changed package that name a changed module
or something it defines; without a change, the tests of the architecture. ``make test-fast`` runs them for a minute.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = "src/intertwine/", "tests/"
ALWAYS = [f"{TESTS}test_architecture.py"]
_DEFINED = re.compile(r"^(?:def|class) ([A-Za-z]\w+)", re.MULTILINE)


def changed_files() -> list[str]:
    """Files that differ from the point where this branch left main, and new files."""
    base = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    found = _git("diff", "--name-only", base[0]) + _git("ls-files", "--others", "--exclude-standard")
    return [name for name in dict.fromkeys(found) if (ROOT / name).is_file()]


def _git(*words: str) -> list[str]:
    ran = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return ran.stdout.split() if ran.returncode == 0 else []


def tests_of(changed: Iterable[str]) -> list[str]:
    """Paths for pytest, those nearest to a change first."""
    ranked: dict[str, int] = {}
    for name in changed:
        path = Path(name)
        if name.startswith(TESTS) and path.name.startswith("test_"):
            ranked[name] = 0
        elif name.startswith(TESTS + "support/"):
            for test in _mentioning(ROOT / TESTS, {path.stem}):
                ranked.setdefault(test, 1)
        elif name.startswith(PACKAGE) and path.suffix == ".py":
            text = (ROOT / name).read_text(encoding="utf-8")
            if ">>>" in text:
                ranked[name] = 0
            room = ROOT / TESTS / path.relative_to(PACKAGE).parts[0]
            words = {path.stem, *_DEFINED.findall(text)}
            for test in _mentioning(room if room.is_dir() else ROOT / TESTS, words):
                near = path.stem.strip("_") in Path(test).stem
                ranked[test] = min(ranked.get(test, 9), 1 if near else 2)
        elif name.startswith("docs/") and path.suffix == ".md":
            ranked[name] = 1
        elif name.startswith("studies/"):
            ranked.setdefault(f"{TESTS}studies", 2)
    return sorted(ranked, key=lambda test: ranked[test]) or ALWAYS


def _mentioning(folder: Path, words: Iterable[str]) -> list[str]:
    """Tests in a folder that contain one of the words."""
    wanted = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b")
    files = sorted(folder.rglob("test_*.py"))
    return [f.relative_to(ROOT).as_posix() for f in files if wanted.search(f.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    print(*tests_of(sys.argv[1:] or changed_files()))
