"""``intertwine fold``: the same network in an interpretable gauge."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import ExampleOptions, Json, Model, advanced


@dataclass(frozen=True)
class FoldOptions(ExampleOptions):
    """Write the same network with gains of one, biases pushed on, and weights without what a norm's mean removes.

    Norms' gains and biases go into the linear maps that read them, biases of values through attention into the bias
    after it, and what is written to layer norms is centred. Prints what was changed, what stays and why, and the proof
    on numbers. The network is kept exactly: compare it with 'intertwine diff'.

    Example:
      intertwine fold hf:gpt2 --out folded.safetensors
      intertwine fold hf:llama --out folded
      intertwine fold a.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out b.safetensors
    """

    suffixes = (".safetensors", "")

    a: Annotated[Path, typer.Argument(metavar="A", help="The network: safetensors, a torch file, or hf:DIR.")]
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="FILE.safetensors, or a folder for a model of transformers.")
    ]
    model: Model = None
    norms: Annotated[bool, typer.Option(help="Fold the gains of norms.")] = True
    center: Annotated[bool, typer.Option(help="Centre what is written to layer norms.")] = True
    biases: Annotated[bool, typer.Option(help="Fold biases of norms, and push biases of values on.")] = True
    extend: Annotated[bool, typer.Option(help="Untie weights, and add biases where there are none, as needed.")] = True
    strict: Annotated[bool, advanced(help="Fail unless everything can be folded.")] = False
    as_json: Json = False
