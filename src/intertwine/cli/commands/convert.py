"""``intertwine convert``: the weights of one network in the code of another."""

from dataclasses import dataclass
from pathlib import Path

from .._options import ExampleOptions, option


@dataclass(frozen=True)
class ConvertOptions(ExampleOptions):
    """Write B's weights under A's names and in A's shapes, for A's code.

    Proved before anything is written: A with these weights computes B's function, in float64. Written as A is: a
    Hugging Face directory with its configuration untouched, or a safetensors file. Refuses where nothing corresponds,
    and where A reads weights that B has not.

    Example:
      intertwine convert b.safetensors --like hf:one_directory --model mypackage.nets:decoder --out converted
    """

    b: Path
    like: Path = option(..., "A: a checkpoint or directory in whose code the weights shall be.", metavar="A")
    out: Path = option(..., "Folder to write.", metavar="DIR")
    model: str | None = None
    model_like: str | None = option(
        None, "Model of A, where neither a card nor its directory says it.", metavar="MODEL"
    )
    device: str = "cpu"
    as_json: bool = False
