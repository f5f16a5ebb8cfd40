"""Run studies, keep their values, write their pages: ``python studies/run.py [NAMES] --scale small --data PATH``.

A study asks what the papers left open. It is a plan and an analysis on public names of ``intertwine`` alone. Values at
the scale ``small`` are kept as ``studies/values/NAME.parquet``; pages and the index follow from them and nothing else.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:  # workers find jobs as studies.NAME, and pages are made as those of results are
    sys.path.insert(0, str(HERE.parent))

from results import build  # noqa: E402

from intertwine.lab.experiments import Experiment, Reproduction, Setting, Values, measure  # noqa: E402

OWN = "run.py"
_INTRODUCTION = """# Studies

What the two papers leave open, asked by scripts of at most 120 lines each, which use public names only: an experiment
of one's own is written as these are. `python studies/run.py --all` tries all of them on digits in seconds each; with
`--scale small --data cifar10:PATH` they keep their values in `values/`, from which all pages are made
(`python studies/run.py --reanalyse`). Statements are judged as in the [results of the papers](../results/README.md).
"""


def studies() -> dict[str, Experiment]:
    """All studies, by name."""
    modules = [import_module(f"studies.{file.stem}") for file in sorted(HERE.glob("*.py")) if file.name != OWN]
    return {one.name: one for module in modules for one in module.STUDIES}


def run(names: Sequence[str], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Values by name, and errors of those that failed; what is finished is found, as long as no study was changed."""
    chosen = [studies()[name] for name in names]
    for one in chosen:
        one.check(setting)
    return measure(chosen, setting)


def source() -> str:
    """A hash of all studies: finished jobs count for the very same text."""
    text = b"".join(file.read_bytes() for file in sorted(HERE.glob("*.py")) if file.name != OWN)
    return hashlib.blake2b(text, digest_size=6).hexdigest()


def write_pages(home: Path = HERE) -> dict[str, Reproduction]:
    """Pages, pictures and the index from the values that are kept in ``home/values``."""
    found = {name: one.page(Values.load(file)) for name, one in studies().items()
             if (file := home / "values" / f"{name}.parquet").is_file()}  # fmt: skip
    (home / "pages").mkdir(parents=True, exist_ok=True)
    for name, r in found.items():
        build.draw(r, home / "pages" / f"{name}.svg")
        text = build.page(r, values=f"../values/{name}.parquet")
        (home / "pages" / f"{name}.md").write_text(text, encoding="utf-8")
    (home / "README.md").write_text(index(found), encoding="utf-8")
    return found


def index(found: dict[str, Reproduction]) -> str:
    """What is asked, where it was left open, and what came out."""
    rows = []
    for name, one in studies().items():
        script = Path(sys.modules[one.plan.__module__].__file__ or "").name
        title = f"[{one.title}](pages/{name}.md)" if name in found else one.title
        verdict = found[name].verdict if name in found else "not run yet"
        rows.append([title, f"[`{name}`]({script})", one.papers, verdict])
    counts = build.counts(list(found.values())) + "\n" if found else ""
    return "\n".join([_INTRODUCTION, counts, build.table(["question", "study", "from", "verdict"], rows), ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, run, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="studies; all of them unless given")
    parser.add_argument("--all", action="store_true", help="all studies")
    parser.add_argument("--scale", choices=["smoke", "small", "paper"], default="smoke")
    parser.add_argument("--data", default="cifar10", help="such as cifar10:PATH")
    parser.add_argument("--workers", type=int, help="processes; one for each core unless given")
    parser.add_argument("--out", type=Path, default=Path("reproduction/studies"), help="networks and finished jobs")
    parser.add_argument("--reanalyse", action="store_true", help="make the pages from the values that are kept")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.names} - {*studies()}):
        parser.error(f"studies must be among {', '.join(studies())}. Got {', '.join(unknown)}.")
    if given.reanalyse:
        write_pages()
        return 0
    names = list(studies()) if given.all or not given.names else given.names
    folder = given.out / given.scale / (source() if given.scale == "smoke" else "")
    setting = Setting(given.scale, folder, given.data, workers=given.workers, progress=sys.stderr.isatty())
    try:
        values, failed = run(names, setting)
    except ValueError as error:
        parser.error(str(error))
    for name, one in values.items():
        page = studies()[name].page(one)
        print(page.summary())
        if given.scale == "small":
            one.save(HERE / "values" / f"{name}.parquet")
        if not page.passed:
            failed[name] = "a statement that must hold does not"
    if given.scale == "small":
        write_pages()
    for name, why in failed.items():
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
