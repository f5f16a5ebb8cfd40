"""``intertwine merge``: one network from several."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Device, ExampleOptions, Json, Model, Seed, advanced


@dataclass(frozen=True)
class MergeOptions(ExampleOptions):
    """Merge networks of one architecture into one of the same size: align, average, repair.

    With data, statistics are repaired on the training split, and all networks are scored on the test split. Two
    networks are merged in the basis and with the widths of A; more of them around their common mean.

    Example:
      intertwine merge a.safetensors b.safetensors --data digits --out merged.safetensors
      intertwine merge seed*.safetensors --model resnet20 --data cifar10:PATH --out merged.safetensors
      intertwine merge vit_a vit_b --data images:photos --out merged
      intertwine merge ties.yml --out merged
      intertwine merge llama_a llama_b --mergekit handover.yml
    """

    suffixes = (".safetensors", "")
    methods = ("transport", "none")

    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...] | RECIPE.yml",
            help="Checkpoints of one architecture, or Hugging Face directories; or a recipe of mergekit that names "
            "them (linear, slerp, task_arithmetic, ties, dare_ties, dare_linear).",
        ),
    ]
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", help="FILE.safetensors, or a folder for a model of transformers."),
    ] = None
    mergekit: Annotated[
        Path | None,
        typer.Option(
            "--mergekit",
            metavar="FILE.yml",
            help="Write the recipe for mergekit, and the aligned networks that it names in a folder beside it.",
        ),
    ] = None
    model: Model = None
    model_b: Annotated[
        str | None, advanced("--model-b", metavar="MODEL", help="Model of B, where its widths are others.")
    ] = None
    ratio: Annotated[float, typer.Option(min=0, max=1, help="The share of B, for two networks.")] = 0.5
    method: Annotated[
        str, typer.Option(help="How to align, see 'intertwine align --help'; none for networks in one basis already.")
    ] = "weights"
    interpolation: Annotated[str, advanced(help="linear or spherical.")] = "linear"
    layers: Annotated[
        list[str] | None,
        advanced(metavar="NAMES", help="Merge only these, joined by commas: beginnings of tensor names or patterns."),
    ] = None
    repair: Annotated[
        str, typer.Option(help="auto, none, recalibrate (batch norms), repair or rescale (networks without them).")
    ] = "auto"
    examples: Annotated[int, advanced(min=4, help="Use so many examples of each split at most.")] = 5000
    batch_size: Annotated[int, advanced(min=2, help="Examples that run at once.")] = 250
    seed: Seed = 0
    device: Device = "auto"
    as_json: Json = False
