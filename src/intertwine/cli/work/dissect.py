"""Work of ``intertwine dissect``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._io import read_json
from ...dissection import ConceptSet, Criterion, Dissection, Maps, dissect, predict
from ...lab.data import load_concepts
from ...lab.experiments.paper1.dissection import place_accuracy, train_on_concepts
from ...lab.training import choose_device, load_weights
from ...report.pages.dissection import headline
from .._models import build_model, is_builtin
from .._networks import read_checkpoint
from .._outputs import RESULTS, claim_folder
from .._results import tell_written, write_results
from .._running import one_thread
from .._show import print_json, print_table, say, tell
from ..commands.dissect import DissectOptions
from ..inputs.hugging_face import load_pretrained


def run(asked: DissectOptions) -> None:
    """Dissect a layer: which units detect a concept, in the network's own basis and in rotated ones."""
    claim_folder(asked.out, RESULTS, [asked.weights] if asked.weights else [])
    powers = [_number(part, "rotations") for part in asked.rotations.split(",")]
    patches = None if asked.grid is None else _pair(asked.grid, "grid")
    data = load_concepts(
        asked.concepts,
        images=asked.examples,
        size=None if asked.size is None else _pair(asked.size, "size"),
        split=asked.concept_split,
        seed=asked.seed,
    )
    if asked.train:
        one_thread()
    network, facts, statistics = _open(asked.model, asked.weights, asked.train, data, asked.seed)
    transform, note = _transform(asked.mean, asked.std, statistics, asked.weights is None)
    where = choose_device(asked.device)
    result = dissect(
        network.to(where),
        asked.layer,
        data,
        powers,
        seeds=range(asked.seed, asked.seed + asked.rotation_seeds),
        g_relu=asked.g_relu,
        criterion=Criterion(asked.quantile, asked.iou, asked.standardise, empty="drop"),
        maps=Maps(transform, grid=patches, batch_size=asked.batch_size, device=where),
        pictures=asked.pictures,
        resume=asked.out / "bases",
        name=facts["name"],
        progress=True,
    )
    settings = {**result.settings, "network": facts, "command": asked.line}
    settings |= _prediction(network, asked.layer, data, transform, where)
    result = replace(result, settings=settings, notes=(*result.notes, *note))
    _present(result, asked.out, asked.as_json)


def _open(
    spec: str | None, weights: Path | None, epochs: int, data: ConceptSet, seed: int
) -> tuple[nn.Module, dict[str, Any], tuple[Any, Any] | None]:
    """The network, facts about it, and the channel statistics of its inputs where a card knows them."""
    if weights is not None:
        checkpoint = read_checkpoint(weights)
        card = checkpoint.card
        if checkpoint.tensors is None:
            network, spec = load_pretrained(weights), f"hf:{weights}"
        else:
            spec = spec or (card.architecture if card and is_builtin(card.architecture) else None)
            if spec is None:
                raise ValueError(
                    f"--model must be given, since no card beside {str(weights)!r} names a built-in network."
                )
            network = build_model(spec)
            load_weights(network, checkpoint.tensors, repr(str(weights)), spec)
        statistics = (card.mean, card.std) if card and card.mean and card.std else _preprocessor(weights)
        return network.eval(), {"name": weights.name, "model": spec, "file": str(weights)}, statistics
    if spec is None or not epochs:
        raise ValueError(
            "--weights must name a checkpoint. Got none. To try dissection out, let a built-in network learn the "
            "concepts first: --model resnet50:width=8,blocks=2-2,stem=small --train 3."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(_for_concepts(spec, len(data.concepts)))
    return _taught(network, spec, data, epochs, seed)


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


def _preprocessor(folder: Path) -> tuple[list[float], list[float]] | None:
    """Channel statistics from the preprocessor that lies in a Hugging Face directory."""
    file = folder / "preprocessor_config.json"
    said = read_json(file) if file.is_file() else {}
    mean, std = said.get("image_mean"), said.get("image_std")
    return (mean, std) if mean and std and said.get("do_normalize", True) else None


def _transform(
    mean: str | None, std: str | None, statistics: tuple[Any, Any] | None, trained_here: bool
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """What is done to images in [0, 1] before the network sees them, and what a reader must know of it."""
    given = (mean, std) if (mean is not None or std is not None) else None
    if given and None in given:
        raise ValueError("--mean and --std must be given together. Got one of them.")
    values = [[_number(v, "mean and std") for v in str(part).split(",")] for part in given] if given else statistics
    if values is None:
        note = "Images were given to the network as values from 0 to 1; say --mean and --std if it needs others."
        return (lambda images: images), () if trained_here else (note,)
    centre, scale = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in values)
    if len(centre) != len(scale) or len(centre) not in (1, 3):
        raise ValueError(f"--mean and --std must be 1 or 3 numbers each. Got {len(centre)} and {len(scale)}.")
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


def _present(result: Dissection, out: Path, as_json: bool) -> None:
    paths = write_results(result, out)
    frame = result.table()
    if as_json:
        print_json(
            {"kind": "Dissection", "table": frame.to_dict("records"), "headline": headline(result), "files": paths}
        )
        return
    print_table(list(frame.columns), frame.to_numpy().tolist(), str(result).splitlines()[0])
    say(headline(result))
    for note in result.notes:
        say(f"Note: {note}")
    tell_written(paths)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be numbers joined by commas. Got {text!r}.") from None


def _pair(text: str, name: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdecimal() and int(p) for p in parts):
        raise ValueError(f"{name} must be two whole numbers joined by x, such as 224x224. Got {text!r}.")
    return int(parts[0]), int(parts[1])
