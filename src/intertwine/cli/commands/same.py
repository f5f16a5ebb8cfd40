"""``intertwine same``: whether two checkpoints are one network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Device, ExampleOptions, Json, Model, advanced


@dataclass(frozen=True)
class SameOptions(ExampleOptions):
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture.

    Says "the same network, permuted and rescaled" (a cast to a lower precision is seen through), "related (merged,
    fine-tuned)" with the tensors that differ, "different", or "cannot be told" where operations without a rule leave
    the symmetry open; and the residual after matching. Every verdict has exit code 0, two architectures have exit code
    2. With --sharded a few tensors of
    each checkpoint are in memory, and the networks are not run: the weights alone are compared.

    Example:
      intertwine same a.safetensors b.safetensors --model resnet20
      intertwine same a.safetensors b.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000
      intertwine same hf:one_directory hf:another
      intertwine same llama_a llama_b --sharded
    """

    suffixes = (".safetensors",)

    a: Annotated[
        Path, typer.Argument(metavar="A", help="A checkpoint: safetensors, a torch file of tensors, or hf:DIR.")
    ]
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one.")]
    model: Model = None
    sharded: Annotated[
        bool, advanced("--sharded", help="Read part by part what does not fit in memory; safetensors.")
    ] = False
    device: Device = "cpu"
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the element from A to B (.safetensors).")
    ] = None
    as_json: Json = False
