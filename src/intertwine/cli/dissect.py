"""``intertwine dissect``: is the neuron basis of a layer special?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._options import Device, Json, Model, Seed
from ._show import say

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..dissection import ConceptSet, Dissection

__all__ = ["dissect"]

CONCEPTS_HELP = (
    "generated, parquet:FILE, masks:FOLDER, coco:ANNOTATIONS.json@IMAGES or broden:FOLDER; with +colours at the end, "
    "colours computed from the pixels are added."
)


def dissect(
    context: typer.Context,
    layer: Annotated[str, typer.Option("--layer", metavar="NAME", help="The layer, as named_modules() calls it.")],
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="Checkpoint, or a Hugging Face directory.")
    ] = None,
    train: Annotated[
        int, typer.Option(metavar="EPOCHS", min=0, help="Without weights: first teach the network the concepts.")
    ] = 0,
    concepts: Annotated[str, typer.Option(metavar="CONCEPTS", help=CONCEPTS_HELP)] = "generated",
    split: Annotated[str | None, typer.Option(help="Of parquet and broden: only this split.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Use the first images only.")] = None,
    size: Annotated[str | None, typer.Option(metavar="HxW", help="Size to bring images and labels to.")] = None,
    rotations: Annotated[str, typer.Option(help="Powers of the rotation, joined by commas.")] = "0,0.25,0.5,0.75,1",
    rotation_seeds: Annotated[int, typer.Option(min=1, help="Random rotations for each power.")] = 5,
    g_relu: Annotated[int, typer.Option(min=0, help="Random permutations with positive scales, as a check.")] = 1,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Divide channels by their size before rotating them.")
    ] = False,
    quantile: Annotated[float, typer.Option(help="Share of a unit's values above its threshold.")] = 0.005,
    iou: Annotated[float, typer.Option(help="Intersection over union of a detector.")] = 0.04,
    sketch: Annotated[bool, typer.Option("--sketch", help="Thresholds from one pass, with a stated error.")] = False,
    mean: Annotated[str | None, typer.Option(help="Channel means to subtract; from the card otherwise.")] = None,
    std: Annotated[str | None, typer.Option(help="Channel deviations to divide by; from the card otherwise.")] = None,
    grid: Annotated[str | None, typer.Option(metavar="RxC", help="Rows and columns of patches, for tokens.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that run through the network at once.")] = 32,
    pictures: Annotated[int, typer.Option(min=0, help="Best units to show; 0 for none.")] = 12,
    seed: Seed = 0,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for results; a stopped run goes on there.")
    ] = Path("dissection"),
    as_json: Json = False,
) -> None:
    """Dissect a layer: which units detect a concept, in the network's own basis and in rotated ones.

    Prints a table and writes results.json, results.parquet and report.html. Every finished basis is kept in the
    folder, so that the same command goes on after an interruption.

    Example:
      intertwine dissect --model resnet50:width=8,blocks=2-2,stem=small --train 3 --layer layer2.1 --images 300
      intertwine dissect --model resnet50 --weights resnet50.pth --layer layer4 --concepts broden:broden1_224
      intertwine dissect --weights hf_vit --layer vit.layernorm --concepts parquet:camvid.parquet --size 224x224
    """
    from ..dissection import Criterion, Maps
    from ..dissection import dissect as run
    from ..lab.data import load_concepts
    from ..lab.training import choose_device
    from ._outputs import RESULTS, claim_folder
    from ._show import tell
    from ._threads import one_thread

    claim_folder(out, RESULTS, [weights] if weights else [])
    powers = [_number(part, "rotations") for part in rotations.split(",")]
    patches = None if grid is None else _pair(grid, "grid")
    data = load_concepts(
        concepts, images=images, size=None if size is None else _pair(size, "size"), split=split, seed=seed
    )
    if train:
        one_thread()
    network, facts, statistics = _open(model, weights, train, data, seed)
    transform, note = _transform(mean, std, statistics, weights is None)
    where = choose_device(device)
    result = run(
        network.to(where),
        layer,
        data,
        powers,
        seeds=range(seed, seed + rotation_seeds),
        g_relu=g_relu,
        criterion=Criterion(quantile, iou, "sketch" if sketch else "exact", standardise, empty="drop"),
        maps=Maps(transform, grid=patches, batch_size=batch_size, device=where),
        pictures=pictures,
        resume=out / "bases",
        name=facts["name"],
        progress=True,
    )
    settings = {**result.settings, "network": facts, "command": context.obj}
    settings |= _prediction(network, layer, data, transform, where)
    result = replace(result, settings=settings, notes=(*result.notes, *note))
    _present(result, out, as_json)
    if not as_json:
        tell(f"wrote {out / 'results.json'}, {out / 'results.parquet'}, {out / 'report.html'}")


def _open(
    spec: str | None, weights: Path | None, epochs: int, data: ConceptSet, seed: int
) -> tuple[nn.Module, dict[str, Any], tuple[Any, Any] | None]:
    """The network, facts about it, and the channel statistics of its inputs where a card knows them.

    Raises:
        ValueError: If nothing says which weights or which model.
    """
    import torch

    from ..lab.training import load_weights
    from ._hugging_face import load_pretrained
    from ._models import build_model, is_builtin
    from ._networks import read_checkpoint

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
    from ._models import is_builtin

    if not is_builtin(spec) or "classes=" in spec:
        return spec
    return f"{spec}{',' if ':' in spec else ':'}classes={concepts}"


def _taught(
    network: nn.Module, spec: str, data: ConceptSet, epochs: int, seed: int
) -> tuple[nn.Module, dict[str, Any], None]:
    from ..lab.experiments.paper1.dissection import place_accuracy, train_on_concepts

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
    from .._io import read_json

    file = folder / "preprocessor_config.json"
    said = read_json(file) if file.is_file() else {}
    mean, std = said.get("image_mean"), said.get("image_std")
    return (mean, std) if mean and std and said.get("do_normalize", True) else None


def _transform(
    mean: str | None, std: str | None, statistics: tuple[Any, Any] | None, trained_here: bool
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """What is done to images in [0, 1] before the network sees them, and what a reader must know of it.

    Raises:
        ValueError: If the statistics do not belong together.
    """
    import torch

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
    from ..dissection import predict
    from ._show import tell

    example = transform(next(data.batches(2)).images).to(device)
    try:
        return {"prediction": predict(network, layer, example)}
    except (RuntimeError, ValueError, TypeError) as error:  # a model that cannot be captured can still be dissected
        tell(f"the symmetry group of this network could not be found: {' '.join(str(error).split())}")
        return {}


def _present(result: Dissection, out: Path, as_json: bool) -> None:
    from ..report import write_page
    from ..report.dissection import headline
    from ._show import print_json, print_table

    paths = {name: result.save(out / name) for name in ("results.json", "results.parquet")}
    paths["report.html"] = write_page(result, out / "report.html")
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
