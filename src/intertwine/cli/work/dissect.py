"""Work of ``intertwine dissect``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...dissection import Bases, ConceptSet, Criterion, Dissection, Maps, dissect, predict
from ...lab.data import load_concepts
from ...lab.training import choose_device
from ...lab.training.concepts import place_accuracy, train_on_concepts
from ...report.pages.dissection import headline
from .._running import one_thread
from .._values import numbers, pair, sides
from ..commands.dissect import DissectOptions
from ..inputs.models import build_model, is_builtin
from ..inputs.networks import check_finite, check_takes, model_named_by, open_alone, read_checkpoint, statistics_of
from ..inputs.preparation import directory_of, image_settings
from ..outputs.files import RESULTS, claim_folder
from ..outputs.results import present
from ..outputs.show import print_table, say, tell


def run(asked: DissectOptions) -> None:
    """Dissect a layer: which units detect a concept, in the network's own basis and in rotated ones."""
    claim_folder(asked.out, RESULTS, [asked.weights] if asked.weights else [])
    powers = numbers("--rotations", asked.rotations)
    patches = None if asked.grid is None else pair("--grid", asked.grid)
    data = load_concepts(
        asked.concepts,
        images=asked.examples,
        size=_size(asked),
        split=asked.concept_split,
        seed=asked.seed,
    )
    if asked.train:
        one_thread()
    network, facts, statistics = _open(asked.model, asked.weights, asked.train, data, asked.seed)
    transform, note = _transform(asked.statistics or statistics, asked.weights is None)
    where = choose_device(asked.device)
    images = transform(next(data.batches(2)).images)
    said = f"--concepts must be images that {facts['name']} accepts. Got images of shape {tuple(images.shape[1:])}"
    check_takes(network.to(where), images, where, said)
    result = dissect(
        network,
        asked.layer,
        data,
        Bases(powers, range(asked.seed, asked.seed + asked.rotation_seeds), asked.g_relu),
        criterion=Criterion(asked.quantile, asked.iou, asked.standardise, empty="drop"),
        maps=Maps(transform, grid=patches, batch_size=asked.batch_size, device=where),
        pictures=asked.pictures,
        resume=asked.out / "bases",
        progress=True,
    )
    settings = {**result.settings, "network": facts, "command": asked.line}
    settings |= _prediction(network, asked.layer, data, transform, where)
    result = replace(result, model=facts["name"], settings=settings, notes=(*result.notes, *note))
    shown = {"table": result.table().to_dict("records"), "headline": headline(result)}
    present(result, asked.out, asked.as_json, _print, shown)


def _open(
    spec: str | None, weights: Path | None, epochs: int, data: ConceptSet, seed: int
) -> tuple[nn.Module, dict[str, Any], tuple[Any, Any] | None]:
    """The network, facts about it, and the channel statistics of its inputs where a card knows them."""
    if weights is not None:
        checkpoint = read_checkpoint(weights)
        card, spec = checkpoint.card, spec or model_named_by(weights)
        network = open_alone(spec, checkpoint)
        check_finite(network, weights)
        known = (card.mean, card.std) if card and card.mean and card.std else statistics_of(weights, spec, network)
        return network, {"name": weights.name, "model": spec, "file": str(weights)}, known
    assert spec is not None  # the options have checked it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(_for_concepts(spec, len(data.concepts)))
    return _taught(network, spec, data, epochs, seed)


def _size(asked: DissectOptions) -> tuple[int, int] | None:
    """The size that is asked for, or else what the directory of the model says of its images."""
    if asked.size is not None:
        found = sides(asked.size)
        return found[0], found[-1]
    folder = directory_of(asked.weights, asked.model)
    said = None if folder is None or asked.concepts.startswith("broden") else image_settings(folder)
    return None if said is None else said.size


def _for_concepts(spec: str, concepts: int) -> str:
    if not is_builtin(spec) or "classes=" in spec:
        return spec
    return f"{spec}{',' if ':' in spec else ':'}classes={concepts}"


def _taught(
    network: nn.Module, spec: str, data: ConceptSet, epochs: int, seed: int
) -> tuple[nn.Module, dict[str, Any], None]:
    if not hasattr(network, "dense"):
        raise ValueError(
            f"--train needs a network with a method dense(), such as resnet50 and small_convnext have. Got {spec!r}. "
            "Train it elsewhere and give --weights."
        )
    train_on_concepts(network, data, epochs=epochs, seed=seed, progress=True)
    facts = {"name": spec, "trained here": f"{epochs} epochs on the same images", "seed": seed}
    return network, {**facts, "mean average precision": f"{place_accuracy(network, data):.3f}"}, None


def _transform(
    statistics: tuple[Any, Any] | None, trained_here: bool
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """What is done to images in [0, 1] before the network sees them, and what a reader must know of it."""
    if statistics is None:
        note = "Images were given to the network as values from 0 to 1; say --mean and --std if it needs others."
        return (lambda images: images), () if trained_here else (note,)
    centre, scale = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in statistics)
    grey = len(centre) == 1
    return (lambda images: ((images.mean(1, keepdim=True) if grey else images) - centre) / scale), ()


def _prediction(
    network: nn.Module, layer: str, data: ConceptSet, transform: Callable[[Tensor], Tensor], device: Any
) -> dict[str, str]:
    """What the symmetry group says about the layer; nothing where it cannot be found."""
    example = transform(next(data.batches(2)).images).to(device)
    try:
        return {"prediction": predict(network, layer, example)}
    except (RuntimeError, ValueError, TypeError) as error:  # a model that cannot be captured can still be dissected
        tell(f"the symmetry group of this network could not be found: {' '.join(str(error).split())}")
        return {}


def _print(result: Dissection) -> None:
    frame = result.table()
    print_table(list(frame.columns), frame.to_numpy().tolist(), str(result).splitlines()[0])
    say(headline(result))
    for note in result.notes:
        say(f"Note: {note}")
