"""Levels and power of the tests behind statements: planted data, in the designs that the experiments have.

    python benchmarks/statement_levels.py [--runs 4000] [--write]

At the limit of each statement it must be said to hold, or not to hold, in at most 5 % of all experiments, within
binomial bounds; every line that is not is marked, and the exit status counts them.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from statement_designs import Design, designs, level_of  # noqa: E402

from intertwine.lab.statistics import LEVEL  # noqa: E402

HEAD = (
    "| design | networks | at the limit: holds | does not hold | holds at 0.5 % | 3 standard errors: holds | level |\n"
    "|---|---|---|---|---|---|---|"
)
CONSERVATIVE = 0.8  # of the level


def line(design: Design, runs: int, seed: int) -> tuple[str, bool]:
    """One line of the table, and whether the level holds."""
    found = level_of(design, runs, seed)
    counts = ((found.held, LEVEL), (found.failed, LEVEL), (found.strict, LEVEL / 10))
    ends = [binomtest(count, runs).proportion_ci(0.99, method="exact") for count, _ in counts]
    words = [f"{100 * n / runs:.2g} % [{100 * e.low:.2g}, {100 * e.high:.2g}]" for (n, _), e in zip(counts, ends)]
    if len(design.draw(np.random.default_rng(0), 0.0)) > 1:
        words[-1] = ""
    ok = all(e.low <= level for e, (_, level) in zip(ends, counts))
    worst = max(found.held, found.failed) / runs
    strict = "" if worst >= CONSERVATIVE * LEVEL else f", {LEVEL / max(worst, 1 / runs):.1f} times"
    verdict = f"held{strict}" if ok else "NOT HELD"
    return f"| {design.name} | {design.networks} | {' | '.join(words)} | {found.told / runs:.0%} | {verdict} |", ok


def main() -> int:
    """Print the table; with ``--write`` also put it into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=4000, help="experiments at the limit, and with an effect, for each line"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all planted data")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/statement-levels.md")
    options = parser.parse_args()
    print(HEAD, flush=True)
    lines, failed = [HEAD], 0
    with ProcessPoolExecutor(options.workers) as pool:
        for text, ok in pool.map(_numbered, [(k, options.runs, options.seed) for k in range(len(designs()))]):
            print(text, flush=True)
            lines.append(text)
            failed += not ok
    if options.write:
        page = ROOT / "docs" / "statement-levels.md"
        before, _, rest = page.read_text(encoding="utf-8").partition("<!-- levels -->\n")
        after = rest.partition("<!-- end levels -->")[2]
        said = (
            f"{options.runs:,} experiments at the limit and as many with an effect, for each line; seed {options.seed}."
        )
        table = "\n".join(lines)
        page.write_text(f"{before}<!-- levels -->\n{said}\n\n{table}\n<!-- end levels -->{after}", encoding="utf-8")
    return failed


def _numbered(asked: tuple[int, int, int]) -> tuple[str, bool]:
    number, runs, seed = asked
    return line(designs()[number], runs, seed)


if __name__ == "__main__":
    sys.exit(main())
