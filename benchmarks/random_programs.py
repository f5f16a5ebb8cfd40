"""Random programs against the symmetry engine: 5,000 models that no person would write, and no wrong answer.

One command runs them and fills the line in ``docs/benchmarks.md``::

    python benchmarks/random_programs.py --write

``tests/support/random_programs.py`` says how a program is drawn. An answer is *wrong* if an element of the group
changes an output on any of four inputs by more than 1e-6 (float64), *vacuous* if a space moves only numbers that no
output reads, *left* if a module's attributes are not as they were. Programs whose path depends on data are run on
inputs that take other paths too, and searched again with all inputs as examples.
"""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

import intertwine as iw
from intertwine.errors import IntertwineError

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from random_programs import draw, vacuous_spaces, worst_change  # noqa: E402

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}


def verdicts(seed: int) -> list[str]:
    """What one program shows: ``"moves"`` or ``"fixed"``, and what is wrong."""
    model, inputs = draw(seed)
    try:
        sym = iw.symmetries(model, inputs[0])
    except IntertwineError:
        return ["refused"]
    except Exception as error:  # any other error is a finding of this attack, not its end
        print(f"{seed}: {type(error).__name__}: {error} {model.names}", flush=True)
        return ["crash"]
    found = ["moves" if sym.spaces else "fixed", *(["path only"] if sym.path_only else [])]
    if model.calls or model.cache:
        found.append("left")
    if vacuous_spaces(sym, model, inputs):
        found.append("vacuous")
    change = worst_change(sym, model, inputs[:1] if sym.path_only else inputs)
    if change.error <= TOLERANCE.get(sym.dtype, 0.5) and sym.path_only:  # and of all examples together
        sym = iw.symmetries(model, iw.Examples(*inputs))
        change = worst_change(sym, model, inputs)
    if change.error > TOLERANCE.get(sym.dtype, 0.5):
        found.append("wrong")
    if set(found) & {"wrong", "vacuous", "left"}:
        print(f"{seed}: {found} {change} {model.names}", flush=True)
    return found


def main() -> None:
    """Run the programs and print the counts; with ``--write`` also put them into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--write", action="store_true", help="replace the line in docs/benchmarks.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = Counter(v for seed in range(options.first, options.first + options.cases) for v in verdicts(seed))
    columns = ("moves", "fixed", "path only", "refused", "wrong", "vacuous", "left", "crash")
    table = [
        f"| programs | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        f"| {options.cases:,} | {' | '.join(str(counts[c]) for c in columns)} |",
    ]
    print("\n".join(table))
    if options.write:
        page = ROOT / "docs" / "benchmarks.md"
        before, _, rest = page.read_text().partition("<!-- random programs -->\n")
        _, _, after = rest.partition("<!-- end random programs -->")
        page.write_text(
            "\n".join([f"{before}<!-- random programs -->", *table, f"<!-- end random programs -->{after}"])
        )
    if any(counts[c] for c in ("wrong", "vacuous", "left", "crash")):
        sys.exit(1)


if __name__ == "__main__":
    main()
