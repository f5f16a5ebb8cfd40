"""``intertwine merge``: one network from several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._example import InputShape, Tokens
from ._options import Data, Device, Json, Model, Seed, split_commas

if TYPE_CHECKING:
    from torch import nn

    from ._pairs import Group

__all__ = ["merge"]

_LOOK_AT_DATA = ("activations", "mixed", "straight-through")


def merge(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path],
        typer.Argument(metavar="A B [C ...]", help="Checkpoints of one architecture, or Hugging Face directories."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="FILE.safetensors, or a folder for a model of transformers."),
    ],
    model: Model = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where its widths are others.")
    ] = None,
    ratio: Annotated[float, typer.Option(min=0, max=1, help="The share of B, for two networks.")] = 0.5,
    method: Annotated[
        str, typer.Option(help="How to align, see 'intertwine align --help'; none for networks in one basis already.")
    ] = "weights",
    interpolation: Annotated[str, typer.Option(help="linear or spherical.")] = "linear",
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Merge only these, joined by commas: beginnings of tensor names or patterns."
        ),
    ] = None,
    repair: Annotated[
        str, typer.Option(help="auto, none, recalibrate (batch norms), repair or rescale (networks without them).")
    ] = "auto",
    data: Data = None,
    examples: Annotated[int, typer.Option(min=4, help="Use so many examples of each split at most.")] = 5000,
    batch_size: Annotated[int, typer.Option(min=2, help="Examples that run at once.")] = 250,
    input_shape: InputShape = None,
    tokens: Tokens = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Merge networks of one architecture into one of the same size: align, average, repair.

    With data, statistics are repaired on the training split, and all networks are scored on the test split. Two
    networks are merged in the basis and with the widths of A; more of them around their common mean.

    Example:
      intertwine merge a.safetensors b.safetensors --data digits --out merged.safetensors
      intertwine merge seed*.safetensors --model resnet20 --data cifar10:PATH --out merged.safetensors
      intertwine merge vit_a vit_b --input-shape 2,3,224,224 --out merged
    """
    from ..matching import METHODS
    from ..merging import export
    from ._pairs import card_of, open_group
    from ._show import print_json, print_table, tell

    _check(checkpoints, out, method, interpolation, repair, ratio, layers, tuple(METHODS))
    use = "always" if method in _LOOK_AT_DATA or repair not in ("auto", "none") else "of card"
    specs = [model, *[model_b or model] * (len(checkpoints) - 1)]
    use = use if repair != "none" or method in _LOOK_AT_DATA else "if given"
    group = open_group(checkpoints, specs, data, input_shape, tokens, use, device)  # type: ignore[arg-type]
    chosen = _repair(group, repair)
    loader = group.loader("train", examples, batch_size) if group.data is not None else None
    merged = _merged(group, method, ratio, interpolation, split_commas(layers, "--layers"), chosen, loader, seed)
    scores = _scores(group, merged, examples, batch_size)
    recipe = {
        "merged": group.names, "ratio": ratio, "method": method, "interpolation": interpolation,
        "layers": layers or "all", "repair": repair, "seed": seed, "command": context.obj,
    }  # fmt: skip
    metrics = {} if not scores else {"test_accuracy": scores[-1][2], "test_loss": scores[-1][1]}
    written = export(merged, out, card_of(group, recipe, metrics))
    if as_json:
        listed = [{"network": name, "loss": loss, "accuracy": accuracy} for name, loss, accuracy in scores]
        print_json({"merged": written, "scores": listed, **recipe})
        return
    if scores:
        rows = [[name, loss, "" if accuracy is None else f"{accuracy:.1%}"] for name, loss, accuracy in scores]
        print_table(["network", "test loss", "test accuracy"], rows)
    tell(f"wrote {written}")


def _check(
    checkpoints: list[Path],
    out: Path,
    method: str,
    interpolation: str,
    repair: str,
    ratio: float,
    layers: list[str] | None,
    methods: tuple[str, ...],
) -> None:
    """Refuse what cannot work before anything is read.

    Raises:
        ValueError: If options do not exist or do not go together.
    """
    from ._outputs import claim_file, claim_folder

    if len(checkpoints) < 2:
        raise ValueError(f"at least two checkpoints must be given. Got {len(checkpoints)}.")
    if method not in (*methods, "transport", "none"):
        raise ValueError(f"--method must be one of {', '.join(methods)}, transport or none. Got {method!r}.")
    if interpolation not in ("linear", "spherical"):
        raise ValueError(f"--interpolation must be linear or spherical. Got {interpolation!r}.")
    if repair not in ("auto", "none", "recalibrate", "repair", "rescale"):
        raise ValueError(f"--repair must be auto, none, recalibrate, repair or rescale. Got {repair!r}.")
    if len(checkpoints) > 2 and (
        ratio != 0.5 or interpolation != "linear" or layers or method in ("transport", "none")
    ):
        raise ValueError(
            "--ratio, --interpolation, --layers and --method transport must be for two networks. "
            f"Got {len(checkpoints)}, which are averaged."
        )
    if out.suffix == ".safetensors":
        claim_file(out, checkpoints, [out.with_suffix(".json")])
    elif out.suffix or out.is_file():
        raise ValueError(f"--out must end in .safetensors, or be a folder. Got {str(out)!r}.")
    else:
        claim_folder(out, ["."], checkpoints)


def _repair(group: Group, repair: str) -> Any:
    """What ``merge`` calls it.

    Raises:
        ValueError: If a network with batch norms has neither data nor the word none.
    """
    from ..merging.recalibrate import batch_norms

    if repair == "auto" and group.data is None and batch_norms(group.models[0]):
        raise ValueError(
            "--data must be given to repair a network with batch norms. Got none. Say --data digits, for example, or "
            "--repair none."
        )
    return {"auto": True, "none": False}.get(repair, repair)


def _merged(
    group: Group,
    method: str,
    ratio: float,
    interpolation: Any,
    layers: list[str] | None,
    repair: Any,
    loader: Any,
    seed: int,
) -> nn.Module:
    from ..matching import align
    from ..merging import merge as merge_two
    from ..merging import merge_many, transport

    if len(group.models) > 2:
        return merge_many(group.models, group.example, method, repair=repair, loader=loader, seed=seed, progress=True)
    one, other = group.models
    found: Any = None
    if method == "transport":
        found = transport(one, other, group.example)
    elif method != "none":
        found = align(one, other, group.example, method=method, loader=loader, seed=seed)
    return merge_two(one, other, found, ratio, repair, loader=loader, interpolation=interpolation, layers=layers)


def _scores(group: Group, merged: nn.Module, examples: int, batch_size: int) -> list[tuple[str, float, float | None]]:
    """Loss and accuracy of all networks on the test split, the merged one last."""
    from ..features.evaluate import evaluate

    if group.data is None:
        return []
    loader = group.loader("test", examples, batch_size)
    found = []
    for name, model in [*zip(group.names, group.models), ("merged", merged)]:
        result = evaluate(model, loader)
        found.append((name, result.loss, result.accuracy))
    return found
