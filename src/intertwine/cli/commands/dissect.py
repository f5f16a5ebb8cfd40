"""``intertwine dissect``: is the neuron basis of a layer special?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Device, Json, Model, Options, Seed, advanced
from .._values import numbers, pair

CONCEPTS_HELP = (
    "generated, parquet:FILE, masks:FOLDER, coco:ANNOTATIONS.json@IMAGES or broden:FOLDER; with +colours at the end, "
    "colours computed from the pixels are added."
)


@dataclass(frozen=True)
class DissectOptions(Options):
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
        if (self.mean is None) != (self.std is None):
            raise ValueError("--mean and --std must be given together. Got one of them.")
        for name, text in (("--mean", self.mean), ("--std", self.std)):
            if text is not None and len(numbers(name, text)) not in (1, 3):
                raise ValueError(f"{name} must be 1 or 3 numbers joined by commas. Got {text!r}.")
        if self.grid is not None:
            pair("--grid", self.grid)
        if self.weights is None and (self.model is None or not self.train):
            raise ValueError(
                "--weights must name a checkpoint. Got none. To try dissection out, let a built-in network learn the "
                "concepts first: --model resnet50:width=8,blocks=2-2,stem=small --train 3."
            )

    layer: Annotated[str, typer.Option("--layer", metavar="NAME", help="The layer, as named_modules() calls it.")]
    model: Model = None
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="Checkpoint, or a Hugging Face directory.")
    ] = None
    train: Annotated[
        int, typer.Option(metavar="EPOCHS", min=0, help="Without weights: first teach the network the concepts.")
    ] = 0
    concepts: Annotated[str, typer.Option(metavar="CONCEPTS", help=CONCEPTS_HELP)] = "generated"
    concept_split: Annotated[str | None, advanced(help="Of parquet and broden: only this split.")] = None
    examples: Annotated[int | None, typer.Option(min=1, help="Use the first images only, at most so many.")] = None
    size: Annotated[
        str | None, advanced(metavar="PIXELS|HxW", help="Side, or height and width, to bring images and labels to.")
    ] = None
    rotations: Annotated[str, advanced(help="Powers of the rotation, joined by commas.")] = "0,0.25,0.5,0.75,1"
    rotation_seeds: Annotated[int, advanced(min=1, help="Random rotations for each power.")] = 5
    g_relu: Annotated[int, advanced(min=0, help="Random permutations with positive scales, as a check.")] = 1
    standardise: Annotated[
        bool, advanced("--standardise", help="Divide channels by their size before rotating them.")
    ] = False
    quantile: Annotated[float, advanced(min=0, max=1, help="Share of a unit's values above its threshold.")] = 0.005
    iou: Annotated[float, advanced(min=0, max=1, help="Intersection over union of a detector.")] = 0.04
    mean: Annotated[str | None, advanced(help="Channel means to subtract; from the card otherwise.")] = None
    std: Annotated[str | None, advanced(help="Channel deviations to divide by; from the card otherwise.")] = None
    grid: Annotated[str | None, advanced(metavar="RxC", help="Rows and columns of patches, for tokens.")] = None
    batch_size: Annotated[int, advanced(min=1, help="Images that run through the network at once.")] = 32
    pictures: Annotated[int, advanced(min=0, help="Best units to show; 0 for none.")] = 12
    seed: Seed = 0
    device: Device = "auto"
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for results; a stopped run goes on there.")
    ] = Path("dissection")
    as_json: Json = False
