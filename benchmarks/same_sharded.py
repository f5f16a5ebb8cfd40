"""Two sharded checkpoints in bfloat16: seconds and memory of ``same``, and whether the verdict is right.

    python benchmarks/same_sharded.py                       # 1.1 billion weights, about 9 GB on disk
    python benchmarks/same_sharded.py --layers 4            # smaller

The network is a Llama (width 2048, 22 blocks, 32 heads of which 4 have keys, vocabulary 32,000) with random weights.
The model is built without weights; checkpoints are made tensor by tensor: a symmetric copy (all kinds of elements), the
copy with noise of a hundredth of each tensor, and another seed. Each comparison runs in a process of its own, on one
thread; seconds are process time, megabytes the process's peak, and those that the imports need are given beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from _timing import peak_memory
from safetensors.torch import save_file

import intertwine as iw
from intertwine.symmetry import StoredState, Symmetry, write_shards
from intertwine.symmetry.coupling import coupled
from intertwine.symmetry.spaces import axis_size

CASES = ("copy", "noise", "seed")


def symmetry(layers: int, width: int) -> Symmetry:
    """The symmetry of the network, found without weights."""
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 11 // 4, num_attention_heads=width // 64,
        num_key_value_heads=max(width // 512, 1), vocab_size=32_000, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
        return iw.symmetries(model, torch.zeros(1, 8, dtype=torch.long))


def shapes(sym: Symmetry) -> dict[str, tuple[int, ...]]:
    """Name of each tensor to its shape."""
    return {name: tuple(axis_size(axis) for axis in layout.axes) for name, layout in sym.layouts.items()}


def write(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """One shard for each tensor, and an index."""
    folder.mkdir()
    table = {}
    for i, (name, tensor) in enumerate(tensors):
        table[name] = f"model-{i:05d}.safetensors"
        save_file({name: tensor.bfloat16().contiguous()}, folder / table[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def random_tensors(sym: Symmetry, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Gains near one, matrices as they are initialised."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes(sym).items():
        x = torch.randn(shape, generator=generator)
        yield name, 1 + 0.1 * x if len(shape) == 1 else 0.02 * x


def with_noise(folder: Path, size: float) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint, each with noise."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in StoredState(folder).items():
        x = tensor.float()
        yield name, x + size * x.square().mean().sqrt() * torch.randn(x.shape, generator=generator)


def compared(a: Path, b: Path, layers: int, width: int) -> dict[str, object]:
    """One comparison in this process."""
    torch.set_num_threads(1)
    sym = symmetry(layers, width)
    before, start = peak_memory(), time.process_time()
    found = iw.same(StoredState(a), StoredState(b), None, sym)
    seconds = time.process_time() - start
    return {
        "verdict": found.verdict, "residual": found.residual, "precision": found.precision,
        "seconds": seconds, "megabytes": peak_memory(), "imports": before,
    }  # fmt: skip


def asked(description: str, cases: tuple[str, ...]) -> argparse.Namespace:
    """Sizes of the network, cases, and whether this process is the one that compares."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--case", choices=cases, action="append")
    parser.add_argument("--compare", nargs=2, type=Path, help="compare two checkpoints in this process, print JSON")
    return parser.parse_args()


def main() -> None:
    """Make the checkpoints, compare them, and print a table."""
    options = asked(__doc__, CASES)
    if options.compare:
        print(json.dumps(compared(*options.compare, options.layers, options.width)))
        return
    sym = symmetry(options.layers, options.width)
    sizes = {name: 2e-6 * torch.Size(shape).numel() for name, shape in shapes(sym).items()}
    largest = max(sum(sizes[name] for name in names) for names in coupled(sym))
    print(f"{5e5 * sum(sizes.values()):,.0f} weights; largest coupled group {largest:,.0f} MB")
    print("| case | verdict | residual | seconds | peak MB | of which imports |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "a", random_tensors(sym, 0))
        for case in options.case or CASES:
            if case == "seed":
                write(folder / case, random_tensors(sym, 5))
            else:
                write_shards(folder / "copy", sym.act(sym.random(seed=3), StoredState(folder / "a")), 2**28)
            if case == "noise":
                write(folder / case, with_noise(folder / "copy", 0.01))
            command = [sys.executable, __file__, "--compare", str(folder / "a"), str(folder / case)]
            command += ["--layers", str(options.layers), "--width", str(options.width)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            one = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {case} | {one['verdict']} | {one['residual']:.4f} | {one['seconds']:.0f} "
                f"| {one['megabytes']:,.0f} | {one['imports']:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
