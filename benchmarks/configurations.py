"""Configurations that no test names: symmetries, fold, same and correspond on hundreds of drawn networks.

One command tries them and prints the table of ``docs/benchmarks.md``; ``--write`` puts it there::

    python benchmarks/configurations.py --out build/configurations.csv

``drawn`` says how they are drawn from transformers, timm, diffusers, PyTorch Geometric, torchaudio and
others, as far as they are installed. Each is tried in a process of its own within a minute: random elements must keep
the function (``networks/judge.py``), ``fold`` must keep it, ``same`` may not call a moved copy different, and
``correspond`` must find all parameters of a copy under other names. Lines are appended to a CSV file, and what it has
is not tried again, so that an interrupted run goes on; ``--again crash,wrong`` tries those once more.
"""

import argparse
import csv
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from drawn import DRAWS, Draw
from drawn.steps import STEPS, tried
from networks.case import Case
from networks.judge import one_line
from symmetries import put
from torch import nn

ROOT = Path(__file__).parent.parent
LIMIT = 60  # seconds of processor time of a configuration, everything together
LARGEST = 5_000_000  # parameters: what is larger is left out
FIELDS = ("library", "family", "name", "parameters", "symmetries", "spaces", "dim", "error", "tolerance", "fold",
          "same", "correspond", "seconds", "why")  # fmt: skip


def child(draw: Draw, pipe: Any) -> None:
    """Make and try one configuration in this process, which the system ends where its time is up."""
    resource.setrlimit(resource.RLIMIT_CPU, (spent := int(time.process_time()) + LIMIT, spent))
    try:
        case = draw[3]()
        size = sum(p.numel() for p in case.make().parameters())
    except Exception as error:
        pipe.send({"symmetries": "unusable", "why": one_line(error)})
    else:
        if size <= LARGEST:
            tried(case, pipe.send)
        else:
            pipe.send({"symmetries": "unusable", "why": f"{size:,} parameters"})
    pipe.close()


def record(draw: Draw) -> dict[str, Any]:
    """The line of one configuration, tried in a process of its own."""
    line: dict[str, Any] = dict(zip(FIELDS, draw[:3]))
    mine, other = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(draw, other))
    start = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    process.start()
    other.close()
    line["symmetries"] = "slow"
    with suppress(EOFError):
        while True:
            line |= mine.recv()
    process.join()
    if process.exitcode not in (0, -signal.SIGXCPU, -signal.SIGKILL):
        line |= {"symmetries": "crash", "why": f"process ended with {process.exitcode}"}
    spent = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    return line | {"seconds": f"{spent - start:.1f}"}


def warm() -> None:
    """Import what every try needs, so that processes find it there."""
    with suppress(ImportError):
        from transformers import LlamaForCausalLM, ViTModel  # noqa: F401
    plain = Case("plain", "", "", lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)),
                 lambda seed, scale, batch: (torch.ones(batch, 3, dtype=torch.float64),))  # fmt: skip
    tried(plain, lambda _: None)
    gc.freeze()


def rows(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of a file, the last of each configuration."""
    with path.open(newline="") if path.exists() else open(os.devnull) as file:
        return {(line["library"], line["name"]): line for line in csv.DictReader(file)}


def table(found: dict[tuple[str, str], dict[str, str]]) -> str:
    """Counts by library: what moved rightly, what cannot be told, what was refused clearly."""
    heads = ("library", "families", "configurations", "moved right", "nothing moves", "refused clearly", "wrong",
             "folded right", "nothing to fold", "moved copy: same", "cannot be told", "related or different",
             "renamed: proved", "cannot be told", "crash", "over a minute")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    usable = [line for line in found.values() if line["symmetries"] != "unusable"]
    for library in [*dict.fromkeys(line["library"] for line in usable), "all"]:
        these = [line for line in usable if library in (line["library"], "all")]
        said = {f: Counter((line[f] or "").split(":")[0] for line in these) for f in FIELDS[4:12]}
        sym, fold, same, other = (said[k] for k in ("symmetries", *STEPS))
        every = sym + fold + same + other
        cells = [library, len({line["family"] for line in these}), len(these), sym["right"] + sym["path-only"],
                 sym["fixed"], sym["refused"], every["wrong"], fold["right"], fold["nothing"], same["same"],
                 same["cannot be told"], same["related"] + same["different"], other["proved"],
                 sum(other.values()) - other["proved"] - other[""] - other["slow"], every["crash"],
                 every["slow"]]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Try what is not known yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "configurations.csv")
    parser.add_argument("--libraries", nargs="*", default=[*DRAWS])
    parser.add_argument("--only", default="", metavar="PART", help="those whose names have this part")
    parser.add_argument("--again", default="", help="words, with commas: lines that have one are tried again")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    warm()
    known, again = rows(options.out), [w for w in options.again.split(",") if w]
    turns = zip_longest(*(DRAWS[library]() for library in options.libraries))
    for draw in filter(None, chain.from_iterable(turns)):  # in turns, so that a stopped run has some of each
        before = known.get((draw[0], draw[2]))
        if options.only not in draw[2] or (before and not any(w in " ".join(map(str, before.values())) for w in again)):
            continue
        line = known[draw[0], draw[2]] = record(draw)
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, restval="")
            if not file.tell():
                writer.writeheader()
            writer.writerow(line)
        print(*(line.get(f, "") for f in FIELDS[2:]), sep=" | ", flush=True)
    print(table(rows(options.out)))
    if options.write:
        put(ROOT / "docs" / "benchmarks.md", "configurations", table(rows(options.out)))
    sys.exit(any(word in line["symmetries"] for line in rows(options.out).values() for word in ("wrong", "crash")))


if __name__ == "__main__":
    main()
