"""The symmetries of many architectures: spaces, generators, dimension, worst error, seconds.

One command fills the table in ``docs/benchmarks.md``::

    python benchmarks/symmetries.py --write

``--networks`` tries the networks of other libraries instead (``benchmarks/networks``; ``make networks`` installs timm,
torchvision and PyTorch Geometric): their verdicts and what stays fixed, and why. Verdicts are kept in a file while it
runs, so that an interrupted run goes on. ``--quick`` runs ten small ones and the full-size ones. Errors are relative:
the worst of five random elements of each kind (permutation, scale, sign, linear), in float64 unless the model's own
code casts down.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import intertwine as iw

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import transformers_zoo  # noqa: E402
import zoo  # noqa: E402

KINDS = ("permutation", "scale", "sign", "linear")
SEEDS = 5
BUDGET = 5.0  # seconds for a ResNet-50 and a ViT-B
HEADER = "| model | parameters | spaces | scale generators | sign generators | dimension | worst error | seconds |"


def tensors_of(output: object) -> Iterator[Tensor]:
    """All floating-point tensors in a nested output, beside logits no hidden states and outputs of parts."""
    if isinstance(output, dict) and any("logits" in key for key in output):
        output = [x for key, x in output.items() if "logits" in key or (isinstance(x, Tensor) and "hidden" not in key)]
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_of(value)


def run(model: nn.Module, inputs: tuple | dict) -> list[Tensor]:
    """Outputs of a model on positional or keyword inputs."""
    with torch.no_grad():
        return list(tensors_of(model(**inputs) if isinstance(inputs, dict) else model(*inputs)))


def worst_error(sym: "iw.Symmetry", model: nn.Module, inputs: tuple | dict) -> float:
    """Largest relative change of any output under random elements of each kind."""
    before, worst = run(model, inputs), 0.0
    for kind in KINDS:
        for seed in range(SEEDS):
            after = run(sym.act(sym.random(seed, {kind}), model), inputs)
            errors = [((a - b).abs().max() / b.abs().max().clamp_min(1e-300)).item() for a, b in zip(after, before)]
            worst = max(worst, *errors)
    return worst


def best_seconds(find: Callable[[], object], repeats: int = 3) -> float:
    """Shortest process time of several runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        find()
        times.append(time.process_time() - start)
    return min(times)


def small_models(quick: bool) -> Iterator[tuple[str, nn.Module, tuple | dict]]:
    """The zoos of the test suite, in float64."""
    for name in list(zoo.ZOO)[: 10 if quick else None]:
        yield name, *zoo.build(name)
    for name, make in [] if quick else transformers_zoo.MAKERS.items():
        torch.manual_seed(0)
        model, kwargs = make()
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in kwargs.items()}
        yield name, model.double(), inputs


def large_models() -> Iterator[tuple[str, nn.Module, tuple | dict]]:
    """Full-size configurations on the meta device: found without weights."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        ResNetConfig,
        ResNetForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    with torch.device("meta"):
        image = {"pixel_values": torch.empty(2, 3, 224, 224)}
        yield "ResNet-50 (meta)", ResNetForImageClassification(ResNetConfig()).eval(), image
        yield "ViT-B/16 (meta)", ViTForImageClassification(ViTConfig()).eval(), image
        llama = LlamaForCausalLM(LlamaConfig(use_cache=False)).eval()
        yield "Llama 7B (meta)", llama, {"input_ids": torch.empty(2, 8, dtype=torch.long)}


def row(name: str, model: nn.Module, inputs: tuple | dict, repeats: int = 3) -> str:
    """One line of the table; a model on the meta device has no numbers to check."""
    sym = iw.symmetries(model, inputs)
    meta = any(p.is_meta for p in model.parameters())
    error = "not run" if meta else f"{worst_error(sym, model, inputs):.0e}"
    seconds = best_seconds(lambda: iw.symmetries(model, inputs), repeats)
    size = sum(p.numel() for p in model.parameters())
    scales, signs = sum(s.group.scales for s in sym.spaces), sum(s.group.signs for s in sym.spaces)
    cast = " (float32 inside)" if sym.dtype != torch.float64 and not meta else ""
    line = f"| {name} | {size:,} | {len(sym.spaces)} | {scales} | {signs} | {sym.dim} | {error}{cast} | {seconds:.2f} |"
    if meta and not name.startswith("Llama"):
        line += f" {'pass' if seconds <= BUDGET else 'FAIL'}: budget {BUDGET:.0f} s"
    return line


def put(page: Path, place: str, table: str) -> None:
    """Replace what stands between a mark and the next ``end`` on a page."""
    before, _, rest = page.read_text().partition(f"<!-- {place} -->\n")
    _, _, after = rest.partition("<!-- end -->")
    page.write_text(f"{before}<!-- {place} -->\n{table}\n<!-- end -->{after}")


def others(options: argparse.Namespace) -> None:
    """Verdicts on the networks of other libraries."""
    from networks import report, runner

    verdicts = []
    for verdict in runner.verdicts(options.networks or runner.LIBRARIES, options.cache, options.only):
        verdicts.append(verdict)
        print(f"{verdict.verdict:9} {verdict.library} {verdict.name} {verdict.error:.0e} {verdict.why}", flush=True)
    print(report.counts(verdicts))
    if options.write:
        put(ROOT / "docs" / "benchmarks.md", "networks", report.counts(verdicts))
        put(ROOT / "docs" / "networks.md", "networks", report.details(verdicts))


def main() -> None:
    """Print the table; with ``--write`` also put it into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten small models and the full-size ones")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    parser.add_argument("--networks", nargs="*", metavar="LIBRARY", help="networks of other libraries: all, or these")
    parser.add_argument("--only", default="", metavar="PART", help="networks whose names have this part")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "networks.jsonl", help="where verdicts are kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.networks is not None:
        others(options)
        return
    lines = [HEADER, "|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for name, model, inputs in [*small_models(options.quick), *large_models()]:
        lines.append(row(name, model, inputs))
        print(lines[-1], flush=True)
    if options.write:
        table = "\n".join(line.split(" pass:")[0].split(" FAIL:")[0] for line in lines)
        put(ROOT / "docs" / "benchmarks.md", "symmetries", table)


if __name__ == "__main__":
    main()
