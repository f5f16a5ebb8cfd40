"""``intertwine align``: one checkpoint brought into the basis of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._example import InputShape, Tokens
from ._options import Data, Device, Json, Model, Seed, split_commas

if TYPE_CHECKING:
    from ._pairs import Group

__all__ = ["align"]

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
            help="weights, activations, mixed, frank-wolfe, sinkhorn, straight-through, or transport (other widths)."
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

    Example:
      intertwine align a.safetensors b.safetensors --model resnet20
      intertwine align a.safetensors b.safetensors --method activations --data digits
      intertwine align gpt_a gpt_b --input-shape 2,16 --tokens 50257
    """  # noqa: DOC501
    from ..align import METHODS, export
    from ._pairs import open_group
    from ._results import prepare_folder
    from ._show import print_json, tell

    if method not in (*METHODS, "transport"):
        raise ValueError(f"--method must be one of {', '.join(METHODS)} or transport. Got {method!r}.")
    chosen = split_commas(kinds, "--kinds")
    prepare_folder(out)
    use = "always" if method in _LOOK_AT_DATA else "if given"
    group = open_group([a, b], [model, model_b or model], data, input_shape, tokens, use, device)  # type: ignore[arg-type]
    loader = group.loader("train", examples, batch_size) if group.data is not None else None
    if method == "transport":
        moved, said, files = _transported(group)
    else:
        moved, said, files = _aligned(group, method, loader, seed, chosen, out)
    files["moved"] = export(moved, _place(group, out), _card(group, method, context.obj))
    if as_json:
        print_json({**said, "files": files})
        return
    print(said["text"])
    tell(f"wrote {', '.join(str(path) for path in files.values())}")


def _aligned(
    group: Group, method: str, loader: Any, seed: int, kinds: list[str] | None, out: Path
) -> tuple[Any, dict[str, Any], dict[str, Path]]:
    """The moved network, what to say of it, and what was written."""
    from ..align import align as find

    one, other = group.models
    found = find(one, other, group.example, method=method, loader=loader, seed=seed, kinds=kinds)
    files = {
        "alignment": found.save(out / "alignment.safetensors"),
        "results": found.save(out / "results.json"),
        "report": found.to_html(out / "report.html"),
    }
    keys = ("method", "objective", "before", "after", "seconds", "notes")
    said = {key: getattr(found, key) for key in keys}
    return found.apply(other), {"text": repr(found), **said, "spaces": found.to_frame().to_dict("records")}, files


def _transported(group: Group) -> tuple[Any, dict[str, Any], dict[str, Path]]:
    from ..align import transport

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
