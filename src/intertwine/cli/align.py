"""``intertwine align``: one checkpoint brought into the basis of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._example import InputShape, Tokens
from ._options import Data, Device, Json, Model, Seed, split_commas
from ._show import say

if TYPE_CHECKING:
    from ..matching import Alignment, Solver
    from ._pairs import Group

__all__ = ["align"]

_WRITTEN = ("alignment.safetensors", "results.json", "report.html", "moved", "moved.safetensors", "moved.json")
_LOOK_AT_DATA = ("activations", "mixed", "straight-through")


def align(
    context: typer.Context,
    a: Annotated[
        Path, typer.Argument(metavar="A", help="Checkpoint whose basis is kept, or a Hugging Face directory.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="Checkpoint that moves, or a Hugging Face directory.")],
    model: Model = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where its widths are others.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="weights, activations, mixed, frank-wolfe, sinkhorn, straight-through, or transport (other widths). "
            "Options follow a colon: sinkhorn:steps=300,temperature=0.05."
        ),
    ] = "weights",
    kinds: Annotated[
        list[str] | None,
        typer.Option(metavar="KINDS", help="Search only these: permutation, scale, sign, linear, joined by commas."),
    ] = None,
    data: Data = None,
    examples: Annotated[int, typer.Option(min=4, help="Look at so many examples of the training split.")] = 5000,
    batch_size: Annotated[int, typer.Option(min=2, help="Examples that run at once.")] = 250,
    input_shape: InputShape = None,
    tokens: Tokens = None,
    sharded: Annotated[
        bool,
        typer.Option("--sharded", help="Read tensor by tensor what does not fit in memory; permutations and signs."),
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the moved network, the alignment and report.html.")
    ] = Path("alignment"),
    as_json: Json = False,
) -> None:
    """Bring checkpoint B into the basis of checkpoint A: other weights, the same function.

    Units are permuted, rescaled, flipped and rotated as far as the architecture allows, so that B lies as close to A as
    the method can bring it. No list of layers is needed, for any model. Writes the moved B, the alignment and a page.
    With --method transport, B is brought to the widths of A, which changes its function.
    With --sharded, one tensor of each checkpoint is in memory, and the moved B is written in shards.

    Example:
      intertwine align a.safetensors b.safetensors --model resnet20
      intertwine align a.safetensors b.safetensors --method activations --data digits
      intertwine align gpt_a gpt_b
      intertwine align a.safetensors b.safetensors --model my_code.py:network --input-shape 2,16 --tokens 50257
      intertwine align llama_a llama_b --sharded
    """
    from ..merging import export
    from ._outputs import claim_folder
    from ._pairs import open_group
    from ._solvers import solver_of

    solver = solver_of(method, ("transport",))
    chosen = split_commas(kinds, "--kinds")
    claim_folder(out, _WRITTEN, [a, b])
    if sharded:
        _say(
            *_sharded(a, b, model, method, chosen, example_of=(data, input_shape, tokens), seed=seed, out=out), as_json
        )
        return
    use = "always" if method.partition(":")[0] in _LOOK_AT_DATA else "if given"
    group = open_group([a, b], [model, model_b or model], data, input_shape, tokens, use, device)  # type: ignore[arg-type]
    loader = group.loader("train", examples, batch_size) if group.data is not None else None
    if method == "transport":
        moved, said, files = _transported(group)
    else:
        moved, said, files = _aligned(group, solver, loader, seed, chosen, out)
    files["moved"] = export(moved, _place(group, out), _card(group, method, context.obj))
    _say(said, files, as_json)


def _say(said: dict[str, Any], files: dict[str, Path], as_json: bool) -> None:
    from ._show import print_json, tell

    if as_json:
        print_json({**said, "files": files})
        return
    say(said["text"])
    tell(f"wrote {', '.join(str(path) for path in files.values())}")


def _aligned(
    group: Group, method: str | Solver, loader: Any, seed: int, kinds: list[str] | None, out: Path
) -> tuple[Any, dict[str, Any], dict[str, Path]]:
    """The moved network, what to say of it, and what was written."""
    from ..matching import align as find

    one, other = group.models
    found = find(one, other, group.example, method=method, loader=loader, seed=seed, kinds=kinds)
    return found.apply(other), *_written(found, out)


def _written(found: Alignment, out: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    files = {
        "alignment": found.save(out / "alignment.safetensors"),
        "results": found.save(out / "results.json"),
        "report": found.to_html(out / "report.html"),
    }
    keys = ("method", "objective", "before", "after", "notes")
    said = {key: getattr(found, key) for key in keys}
    return {"text": repr(found), **said, "spaces": found.to_frame().to_dict("records")}, files


def _sharded(
    a: Path,
    b: Path,
    model: str | None,
    method: str,
    kinds: list[str] | None,
    example_of: tuple[str | None, str | None, int | None],
    seed: int,
    out: Path,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Align without ever holding a network; the model is built without weights.

    Raises:
        ValueError: If another method is asked for, or nothing says which model.
    """
    import torch

    from ..lab.training import read_card
    from ..matching import align_sharded
    from ..symmetry import symmetries
    from ._example import example_input
    from ._hugging_face import HF
    from ._models import build_model
    from ._networks import spec_of
    from ._threads import threads_for

    if method != "weights":
        raise ValueError(f"--method must be weights for --sharded. Got {method!r}.")
    if model is None and a.is_dir() and not (a / "config.json").is_file():
        raise ValueError(f"--model must be given where no config.json says which. Got none for {str(a)!r}.")
    spec = model or (f"{HF}{a}" if a.is_dir() else spec_of(read_card(a), a, "--model"))
    with torch.device("meta"):
        network = build_model(spec).eval()
    threads_for(weights=sum(p.numel() for p in network.parameters()))
    sym = symmetries(network, example_input(spec, *example_of, meta=True))
    found = align_sharded(a, b, sym, out / "moved", kinds or ("permutation", "sign"), seed)
    said, files = _written(found, out)
    return said, {**files, "moved": _with_configuration(b, out / "moved")}


def _with_configuration(source: Path, target: Path) -> Path:
    """Put what lies beside the weights of a Hugging Face directory, such as its tokenizer, beside the moved ones."""
    from functools import partial

    from .._io import write_atomically

    for file in sorted(source.iterdir()) if source.is_dir() else ():
        if file.is_file() and file.suffix in (".json", ".txt", ".model") and not file.name.endswith(".index.json"):
            write_atomically(target / file.name, partial(_copy, file))
    return target


def _copy(file: Path, to: Path) -> None:
    to.write_bytes(file.read_bytes())


def _transported(group: Group) -> tuple[Any, dict[str, Any], dict[str, Path]]:
    from ..merging import transport

    one, other = group.models
    found = transport(one, other, group.example)
    said = {"text": repr(found), "method": "transport", "sizes": dict(found.sizes), "costs": dict(found.costs)}
    return found.apply(other), said, {}


def _place(group: Group, out: Path) -> Path:
    """A folder where B came as one, a file otherwise."""
    return out / ("moved" if group.checkpoints[1].tensors is None else "moved.safetensors")


def _card(group: Group, method: str, command: str) -> dict[str, Any]:
    from ._pairs import card_of

    a, b = group.names
    return card_of(group, {"aligned": b, "to": a, "method": method, "command": command}, {})
