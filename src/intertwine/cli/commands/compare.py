"""``intertwine compare``: two checkpoints in, one report out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import DataOptions, Device, Json, Model, OutFolder, Seed, advanced


@dataclass(frozen=True)
class CompareOptions(DataOptions):
    """Compare two networks, every layer of A with every layer of B.

    Prints a table and writes results.json, results.parquet and report.html. Model and data may be left out where a card
    lies beside the weights, as 'intertwine train' writes it.

    Example:
      intertwine compare a.safetensors b.safetensors --model resnet20 --data cifar10:PATH
      intertwine compare a.pt b.pt --model mypackage.models:make_net --data images:photos --out comparison
      intertwine compare small.safetensors large.safetensors --measures g_relu_cka,linear_cka
      intertwine compare a.safetensors b.safetensors --path-kernels --measures gates_cka,g_relu_cka
    """

    a: Annotated[Path, typer.Argument(metavar="A", help="Checkpoint of network A, or a Hugging Face directory.")]
    b: Annotated[Path, typer.Argument(metavar="B", help="Checkpoint of network B, or a Hugging Face directory.")]
    model: Model = None
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where it is not that of A.")
    ] = None
    split: Annotated[str, typer.Option(help="Which split: train, validation, test or all.")] = "test"
    examples: Annotated[int, typer.Option(min=4, help="Use this many examples of it at most.")] = 1000
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Layers of both networks, joined by commas; '*' matches any text. Otherwise "
            "nonlinearities and ends of residual blocks.",
        ),
    ] = None
    layers_b: Annotated[
        list[str] | None, advanced(metavar="NAMES", help="Layers of B, where they are not those of A.")
    ] = None
    measures: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Measures, joined by commas; those that fit the networks otherwise. A wrong name lists all.",
        ),
    ] = None
    path_kernels: Annotated[
        bool, advanced("--path-kernels", help="Also compare the whole networks by what they switch on; ReLU networks.")
    ] = False
    null: Annotated[int, advanced(min=0, help="Shuffles for chance levels; 0 for none.")] = 20
    untrained: Annotated[
        int, advanced(min=0, help="Copies of A and of B with fresh weights that stand beside them; 0 for none.")
    ] = 2
    bootstrap: Annotated[int, advanced(min=0, help="Random halves for confidence intervals; 0 for none.")] = 20
    batch_size: Annotated[int, advanced(min=1, help="Examples that run through the networks at once.")] = 250
    memory: Annotated[str | None, advanced(help="Memory to use, such as 4GB; half of what is free otherwise.")] = None
    seed: Seed = 0
    device: Device = "auto"
    out: OutFolder = Path("comparison")
    as_json: Json = False
