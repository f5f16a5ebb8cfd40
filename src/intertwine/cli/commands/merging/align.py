"""``intertwine align``: one checkpoint brought into the basis of another."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import ExampleOptions, advanced, option


@dataclass(frozen=True)
class AlignOptions(ExampleOptions):
    """Bring checkpoint B into the basis of checkpoint A: other weights, the same function.

    Units are permuted, rescaled, flipped and rotated as far as the architecture allows, so that B lies as close to A as
    the method can bring it. No list of layers is needed, for any model. Writes the moved B, the alignment and a page.
    With --method transport, B is brought to the widths of A, which changes its function.
    With --sharded, one tensor of each checkpoint is in memory, units are permuted and flipped only, and the moved B is
    written in shards.

    Example:
      intertwine align a.safetensors b.safetensors --model resnet20
      intertwine align a.safetensors b.safetensors --method activations --data digits
      intertwine align gpt_a gpt_b
      intertwine align a.safetensors b.safetensors --model my_code.py:network --input-shape 2,16 --tokens 50257
      intertwine align llama_a llama_b --sharded
    """

    methods = ("transport",)

    a: Path
    b: Path
    model: str | None = None
    model_b: str | None = None
    method: str = option(
        "weights",
        "weights, activations, mixed, frank-wolfe, sinkhorn, straight-through, or transport (other "
        "widths). Options follow a colon: sinkhorn:steps=300,temperature=0.05.",
    )
    kinds: list[str] | None = advanced(
        None, "Search only these: permutation, scale, sign, linear, joined by commas.", metavar="KINDS"
    )
    examples: int = 5000
    batch_size: int = 250
    sharded: bool = False
    seed: int = 0
    device: str = "auto"
    out: Path = option(Path("alignment"), "Folder for the moved network, the alignment and report.html.", metavar="DIR")
    as_json: bool = False
