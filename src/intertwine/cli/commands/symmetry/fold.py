"""``intertwine fold``: the same network in an interpretable gauge."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import ExampleOptions, advanced, option


@dataclass(frozen=True)
class FoldOptions(ExampleOptions):
    """Write the same network with gains of one, biases pushed on, and weights without what a norm's mean removes.

    Norms' gains and biases go into the linear maps that read them, biases of values through attention into the bias
    after it, and what is written to layer norms is centred. Prints what was changed, what stays and why, and the
    numerical proof. The network is kept exactly: compare it with 'intertwine diff'.

    Example:
      intertwine fold hf:gpt2 --out folded.safetensors
      intertwine fold hf:llama --out folded
      intertwine fold a.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out b.safetensors
    """

    suffixes = (".safetensors", "")

    a: Path
    out: Path = option(..., "FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")
    model: str | None = None
    norms: bool = option(True, "Fold the gains of norms.")
    center: bool = option(True, "Centre what is written to layer norms.")
    biases: bool = option(True, "Fold biases of norms, and push biases of values on.")
    extend: bool = option(True, "Untie weights, and add biases where there are none, as needed.")
    strict: bool = advanced(False, "Fail unless everything can be folded.")
    as_json: bool = False
