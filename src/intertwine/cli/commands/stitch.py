"""``intertwine stitch``: can network B read network A's features?"""

from dataclasses import dataclass
from pathlib import Path

from .._checks import check_known
from .._options import DataOptions, advanced, option
from .._values import number, words


@dataclass(frozen=True)
class StitchOptions(DataOptions):
    """Stitch networks: how much accuracy is lost when B goes on from A's features, through a map of one family.

    The early layers of A go before the late layers of B; of more than two networks, every ordered pair is stitched.
    Maps are trained on the training split and scored on the test split (penalty: mean accuracy of A and B, less that of
    the stitched network). Prints a table and writes results.json, results.parquet and report.html. A stopped run goes
    on where it stood when the same command is given again.

    Example:
      intertwine stitch a.safetensors b.safetensors --data digits
      intertwine stitch a.pt b.pt --model resnet20 --data cifar10:PATH --layers layer2.1.relu2 --families full,rank-4
      intertwine stitch seed*.safetensors --layers 'relu*' --families g_relu,full --method direct,task_loss
    """

    unlike = ("recipe",)

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If options do not exist or do not go together.
        """
        super().check()
        if (self.model_b or self.layers_b) and len(self.checkpoints) > 2:
            raise ValueError(f"--model-b and --layers-b must go with two checkpoints. Got {len(self.checkpoints)}.")
        if self.split not in ("test", "validation"):
            raise ValueError(
                f"--split must be test or validation, never the data that maps are trained on. Got {self.split!r}."
            )
        check_known("--recipe", self.recipe, ("v1", "v2"))
        for method in words([self.method], "--method"):
            check_known("--method", method, ("task_loss", "direct"))
        if self.alpha != "cv":
            number("--alpha, where it is not cv,", self.alpha)

    checkpoints: list[Path]
    model: str | None = None
    model_b: str | None = None
    layers: list[str] | None = option(
        None, "Layers, joined by commas; '*' matches any. All activations otherwise.", metavar="NAMES"
    )
    layers_b: list[str] | None = None
    families: list[str] | None = option(
        None,
        "Families of maps, joined by commas: identity, diagonal, permutation, signed_permutation, "
        "g_relu, monomial, softsort, orthogonal, full, rank-R, lasso-STRENGTH.",
        metavar="NAMES",
    )
    method: str = option(
        "task_loss", "task_loss trains on B's task, direct matches activations; both, joined by a comma."
    )
    skip: str = advanced("a", "Inside residual blocks, the skip connection: a (as A has it), mapped, or b (B's own).")
    start: str = advanced("direct", "Where training starts: direct (closed form) or random (as the paper has it).")
    recipe: str = advanced("v1", "v1 (SGD, momentum 0.9) or v2 (plain SGD).")
    epochs: int | None = option(None, "Passes over the data; the recipe's 20 otherwise.", min=0)
    learning_rate: float | None = advanced(None, "Learning rate; the recipe's 0.001 otherwise.", min=0)
    keep: str = advanced(
        "best",
        "best: of the start and all epochs, the map with the least training loss once rounded; last: the "
        "last epoch's, as the paper has it.",
    )
    alpha: str = advanced("0.1", "Weight of the pull to permutations, or cv: chosen on a fifth of the training split.")
    tail_norm: str = advanced(
        "eval", "Batch norm of B's part in training: eval (its own statistics) or train (the batch's)."
    )
    recalibrate: bool = advanced(True, "Measure batch norms anew before evaluation.")
    bias: bool = advanced(False, "Give every map a bias; the paper's have none.")
    translate: int = advanced(0, "Shift training images by so many pixels at most.", min=0)
    flip: bool = advanced(False, "Mirror every second training image.")
    seeds: int = advanced(1, "Runs of each map that is trained, from --seed on.", min=1)
    split: str = advanced("test", "Split to score on: test or validation.")
    examples: int = 50000
    seed: int = 0
    device: str = "auto"
    out: Path = Path("stitching")
    as_json: bool = False
