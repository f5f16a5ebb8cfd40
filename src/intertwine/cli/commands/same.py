"""``intertwine same``: whether two checkpoints are one network."""

from dataclasses import dataclass
from pathlib import Path

from .._options import ExampleOptions, option


@dataclass(frozen=True)
class SameOptions(ExampleOptions):
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture.

    Says "the same network up to symmetry" (a cast to a lower precision is seen through), "related (merged,
    fine-tuned)" with the tensors that differ, "different", or "cannot be told" where operations without a rule leave
    the symmetry open; and the residual after matching. Every verdict has exit code 0, two architectures have exit code
    2. With --sharded a few tensors of each checkpoint are in memory, and the weights alone are compared.

    Example:
      intertwine same a.safetensors b.safetensors --model resnet20
      intertwine same a.safetensors b.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000
      intertwine same hf:one_directory hf:another
      intertwine same llama_a llama_b --sharded
    """

    suffixes = (".safetensors",)

    a: Path
    b: Path
    model: str | None = None
    sharded: bool = False
    device: str = "cpu"
    out: Path | None = option(None, "Write the element from A to B (.safetensors).", metavar="FILE")
    as_json: bool = False
