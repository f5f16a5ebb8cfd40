"""``intertwine dissect``: is the neuron basis of a layer special?"""

from dataclasses import dataclass
from pathlib import Path

from .._options import ImageOptions, advanced, option
from .._values import numbers, pair

CONCEPTS_HELP = (
    "generated, parquet:FILE, masks:FOLDER, coco:ANNOTATIONS.json@IMAGES or broden:FOLDER; with +colours at the end, "
    "colours computed from the pixels are added."
)


@dataclass(frozen=True)
class DissectOptions(ImageOptions):
    """Dissect a layer: which units detect a concept, in the network's own basis and in rotated ones.

    Prints a table and writes results.json, results.parquet and report.html. Every finished basis is kept in the
    folder, so that the same command goes on after an interruption.

    Example:
      intertwine dissect --model resnet50:width=8,blocks=2-2,stem=small --train 6 --layer layer2.1 --quantile 0.02
      intertwine dissect --model resnet50 --weights resnet50.pth --layer layer4 --concepts broden:broden1_224
      intertwine dissect --weights hf_vit --layer vit.layernorm --concepts parquet:camvid.parquet --size 224x224
    """

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If numbers do not read, or neither weights nor training are asked for.
        """
        super().check()
        numbers("--rotations", self.rotations)
        if self.grid is not None:
            pair("--grid", self.grid)
        if self.weights is None and (self.model is None or not self.train):
            raise ValueError(
                "--weights must name a checkpoint. Got none. To try dissection out, let a built-in network learn the "
                "concepts first: --model resnet50:width=8,blocks=2-2,stem=small --train 3."
            )

    layer: str = option(..., "The layer, as named_modules() calls it.", metavar="NAME")
    model: str | None = None
    weights: Path | None = option(None, "Checkpoint, or a Hugging Face directory.", metavar="FILE")
    train: int = option(0, "Without weights: first teach the network the concepts.", metavar="EPOCHS", min=0)
    concepts: str = option("generated", CONCEPTS_HELP, metavar="CONCEPTS")
    concept_split: str | None = advanced(None, "Of parquet and broden: only this split.")
    examples: int | None = option(None, "Use the first images only, at most so many.", min=1)
    size: str | None = advanced(None, "Side, or height and width, to bring images and labels to.", metavar="PIXELS|HxW")
    rotations: str = advanced("0,0.25,0.5,0.75,1", "Powers of the rotation, joined by commas.")
    rotation_seeds: int = advanced(5, "Random rotations for each power.", min=1)
    g_relu: int = advanced(1, "Random permutations with positive scales, as a check.", min=0)
    standardise: bool = advanced(False, "Divide channels by their size before rotating them.")
    quantile: float = advanced(0.005, "Share of a unit's values above its threshold.", min=0, max=1)
    iou: float = advanced(0.04, "Intersection over union of a detector.", min=0, max=1)
    grid: str | None = advanced(None, "Rows and columns of patches, for tokens.", metavar="RxC")
    batch_size: int = advanced(32, "Images that run through the network at once.", min=1)
    pictures: int = advanced(12, "Best units to show; 0 for none.", min=0)
    seed: int = 0
    device: str = "auto"
    out: Path = option(Path("dissection"), "Folder for results; a stopped run goes on there.", metavar="DIR")
    as_json: bool = False
