"""``intertwine compare``: two checkpoints in, one report out."""

from dataclasses import dataclass
from pathlib import Path

from .._options import DataOptions, advanced, option


@dataclass(frozen=True)
class CompareOptions(DataOptions):
    """Compare two networks, every layer of A with every layer of B; or many networks, layer by layer.

    Prints a table and writes results.json, results.parquet and report.html. Model and data may be left out where a card
    lies beside the weights, as 'intertwine train' writes it.

    Example:
      intertwine compare a.safetensors b.safetensors --model resnet20 --data cifar10:PATH
      intertwine compare a.pt b.pt --model mypackage.models:make_net --data images:photos --out comparison
      intertwine compare small.safetensors large.safetensors --measures g_relu_cka,linear_cka
      intertwine compare runs/*.safetensors --model resnet20 --data cifar10:PATH
      intertwine compare a.safetensors b.safetensors --path-kernels --measures gates_cka,g_relu_cka
    """

    checkpoints: list[Path]
    model: str | None = None
    model_b: str | None = None
    split: str = "test"
    examples: int | None = option(
        None, "Use this many examples of it at most; 1000, or blocks of text of 8192 tokens, otherwise.", min=4
    )
    layers: list[str] | None = option(
        None,
        "Layers of both networks, joined by commas; '*' matches any text. Otherwise nonlinearities and "
        "ends of residual blocks.",
        metavar="NAMES",
    )
    layers_b: list[str] | None = None
    measures: list[str] | None = option(
        None,
        "Measures, joined by commas; those that fit the networks otherwise. A wrong name lists all.",
        metavar="NAMES",
    )
    path_kernels: bool = advanced(False, "Also compare the whole networks by what they switch on; ReLU networks.")
    null: int = advanced(20, "Shuffles for chance levels; 0 for none.", min=0)
    untrained: int = advanced(2, "Copies of A and of B with fresh weights that stand beside them; 0 for none.", min=0)
    bootstrap: int = advanced(20, "Random halves for confidence intervals; 0 for none.", min=0)
    batch_size: int | None = advanced(
        None, "Examples that run through the networks at once; 250, or 2048 tokens, otherwise.", min=1
    )
    exact: bool = advanced(False, "All pairs of examples and all positions, however long it takes.")
    memory: str | None = advanced(None, "Memory to use, such as 4GB; half of what is free otherwise.")
    exhaustive: bool = advanced(False, "Procrustes of all pairs of layers, shuffles and halves, if it takes hours.")
    seed: int = 0
    device: str = "auto"
    out: Path = Path("comparison")
    as_json: bool = False
