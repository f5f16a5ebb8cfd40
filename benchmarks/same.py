"""The same network? Verdicts, canonical forms and fingerprints of copies of many architectures.

One command fills the table in ``docs/benchmarks.md``::

    python benchmarks/same.py --write

For every architecture: a symmetric copy (all kinds of elements), the copy rounded to bfloat16, a copy of the network
with noise of a tenth of each tensor's size, and another seed. Weights are random and in float64, so networks of other
seeds share nothing but the initialisation. Fingerprints are compared between copies in float32 and float64, and
between seeds.
"""

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import torch
from torch import nn

import intertwine as iw
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME, Match
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.gauge.fingerprint import fingerprint_state, invariants
from intertwine.testing import function_error

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import transformers_zoo  # noqa: E402
import zoo  # noqa: E402

Build = Callable[[int], tuple[nn.Module, tuple | dict]]
COPIES, SEEDS = 2, 3
HEADER = (
    "| model | copy | rounded to bfloat16 | noise 0.1 | other seed | seconds "
    "| canonical forms differ by | fingerprint numbers differ by |"
)


def models(only: list[str]) -> Iterator[tuple[str, Build]]:
    """Name and builder (from a seed) of the architectures of both zoos."""
    for name in zoo.ZOO:
        if not only or name in only:
            yield name, lambda seed, name=name: zoo.build(name, seed=seed)
    for name, make in transformers_zoo.MAKERS.items():
        if not only or name in only:
            yield name, lambda seed, make=make: pretrained(make, seed)


def pretrained(make: Callable[[], tuple[nn.Module, dict]], seed: int) -> tuple[nn.Module, dict]:
    """A transformers model with random weights in float64, and its inputs."""
    torch.manual_seed(seed)
    model, inputs = make()
    return model.double(), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def noisy(model: nn.Module, size: float = 0.1) -> nn.Module:
    """The model with noise of a share of each tensor's root mean square."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p += size * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return other


def said(found: Match, expected: str) -> str:
    """Verdict and residual, in capitals where the verdict is not the expected one."""
    word = {SAME: "same", RELATED: "related", DIFFERENT: "different"}[found.verdict]
    chance = "" if found.chance is None else f" of {found.chance:.2f}"
    number = f"{found.residual:.0e}" if found.residual < 0.005 else f"{found.residual:.2f}{chance}"
    return f"{word if found.verdict == expected else word.upper()} {number}"


def row(name: str, build: Build, tally: dict[str, list[bool]]) -> str:
    """One line of the table; ``tally`` collects whether each expectation held."""
    model, inputs = build(0)
    sym = iw.symmetries(model, inputs)
    twin = sym.act(sym.random(seed=3), model)
    start = time.process_time()
    first = iw.same(model, twin, inputs, sym)
    seconds = time.process_time() - start
    moved_noise = sym.act(sym.random(seed=4), noisy(model))
    cases = [
        ("copy", first, SAME),
        ("bfloat16", iw.same(model, copy.deepcopy(twin).bfloat16().double(), inputs, sym), SAME),
        ("noise", iw.same(model, moved_noise, inputs, sym), RELATED),
        ("other seed", iw.same(model, build(5)[0], inputs, sym), DIFFERENT),
    ]
    for case, found, expected in cases:
        tally.setdefault(case, []).append(found.verdict == expected)
    one, two = iw.canonical(model, inputs, sym), iw.canonical(twin, inputs, sym)
    pairs = [(p, q) for p, q in zip(one.state_dict().values(), two.state_dict().values()) if p.is_floating_point()]
    apart = max(((p - q).abs().max().item() for p, q in pairs), default=0.0)
    tally.setdefault("canonical", []).append(apart < 1e-6 and function_error(model, one, inputs) < 1e-6)
    numbers = (invariants(sym, tensors_of(m)) for m in (model, twin))
    spread = torch.stack(list(numbers)).diff(dim=0).abs().max().item()
    fingerprints(sym, build, tally)
    words = " | ".join(said(found, expected) for _, found, expected in cases)
    return f"| {name} | {words} | {seconds:.2f} | {apart:.0e} | {spread:.0e} |"


def fingerprints(sym: "iw.Symmetry", build: Build, tally: dict[str, list[bool]]) -> None:
    """Copies of a few networks in both precisions, and the networks among themselves."""
    marks = []
    for seed in range(SEEDS):
        model = build(seed)[0]
        for dtype in (torch.float32, torch.float64):
            cast = copy.deepcopy(model).to(dtype)
            mark = fingerprint_state(sym, tensors_of(cast))
            for k in range(COPIES):
                twin = sym.act(sym.random(seed=10 * seed + k), cast)
                equal = fingerprint_state(sym, tensors_of(twin)) == mark
                tally.setdefault(f"fingerprint {str(dtype).removeprefix('torch.')}", []).append(equal)
        marks.append(mark)
    tally.setdefault("fingerprint collision", []).extend(a != b for a, b in combinations(marks, 2))


def summary(tally: dict[str, list[bool]]) -> list[str]:
    """How often each expectation failed."""
    return [f"- {case}: {results.count(False)} of {len(results)} failed" for case, results in tally.items()]


def main() -> None:
    """Print the table; with ``--write`` also put it into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures of the zoos; all by default")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines, tally = [HEADER, "|---|---|---|---|---|---|---|---|"], {}
    print("\n".join(lines), flush=True)
    for name, build in models(options.names):
        lines.append(row(name, build, tally))
        print(lines[-1], flush=True)
    lines += ["", *summary(tally)]
    print("\n".join(["", *summary(tally)]))
    if options.write:
        page = ROOT / "docs" / "benchmarks.md"
        before, _, rest = page.read_text().partition("<!-- same -->\n")
        _, _, after = rest.partition("<!-- end same -->")
        table = "\n".join(lines)
        page.write_text(f"{before}<!-- same -->\n{table}\n<!-- end same -->{after}")


if __name__ == "__main__":
    main()
