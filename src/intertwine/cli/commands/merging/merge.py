"""``intertwine merge``: one network from several."""

from dataclasses import dataclass
from pathlib import Path

from ..._checks import check
from ..._files import check_checkpoint
from ..._options import ExampleOptions, advanced, argument, option

_YAML = (".yml", ".yaml")


@dataclass(frozen=True)
class MergeOptions(ExampleOptions):
    """Merge networks of one architecture into one of the same size: align, average, repair.

    With data, statistics are repaired on the training split, and all networks are scored on the test split. Two
    networks are merged in the basis and with the widths of A; more of them around their common mean.

    Example:
      intertwine merge a.safetensors b.safetensors --data digits --out merged.safetensors
      intertwine merge seed*.safetensors --model resnet20 --data cifar10:PATH --out merged.safetensors
      intertwine merge vit_a vit_b --data images:photos --out merged
      intertwine merge ties.yml --out merged
      intertwine merge llama_a llama_b --mergekit handover.yml
    """

    suffixes = (".safetensors", "")
    methods = ("transport", "none")
    unlike = ("checkpoints",)

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If options do not go together, or mergekit could not do what is handed over.
        """
        super().check()
        recipe = self.recipe is not None
        if recipe:
            check_checkpoint(self.checkpoints[0])
        else:
            check("checkpoints", self.checkpoints)
        changed = self.ratio != 0.5 or self.interpolation != "linear" or bool(self.layers)
        if recipe and (changed or self.method == "transport"):
            raise ValueError(
                "--ratio, --interpolation, --layers and --method transport must be left out with a recipe, which says "
                f"them itself. Got {str(self.checkpoints[0])!r}."
            )
        if len(self.checkpoints) > 2 and (changed or self.method in ("transport", "none")):
            raise ValueError(
                "--ratio, --interpolation, --layers and --method transport must be for two networks. "
                f"Got {len(self.checkpoints)}, which are averaged."
            )
        if self.out is None and self.mergekit is None:
            raise ValueError("--out or --mergekit must be given. Got neither. Say --out merged, for example.")
        if self.mergekit is not None:
            self._check_hand_over(self.mergekit)

    def _check_hand_over(self, file: Path) -> None:
        if file.suffix not in _YAML:
            raise ValueError(f"--mergekit must end in .yml or .yaml. Got {str(file)!r}.")
        if self.layers or self.method == "transport":
            raise ValueError(
                "--layers and --method transport must be left out with --mergekit, which has no such thing."
            )
        files = [str(path) for path in self.checkpoints if self.recipe is None and not path.is_dir()]
        if files:
            raise ValueError(f"--mergekit must be for Hugging Face directories. Got {files[0]!r}.")

    @property
    def recipe(self) -> Path | None:
        """The recipe of mergekit, if one is given in place of checkpoints."""
        return self.checkpoints[0] if len(self.checkpoints) == 1 and self.checkpoints[0].suffix in _YAML else None

    checkpoints: list[Path] = argument(
        ...,
        "Checkpoints of one architecture, or Hugging Face directories; or a recipe of mergekit that "
        "names them (linear, slerp, task_arithmetic, ties, dare_ties, dare_linear).",
        metavar="A B [C ...] | RECIPE.yml",
    )
    out: Path | None = option(None, "FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")
    mergekit: Path | None = option(
        None,
        "Write the recipe for mergekit, and the aligned networks that it names in a folder beside it.",
        metavar="FILE.yml",
    )
    model: str | None = None
    model_b: str | None = None
    ratio: float = option(0.5, "The share of B, for two networks.", min=0, max=1)
    method: str = option(
        "weights", "How to align, see 'intertwine align --help'; none for networks in one basis already."
    )
    interpolation: str = "linear"
    layers: list[str] | None = advanced(
        None, "Merge only these, joined by commas: beginnings of tensor names or patterns.", metavar="NAMES"
    )
    repair: str = advanced("auto", "auto, none, recalibrate (batch norms), repair or rescale (networks without them).")
    dtype: str | None = advanced(
        None,
        "Kind of numbers of the merged weights: float32, bfloat16 or float16; those of A otherwise.",
        metavar="DTYPE",
    )
    examples: int = 5000
    batch_size: int = 250
    seed: int = 0
    device: str = "auto"
    as_json: bool = False
