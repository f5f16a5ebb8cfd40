"""``intertwine align``: one checkpoint brought into the basis of another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Device, ExampleOptions, Json, Model, Seed, advanced


@dataclass(frozen=True)
class AlignOptions(ExampleOptions):
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

    methods = ("transport",)

    a: Annotated[Path, typer.Argument(metavar="A", help="Checkpoint whose basis is kept, or a Hugging Face directory.")]
    b: Annotated[Path, typer.Argument(metavar="B", help="Checkpoint that moves, or a Hugging Face directory.")]
    model: Model = None
    model_b: Annotated[
        str | None, advanced("--model-b", metavar="MODEL", help="Model of B, where its widths are others.")
    ] = None
    method: Annotated[
        str,
        typer.Option(
            help="weights, activations, mixed, frank-wolfe, sinkhorn, straight-through, or transport (other widths). "
            "Options follow a colon: sinkhorn:steps=300,temperature=0.05."
        ),
    ] = "weights"
    kinds: Annotated[
        list[str] | None,
        advanced(metavar="KINDS", help="Search only these: permutation, scale, sign, linear, joined by commas."),
    ] = None
    examples: Annotated[int, advanced(min=4, help="Look at so many examples of the training split.")] = 5000
    batch_size: Annotated[int, advanced(min=2, help="Examples that run at once.")] = 250
    sharded: Annotated[
        bool, advanced("--sharded", help="Read tensor by tensor what does not fit in memory; permutations and signs.")
    ] = False
    seed: Seed = 0
    device: Device = "auto"
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the moved network, the alignment and report.html.")
    ] = Path("alignment")
    as_json: Json = False
