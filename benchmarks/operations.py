"""Every operation of torch's own test database in a sandwich: a hidden axis, the operation, a read-out.

Each sample of each operation gets its floating-point arguments from linear maps (with or without a nonlinearity)
along a random axis, and its results are read along a random axis. Where the engine says that the hidden units may
move, random elements are acted with and the outputs compared in float64::

    python benchmarks/operations.py --found operations.jsonl --write

Operations that the file of ``--found`` has counts for are not tried again, so a run that was stopped goes on. Other
sandwiches of the same operations come with another ``--seed``.
The database is part of torch's test tools (``torch.testing._internal``) and needs the package ``expecttest``.
"""

import argparse
import copy
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import intertwine as iw
from intertwine.errors import CaptureError

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from random_programs import worst_change  # noqa: E402

TOLERANCE = 1e-6
CASTS = {"half", "bfloat16", "float", "chalf", "cfloat"}  # rounding is no wrong answer
NO_FUNCTION = {"empty_like", "new_empty", "new_empty_strided"}  # contents of fresh memory
ACTIVATIONS = (lambda x: x, torch.relu, torch.tanh)


class Sandwich(nn.Module):
    """An operation whose arguments are hidden features and whose results are read by linear maps."""

    def __init__(self, op: Any, sample: Any, rng: random.Random) -> None:
        super().__init__()
        self.op, self.w = op, nn.ParameterList()
        self.calls, self.cache = 0, {}
        leaves, self.tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.leaves = [x.detach().double() if _real(x) else x for x in leaves]
        self.hidden: dict[int, tuple[int, int, Any]] = {}  # leaf -> its axis, its parameter, its activation
        self.shapes: list[list[int]] = []
        for i, leaf in enumerate(self.leaves):
            if _real(leaf) and leaf.dim() and leaf.numel() and rng.random() < 0.8:
                self._hide(i, leaf, rng)
        self.readers = [self._reader(out, rng) for out in self.results(self.example(0))]

    def _hide(self, i: int, leaf: Tensor, rng: random.Random) -> None:
        dim = rng.randrange(leaf.dim())
        if leaf.shape[dim] < 2:
            dim = max(range(leaf.dim()), key=lambda d: leaf.shape[d])
        width = rng.choice((2, 3))
        self.w.append(nn.Parameter(torch.randn(leaf.shape[dim], width, dtype=torch.float64) / width**0.5))
        self.hidden[i] = dim, len(self.w) - 1, rng.choice(ACTIVATIONS)
        self.shapes.append([width if d == dim else n for d, n in enumerate(leaf.shape)])

    def _reader(self, out: Tensor, rng: random.Random) -> tuple[int, int] | None:
        if not (_real(out) and out.dim() and out.numel()):
            return None
        dim = rng.randrange(out.dim())
        self.w.append(nn.Parameter(torch.randn(2, out.shape[dim], dtype=torch.float64)))
        return dim, len(self.w) - 1

    def example(self, seed: int) -> tuple[Tensor, ...]:
        """Inputs from which the arguments are made."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes)

    def results(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """The tensors that the operation returns."""
        given, leaves = iter(inputs), []
        for i, leaf in enumerate(self.leaves):
            if i in self.hidden:
                dim, w, activation = self.hidden[i]
                leaves.append(activation(torch.tensordot(self.w[w], next(given).movedim(dim, 0), 1).movedim(0, dim)))
            else:
                leaves.append(leaf.clone() if isinstance(leaf, Tensor) else leaf)
        first, args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return [t for t in pytree.tree_leaves(self.op(first, *args, **kwargs)) if isinstance(t, Tensor)]

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        """The results, each contracted along one axis where it is real, as it is otherwise."""
        read = []
        for out, reader in zip(self.results(inputs), self.readers):
            if reader is None:
                read.append(torch.view_as_real(out) if out.is_complex() else out.double())
            else:
                read.append(torch.tensordot(self.w[reader[1]].to(out.dtype), out.movedim(reader[0], 0), 1))
        return read


def _real(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided


def sandwiches(op: Any, seed: int) -> Iterator[Sandwich]:
    """Sandwiches of one operation that run and give the same numbers twice."""
    rng = random.Random(f"{op.name} {seed}")
    samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=False))
    rng.shuffle(samples)
    for sample in samples[:14] * 2:
        torch.manual_seed(0)
        try:
            model = Sandwich(op.op, sample, rng).eval()
            first, again = model(*model.example(0)), model(*model.example(0))
            settled = all(torch.equal(a, b) for a, b in zip(first, again))
            model(*model.example(1)), model(*model.example(2))
        except Exception:  # a sample whose arguments must be special, or whose results are sparse
            continue
        if model.shapes and settled:
            yield model


def attack(model: Sandwich) -> str:
    """What one sandwich shows: ``"moves"``, ``"fixed"``, ``"refused"``, ``"unstable"`` or ``"wrong"``.

    Where a change of the weights in their last places changes the outputs as much as an element does (singular vectors
    of a matrix of lower rank), the numbers say nothing.
    """
    inputs = [model.example(k) for k in range(3)]
    try:
        sym = iw.symmetries(model, inputs[0])
    except CaptureError:
        return "refused"
    if not sym.spaces:
        return "fixed"
    try:
        if worst_change(sym, model, inputs).error <= TOLERANCE or sym.dtype != torch.float64:
            return "moves"
        return "unstable" if rounding(model, inputs) > TOLERANCE else "wrong"
    except torch.linalg.LinAlgError:  # singular but for rounding
        return "unstable"


def rounding(model: Sandwich, inputs: list[tuple[Tensor, ...]]) -> float:
    """Largest change of an output when every weight changes by a few units in its last place."""
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for w in noisy.parameters():
            w.mul_(1 + 1e-15 * torch.randn(w.shape, generator=generator, dtype=w.dtype))
        pairs = [(a, b) for x in inputs for a, b in zip(model(*x), noisy(*x)) if a.numel()]
    return max((float((a - b).abs().max() / a.abs().max().clamp_min(1e-300)) for a, b in pairs), default=0.0)


def counts_of(op: Any, seed: int, seconds: float) -> dict[str, int]:
    """How many sandwiches of one operation end in which way, as far as the time allows."""
    counts, start = Counter(), time.perf_counter()
    for model in sandwiches(op, seed):
        found = attack(model)
        counts[found] += 1
        if found == "wrong":
            print(f"{op.name} {op.variant_test_name}: wrong", flush=True)
        if time.perf_counter() - start > seconds:
            break
    return dict(counts)


def main() -> None:
    """Attack every operation and print the counts; with ``--write`` also put them into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the line in docs/benchmarks.md")
    parser.add_argument("--seconds", type=float, default=1.5, help="time for one operation")
    parser.add_argument("--seed", type=int, default=0, help="which sandwiches")
    parser.add_argument("--found", type=Path, default=None, help="file of the counts so far, a line for an operation")
    options = parser.parse_args()
    if find_spec("expecttest") is None:
        print("Not run: the database of torch's tests needs the package expecttest.")
        return
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = options.found.read_text().splitlines() if options.found and options.found.exists() else []
    done = {tuple(name): counts for name, counts in map(json.loads, lines)}
    for op in op_db:
        name = (op.name, op.variant_test_name)
        if name in done or torch.float64 not in op.dtypes or op.name in CASTS | NO_FUNCTION:
            continue
        done[name] = counts_of(op, options.seed, options.seconds)
        if options.found:
            with options.found.open("a") as file:
                file.write(json.dumps((name, done[name])) + "\n")
    counts = sum(map(Counter, done.values()), Counter())
    columns = ("moves", "fixed", "refused", "unstable", "wrong")
    table = [
        f"| operations | sandwiches | {' | '.join(columns)} |",
        "|---|---|---|---|---|---|---|",
        f"| {len(done)} | {counts.total():,} | {' | '.join(f'{counts[c]:,}' for c in columns)} |",
    ]
    print("\n".join(table))
    if options.write:
        page = ROOT / "docs" / "benchmarks.md"
        before, _, rest = page.read_text().partition("<!-- operations -->\n")
        _, _, after = rest.partition("<!-- end operations -->")
        page.write_text("\n".join([f"{before}<!-- operations -->", *table, f"<!-- end operations -->{after}"]))
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
