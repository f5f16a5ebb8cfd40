"""``intertwine dissect``: is the neuron basis of a layer special?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._words import read
from .._command import one_thread
from .._options import DeviceOptions, ImageOptions, advanced, option
from .._outputs import tell
from . import Study, inputs, iw, torch
from .train import build_seeded

CONCEPTS_HELP = (
    "generated, parquet:FILE, masks:FOLDER, coco:ANNOTATIONS.json@IMAGES or broden:FOLDER; +colours at the end adds "
    "colours computed from the pixels."
)


class Dissect(Study, DeviceOptions, ImageOptions):
    """Dissect a layer: find which units detect a concept, in the network's own basis and in rotated ones.

    Prints a table and writes results.json, results.parquet and report.html. Every finished basis is kept in the
    folder, so that the same command resumes after an interruption. If neither a card nor a preprocessor gives a mean,
    images enter as values from 0 to 1: concept sets, unlike the --data of other commands, have no mean of their own.

    Example:
      intertwine dissect --model resnet50:width=8,blocks=2-2,stem=small --train 6 --layer layer2.1 --quantile 0.02
      intertwine dissect --model resnet50 --weights resnet50.pth --layer layer4 --concepts broden:broden1_224
      intertwine dissect --weights hf_vit --layer vit.layernorm --concepts parquet:camvid.parquet --size 224x224
    """

    python = 'iw.dissect(model, "layer4", iw.lab.data.load_concepts("generated"))'

    layer: str = option("The layer, as named_modules() calls it.", ..., metavar="NAME")
    model: str | None = None
    weights: Path | None = option("Checkpoint, or a Hugging Face directory.", metavar="FILE")
    train: int = option("Without --weights: train the network on the concepts first.", 0, metavar="EPOCHS", min=0)
    concepts: str = option(CONCEPTS_HELP, "generated", metavar="CONCEPTS")
    concept_split: str | None = advanced("For parquet and broden: use only this split.")
    examples: int | None = option("Use only the first images, at most this many.", min=1)
    size: str | None = advanced("Side, or height and width, to resize images and labels to.", metavar="PIXELS|HxW")
    rotations: str = advanced("Powers of the rotation, joined by commas.", "0,0.25,0.5,0.75,1")
    rotation_seeds: int = advanced("Random rotations for each power.", 5, min=1)
    g_relu: int = advanced("Random permutations with positive scales, as a control.", 1, min=0)
    standardise: bool = advanced("Standardise the size of channels before rotating them.", False)
    quantile: float = advanced("Share of a unit's values that lie above its threshold.", 0.005, min=0, max=1)
    iou: float = advanced("Intersection over union from which a unit counts as a detector.", 0.04, min=0, max=1)
    grid: str | None = advanced("Rows and columns of patches, for tokens.", metavar="RxC")
    batch_size: int = advanced("Images that run through the network at once.", 32, min=1)
    pictures: int = advanced("Best units to show; 0 for none.", 12, min=0)
    out: Path = option("Folder for results; a stopped run resumes there.", Path("dissection"), metavar="DIR")

    def __post_init__(self) -> None:
        super().__post_init__()
        read("numbers", "--rotations", self.rotations)
        if self.grid is not None:
            read("pair", "--grid", self.grid)
        if self.weights is None and (self.model is None or not self.train):
            raise ValueError(
                "--weights must name a checkpoint. Got none. To try dissection out, train a built-in network on the "
                "concepts first: --model resnet50:width=8,blocks=2-2,stem=small --train 3."
            )

        if self.statistics is not None and len(self.statistics[0]) not in (1, 3):
            raise ValueError(f"--mean and --std must be 1 or 3 numbers each. Got {self.mean!r} and {self.std!r}.")
        if self.train and (self.weights is not None or self.statistics is not None):
            raise ValueError(
                "--train must be without --weights, --mean and --std: a fresh network learns from values from 0 to 1. "
                "Got one of them."
            )

    def find(self) -> iw.Dissection:
        powers = read("numbers", "--rotations", self.rotations)
        patches = None if self.grid is None else read("pair", "--grid", self.grid)
        data = iw.lab.data.load_concepts(
            self.concepts, images=self.examples, size=_size(self), split=self.concept_split, seed=self.seed
        )
        if self.train:
            one_thread()
        network, facts, statistics = _taught(self, data) if self.weights is None else _opened(self, self.weights)
        transform, note = _transform(self.statistics or statistics, self.weights is None)
        for line in note:
            tell(line)
        where = iw.lab.training.choose_device(self.device)
        images = transform(next(data.batches(2)).images)
        said = f"--concepts must be images that {facts['name']} accepts. Got images of shape {tuple(images.shape[1:])}"
        inputs.check_takes(network.to(where), images, where, said)
        result = iw.dissect(
            network, self.layer, data,
            iw.dissection.Bases(powers, range(self.seed, self.seed + self.rotation_seeds), self.g_relu),
            criterion=iw.dissection.Criterion(self.quantile, self.iou, self.standardise, empty="drop"),
            maps=iw.dissection.Maps(transform, grid=patches, batch_size=self.batch_size, device=where),
            pictures=self.pictures, resume=self.out / "bases", progress=True,
        )  # fmt: skip
        settings = {**result.settings, "network": facts, "command": self.line}
        settings |= _prediction(network, self.layer, images.to(where))
        return replace(result, model=facts["name"], settings=settings, notes=(*note, *result.notes))

    def plain(self, found: iw.Dissection) -> dict[str, Any]:
        return {"table": found.table().to_dict("records"), "headline": found.verdict}


def _opened(asked: Dissect, weights: Path) -> tuple[torch.nn.Module, dict[str, Any], Any]:
    """The network, facts about it, and the channel statistics of its inputs if known."""
    checkpoint, spec = inputs.read_checkpoint(weights), asked.model or inputs.model_named_by(weights)
    network = inputs.open_alone(spec, checkpoint)
    inputs.check_finite(network, weights)
    facts = {"name": weights.name, "model": spec, "file": str(weights)}
    return network, facts, inputs.statistics_of(checkpoint, spec, network)


def _taught(asked: Dissect, data: iw.dissection.ConceptSet) -> tuple[torch.nn.Module, dict[str, Any], None]:
    """A network trained on the concepts, and facts about it."""
    from ...lab.training.concepts import place_accuracy, train_on_concepts

    spec, epochs, seed = str(asked.model), asked.train, asked.seed
    fitted = spec
    if inputs.is_builtin(spec) and "classes=" not in spec:
        fitted = f"{spec}{',' if ':' in spec else ':'}classes={len(data.concepts)}"
    network = build_seeded(fitted, seed)
    if not hasattr(network, "dense"):
        raise ValueError(
            f"--train needs a network with a method dense(), such as resnet50 and small_convnext have. Got {spec!r}. "
            "Train it elsewhere and give --weights."
        )
    train_on_concepts(network, data, epochs=epochs, seed=seed, progress=True)
    facts = {"name": spec, "trained here": f"{epochs} epochs on the same images", "seed": seed}
    return network, {**facts, "mean average precision": f"{place_accuracy(network, data):.3f}"}, None


def _size(asked: Dissect) -> tuple[int, int] | None:
    """The size given as an option, or else the image size that the model's directory gives."""
    if asked.size is not None:
        found = read("sides", "--size", asked.size)
        return found[0], found[-1]
    folder = inputs.directory_of(asked.weights, asked.model)
    said = None if folder is None or asked.concepts.startswith("broden") else inputs.image_settings(folder)
    return None if said is None else said.size


def _transform(
    statistics: tuple[Any, Any] | None, trained_here: bool
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, ...]]:
    """The transform of images in [0, 1] before the network sees them, and notes on it for the reader."""
    if statistics is None:
        note = "Images enter the network as values from 0 to 1: say --mean and --std if it needs others."
        return (lambda images: images), () if trained_here else (note,)
    centre, scale = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in statistics)
    grey = len(centre) == 1
    return (lambda images: ((images.mean(1, keepdim=True) if grey else images) - centre) / scale), ()


def _prediction(network: torch.nn.Module, layer: str, example: torch.Tensor) -> dict[str, str]:
    """The prediction of the symmetry group for the layer; empty if the group cannot be found."""
    try:
        return {"prediction": iw.dissection.predict(network, layer, example)}
    except (RuntimeError, ValueError, TypeError) as error:  # a model that cannot be captured can still be dissected
        tell(f"the symmetry group of this network could not be found: {' '.join(str(error).split())}")
        return {}
