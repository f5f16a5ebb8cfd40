"""``intertwine gates``: a ReLU network taken apart into gates and paths, and its gated versions trained."""

from dataclasses import dataclass
from pathlib import Path

from .._options import DataOptions, advanced, argument, option

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

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If there is nothing to convert.
        """
        super().check()
        if self.a is None and not self.epochs:
            raise ValueError("--epochs must be at least 1 where no checkpoint is given. Got 0, and nothing to convert.")

    a: Path | None = argument(None, "Checkpoint of a ReLU network; without it one is trained.", metavar="[A]")
    b: Path | None = argument(None, "A second one, to align with A by its gates.", metavar="[B]")
    model: str | None = None
    split: str = "test"
    examples: int = option(500, "Examples of it for gate statistics, at most.", min=4)
    kernel_examples: int | None = advanced(
        None, "Examples of the kernels, evenly over classes; 60, or as many as take minutes.", min=4
    )
    gated: list[str] | None = option(None, _GATED_HELP, metavar="NAMES")
    epochs: int = option(6, "Passes over the data for every network trained here; 0 only converts.", min=0)
    train_examples: int | None = advanced(None, "Training examples of them, at most; all by default.", min=1)
    example: int = advanced(0, "The input whose paths are shown.", min=0)
    seed: int = 0
    device: str = "auto"
    out: Path = Path("gates")
    as_json: bool = False
