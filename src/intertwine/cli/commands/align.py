"""``intertwine align``: one checkpoint brought into the basis of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._options import ExampleOptions, advanced, option, split_commas
from .._outputs import claim_folder, keep_beside, largest_shard, print_json, say, tell_written
from . import inputs, iw, solver_of

_WRITTEN = ("alignment.safetensors", "results.json", "report.html", "moved", "moved.safetensors", "moved.json")


@dataclass(frozen=True)
class AlignOptions(ExampleOptions):
    """Bring checkpoint B into the basis of checkpoint A: other weights, the same function.

    Units are permuted, rescaled, flipped and rotated as far as the architecture allows, so that B lies as close to A as
    the method can bring it. No list of layers is needed, for any model. Writes the moved B, the alignment and a page.
    With --method transport, B is brought to the widths of A, which changes its function.
    With --sharded, one tensor of each checkpoint is in memory, units are permuted and flipped only, and the moved B is
    written in shards.

    Example:
      intertwine align a.safetensors b.safetensors --model resnet20
      intertwine align a.safetensors b.safetensors --method activations --data digits
      intertwine align gpt_a gpt_b
      intertwine align a.safetensors b.safetensors --model my_code.py:network --input-shape 2,16 --tokens 50257
      intertwine align llama_a llama_b --sharded
    """

    methods = ("transport",)

    a: Path
    b: Path
    model: str | None = None
    model_b: str | None = None
    method: str = option(
        "weights",
        "weights, activations, mixed, frank-wolfe, sinkhorn, straight-through, or transport (other "
        "widths). Options follow a colon: sinkhorn:steps=300,temperature=0.05.",
    )
    kinds: list[str] | None = advanced(
        None, "Search only these: permutation, scale, sign, linear, joined by commas.", metavar="KINDS"
    )
    examples: int = 5000
    batch_size: int = 250
    sharded: bool = False
    seed: int = 0
    device: str = "auto"
    out: Path = option(Path("alignment"), "Folder for the moved network, the alignment and report.html.", metavar="DIR")


def run(asked: AlignOptions) -> None:
    """Bring checkpoint B into the basis of checkpoint A: other weights, the same function."""
    solver, kinds = solver_of(asked.method), split_commas(asked.kinds, "--kinds")
    claim_folder(asked.out, _WRITTEN, [asked.a, asked.b])
    said, files = _sharded(asked, kinds) if asked.sharded else _opened(asked, solver, kinds)
    if asked.as_json:
        print_json({**said, "files": files})
        return
    say(said["text"])
    tell_written(files)


def _opened(
    asked: AlignOptions, solver: str | iw.matching.Solver, kinds: list[str] | None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Align networks in memory, on data where the method looks at it."""
    group = inputs.open_group([asked.a, asked.b], asked, "always" if looks_at_data(asked.method) else "if given")
    loader = group.loader("train", asked.examples, asked.batch_size) if group.data is not None else None
    one, other = group.models
    if asked.method == "transport":
        brought = iw.merging.transport(one, other, group.example)
        files: dict[str, Path] = {}
        said: dict[str, Any] = {"text": brought.summary(), "method": "transport"}
        said |= {"sizes": dict(brought.sizes), "costs": dict(brought.costs)}
        moved = brought.apply(other)
    else:
        found = iw.align(one, other, group.example, method=solver, loader=loader, seed=asked.seed, kinds=kinds)
        moved, (said, files) = found.apply(other), _written(found, asked.out)
    # a folder where B came as one, a file otherwise
    place = asked.out / ("moved" if group.checkpoints[1].tensors is None else "moved.safetensors")
    a, b = group.names
    card = group.card({"aligned": b, "to": a, "method": asked.method, "command": asked.line})
    files["moved"] = keep_beside(asked.b, iw.merging.export(moved, place, card, largest_shard(asked.b)))
    return said, files


def _sharded(asked: AlignOptions, kinds: list[str] | None) -> tuple[dict[str, Any], dict[str, Path]]:
    """Align without ever holding a network; the model is built without weights."""
    if asked.method != "weights":
        raise ValueError(f"--method must be weights for --sharded. Got {asked.method!r}.")
    sym = inputs.symmetry_of(asked.model or inputs.model_named_by(asked.a), asked)
    place = asked.out / "moved"
    found = iw.matching.align_sharded(asked.a, asked.b, sym, place, kinds or ("permutation", "sign"), asked.seed)
    said, files = _written(found, asked.out)
    return said, {**files, "moved": keep_beside(asked.b, place)}


def _written(found: iw.Alignment, out: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    files = {
        "alignment": found.save(out / "alignment.safetensors"),
        "results": found.save(out / "results.json"),
        "report": found.to_html(out / "report.html"),
    }
    said = {key: getattr(found, key) for key in ("method", "objective", "before", "after", "notes")}
    return {"text": str(found), **said, "spaces": found.to_frame().to_dict("records")}, files


def looks_at_data(method: str) -> bool:
    """Whether a way to align runs the networks on data."""
    return method.partition(":")[0] in ("activations", "mixed", "straight-through")
