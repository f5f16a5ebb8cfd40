"""Two sharded checkpoints of 1.1 billion weights in bfloat16: seconds and memory of ``lineage``, on one thread.

    python benchmarks/lineage_sharded.py                       # about 7 GB on disk
    python benchmarks/lineage_sharded.py --layers 4            # smaller

The network is the Llama of ``same_sharded.py``. The second checkpoint is the first with noise of a hundredth of each
tensor, as it stands (tested exactly in place); another seed; or, with ``--case moved``, a symmetric copy, which is
matched component by component. Each comparison runs in a process of its own; seconds are process time.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from same_sharded import asked, peak_memory, random_tensors, symmetry, with_noise, write

from intertwine.provenance import lineage_of_states
from intertwine.symmetry import StoredState, write_shards

CASES = ("noise", "seed", "moved")


def compared(a: Path, b: Path, layers: int, width: int) -> dict[str, object]:
    """One comparison in this process."""
    torch.set_num_threads(1)
    sym = symmetry(layers, width)
    before, start, wall = peak_memory(), time.process_time(), time.perf_counter()
    found = lineage_of_states(sym, StoredState(a), StoredState(b))
    return {
        "verdict": found.headline, "seconds": time.process_time() - start, "wall": time.perf_counter() - wall,
        "megabytes": peak_memory(), "imports": before,
    }  # fmt: skip


def main() -> None:
    """Make the checkpoints, compare them, and print a table."""
    options = asked(__doc__, CASES)
    if options.compare:
        print(json.dumps(compared(*options.compare, options.layers, options.width)))
        return
    sym = symmetry(options.layers, options.width)
    print("| case | verdict | seconds | wall | peak MB | of which imports |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "a", random_tensors(sym, 0))
        for case in options.case or CASES:
            if case == "moved":
                write_shards(folder / case, sym.act(sym.random(seed=3), StoredState(folder / "a")), 2**28)
            else:
                write(folder / case, random_tensors(sym, 5) if case == "seed" else with_noise(folder / "a", 0.01))
            command = [sys.executable, __file__, "--compare", str(folder / "a"), str(folder / case)]
            command += ["--layers", str(options.layers), "--width", str(options.width)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            one = json.loads(done.stdout.splitlines()[-1])
            row = (case, one["verdict"], f"{one['seconds']:.0f}", f"{one['wall']:.0f}", f"{one['megabytes']:,.0f}")
            print(f"| {' | '.join(row)} | {one['imports']:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
