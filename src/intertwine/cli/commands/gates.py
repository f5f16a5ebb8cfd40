"""``intertwine gates``: a ReLU network taken apart into gates and paths, and its gated versions trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import DataOptions, Device, Json, Model, OutFolder, Seed, advanced

# Name -> what it is in the paper's words, where its gates come from, what its value network is given.
VERSIONS = {
    "dgn": ("DGN(x, x)", "learnt beside the weights", "x"),
    "dgn-ones": ("DGN(x, 1)", "learnt beside the weights", "1"),
    "dgn-fr": ("DGN-FR", "of a random network, fixed", "x"),
    "dgn-fl": ("DGN-FL", "of the trained network, fixed", "x"),
    "dlgn": ("DLGN(x, x)", "of a linear network", "x"),
    "dlgn-ones": ("DLGN(x, 1)", "of a linear network", "1"),
    "dlgn-sf": ("DLGN-SF(x, x)", "of one linear map each", "x"),
    "dlgn-sf-ones": ("DLGN-SF(x, 1)", "of one linear map each", "1"),
}
_GATED_HELP = f"Gated versions to build and train, joined by commas: {', '.join(VERSIONS)}; or none."


@dataclass(frozen=True)
class GatesOptions(DataOptions):
    """Take a ReLU network apart into gates and paths, and train its gated versions.

    Says how units switch, which gates classes share, what the path and tangent kernels are, and which paths make one
    input's output. Gated versions (DGN: gates from a second network; DLGN: from a linear one, whose features can be
    looked at) are built from the network, trained with the same recipe and written as checkpoints. Without A a small
    network is trained on digits first; that and its three default versions take about half a minute. A gated version's
    checkpoint is looked at by itself.

    Beside results.json, results.parquet and report.html, kernels.safetensors holds all kernels.

    Example:
      intertwine gates
      intertwine gates a.safetensors --data digits --gated dgn-fr,dgn-fl,dlgn-ones --epochs 20
      intertwine gates a.safetensors --data cifar10 --train-examples 10000
      intertwine gates a.safetensors b.safetensors --gated none
      intertwine gates a.safetensors --gated dlgn --epochs 0 --out converted
      intertwine gates converted/dlgn.safetensors
    """

    a: Annotated[
        Path | None, typer.Argument(metavar="[A]", help="Checkpoint of a ReLU network; without it one is trained.")
    ] = None
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="A second one, to align with A by its gates.")] = None
    model: Model = None
    split: Annotated[str, advanced(help="Which split to look at: train, validation, test or all.")] = "test"
    examples: Annotated[int, typer.Option(min=4, help="Examples of it for gate statistics, at most.")] = 500
    kernel_examples: Annotated[
        int | None,
        advanced(min=4, help="Examples of the kernels, evenly over classes; 60, or as many as take minutes."),
    ] = None
    gated: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=_GATED_HELP)] = None
    epochs: Annotated[
        int, typer.Option(min=0, help="Passes over the data for every network trained here; 0 only converts.")
    ] = 6
    train_examples: Annotated[
        int | None, advanced("--train-examples", min=1, help="Training examples of them, at most; all by default.")
    ] = None
    example: Annotated[int, advanced(min=0, help="The input whose paths are shown.")] = 0
    seed: Seed = 0
    device: Device = "auto"
    out: OutFolder = Path("gates")
    as_json: Json = False
