"""``intertwine gates``: a ReLU network taken apart into gates and paths, and its gated versions trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._gated_versions import GATED_HELP, VERSIONS, card_name, gated_version, own_row, trained, versions_of
from ._options import Data, Device, Json, Model, OutFolder, Seed
from ._show import say

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..gates import GateStudy
    from ..lab.data import DataSplits
    from ..lab.training import Recipe
    from ._networks import Opened

__all__ = ["gates"]

_FRESH = "digits_cnn"
_LARGE = 16  # pixels: below, mixed precision gains nothing
_LAYERS = 6  # whose features are shown


def gates(
    context: typer.Context,
    a: Annotated[
        Path | None, typer.Argument(metavar="[A]", help="Checkpoint of a ReLU network; without it one is trained.")
    ] = None,
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="A second one, to align with A by its gates.")] = None,
    model: Model = None,
    data: Data = None,
    split: Annotated[str, typer.Option(help="Which split to look at: train, validation or test.")] = "test",
    examples: Annotated[int, typer.Option(min=4, help="Examples of it for gate statistics, at most.")] = 500,
    kernel_examples: Annotated[
        int | None,
        typer.Option(min=4, help="Examples of the kernels, evenly over classes; 60, or as many as take minutes."),
    ] = None,
    gated: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=GATED_HELP)] = None,
    epochs: Annotated[
        int, typer.Option(min=0, help="Passes over the data for every network trained here; 0 only converts.")
    ] = 6,
    train_examples: Annotated[
        int | None, typer.Option("--train-examples", min=1, help="Training examples of them, at most; all by default.")
    ] = None,
    example: Annotated[int, typer.Option(min=0, help="The input whose paths are shown.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="How many of its paths.")] = 10,
    seed: Seed = 0,
    device: Device = "auto",
    out: OutFolder = Path("gates"),
    as_json: Json = False,
) -> None:
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
    from ..lab.training import choose_device
    from ._threads import one_thread

    versions_of(gated)  # unknown names are refused first
    where = choose_device(device)
    if where.type == "cpu":
        one_thread()
    _run(context, a, b, model, data, split, examples, kernel_examples, gated, epochs, train_examples,
         example, top, seed, where, out, as_json)  # fmt: skip


def _run(
    context: typer.Context, a: Path | None, b: Path | None, model: str | None, data: str | None, split: str,
    examples: int, kernel_examples: int | None, gated: list[str] | None, epochs: int,
    train_examples: int | None, example: int, top: int, seed: int, where: Any, out: Path, as_json: bool,
) -> None:  # fmt: skip
    from .. import gates as library
    from ..lab.training import fast_precision, recipe_for
    from ._networks import batches, check_run, data_facts, open_network, read_checkpoint, read_data
    from ._outputs import RESULTS, claim_folder
    from ._path_kernels import affordable

    sides = [read_checkpoint(path) for path in (a, b) if path is not None]
    spec, splits = read_data(data or ("digits" if not sides else None), *sides)
    if not sides and not epochs:
        raise ValueError("--epochs must be at least 1 where no checkpoint is given. Got 0, and nothing to convert.")
    if len(splits.classes) < 2:
        raise ValueError(f"--data must have classes. Got {splits.name}, which has {len(splits.classes)}.")
    precision = fast_precision(where) if splits.shape[-1] >= _LARGE else "float32"
    recipe = recipe_for(splits.shape).but(epochs=max(1, epochs), precision=precision)
    few = splits.first(train_examples)
    made = [f"{name}{end}" for name in (*VERSIONS, "network") for end in (".safetensors", ".json")]
    claim_folder(out, [*RESULTS, "kernels.safetensors", *made], [path for path in (a, b) if path])
    networks = [open_network(side, model, splits) for side in sides] or [_fresh(model, few, recipe, seed, where, out)]
    versions = _buildable(networks, gated)
    loader, notes = batches(splits, split, examples, 250, networks)
    for network in networks:
        check_run(network, loader, splits)
    x, labels = _stacked(loader)
    library.gate_patterns(networks[0].model, x[:1])  # what is no ReLU network is refused before anything is trained
    if example >= len(x):
        raise ValueError(f"--example must be below {len(x)}, the number of examples. Got {example}.")
    count, said = affordable(networks[0].model, x, kernel_examples)
    built = {name: gated_version(name, networks[0].model, x[:1], seed) for name in versions}
    accuracies = [own_row(networks[0], splits, where)]
    accuracies += [
        trained(name, net, card_name(name, net, networks[0], splits), few, recipe, epochs, seed, where, out)
        for name, net in built.items()
    ]
    study = library.examine(
        networks[0].model.to(where), x.to(where), labels.to(where), splits.classes, kernel_examples=count,
        example=example, top=top, progress=True,
    )  # fmt: skip
    settings: dict[str, Any] = {
        **study.settings, "seed": seed, "accuracies": accuracies, "network": networks[0].facts,
        "data": data_facts(spec, split, splits), "command": context.obj,
    }  # fmt: skip
    if len(few.train) < len(splits.train) and built and epochs:
        said.append(
            f"The gated versions saw {len(few.train):,} training examples, {epochs} times; what they lack beside a "
            "network that saw more is not due to their gates alone."
        )
    linear = {VERSIONS[name][0]: net for name, net in built.items() if name.startswith("dlgn")}
    own = networks[0].model
    if isinstance(own, library.GatedNetwork) and own.is_linear:
        linear = {networks[0].name: own}
    features = None
    for title, net in list(linear.items())[:1]:
        names = _spread([layer.name for layer in study.layers])
        features = library.effective_maps(net.cpu(), x[:1], names, positions="centre")
        settings["feature network"] = title
    if len(networks) > 1:
        settings["other"] = _beside(networks[0], networks[1], x, study)
    study = replace(
        study, model=networks[0].name, features=features, settings=settings, notes=(*notes, *said, *study.notes)
    )
    _present(study, out, as_json)


def _buildable(networks: list[Opened], gated: list[str] | None) -> list[str]:
    """The gated versions to build: none of what is a gated network itself.

    Raises:
        ValueError: If some were asked for, or a gated network should be put beside another.
    """
    from ..gates import GatedNetwork

    versions = versions_of(gated)
    if not any(isinstance(network.model, GatedNetwork) for network in networks):
        return versions
    if len(networks) > 1:
        raise ValueError(
            "B must be given with two ReLU networks only. Got a gated network. Look at each by itself, or align the "
            "networks that they were built from."
        )
    if gated is not None and versions:
        raise ValueError(
            "--gated must be none where A is a gated network. Got "
            + ", ".join(versions)
            + ". Give the network that it "
            "was built from."
        )
    return []


def _spread(names: list[str]) -> list[str]:
    """At most so many of the layers as a page shows, from the first to the last."""
    if len(names) <= _LAYERS:
        return names
    return [names[round(k * (len(names) - 1) / (_LAYERS - 1))] for k in range(_LAYERS)]


def _fresh(model: str | None, splits: DataSplits, recipe: Recipe, seed: int, where: Any, out: Path) -> Opened:
    """A network that is trained here."""
    from ..gates import gate_patterns
    from ..lab import networks, training
    from ._models import build_model, is_builtin
    from ._networks import open_network, read_checkpoint
    from ._show import tell

    spec = model or _FRESH
    trial = build_model(networks.fit_to(spec, splits.shape, len(splits.classes)) if is_builtin(spec) else spec)
    gate_patterns(trial.eval(), splits.loader("test", 1).batch(slice(0, 1))[0])  # refuses what has no gates
    tell(f"No checkpoint was given: training {spec} on {len(splits.train):,} examples of {splits.name}.")
    network = spec if is_builtin(spec) else _seeded(lambda: build_model(spec), seed)
    path = out / "network.safetensors"
    training.train(network, splits, recipe, seed=seed, name=None if is_builtin(spec) else spec, out=path, device=where)
    return replace(open_network(read_checkpoint(path), model, splits), name=spec)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _stacked(loader: Any) -> tuple[Tensor, Tensor]:
    import torch

    pairs = list(loader)
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _beside(a: Opened, b: Opened, x: Tensor, study: GateStudy) -> dict[str, Any]:
    """How B's gates compare with A's."""
    from .. import gates as library

    count = int(study.settings["kernel examples"])
    left, right = a.model.cpu(), b.model.cpu()
    found: dict[str, Any] = {"name": b.name, "npk alignment": library.npk_alignment(left, right, x[:count])}
    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (left, right)]
    if shapes[0] == shapes[1]:
        found |= library.match_gates(left, right, x).to_dict()
    return found


def _present(study: GateStudy, out: Path, as_json: bool) -> None:
    from .._io import write_tensors
    from ..report import write_page
    from ..report.gates import headline
    from ._show import print_json, print_table, tell

    paths = {name: study.save(out / name) for name in ("results.json", "results.parquet")}
    kernels = {"npk": study.npk, "ntk": study.ntk, "labels": study.labels}
    kernels |= {f"base/{name}": kernel for name, kernel in study.base.items()}
    paths["kernels.safetensors"] = write_tensors(out / "kernels.safetensors", kernels)
    paths["report.html"] = write_page(study, out / "report.html")
    frame = study.to_frame()
    accuracies = study.settings["accuracies"]
    other = study.settings.get("other")
    if as_json:
        print_json(
            {
                "kind": "GateStudy", "headline": headline(study), "layers": frame.to_dict("records"),
                "accuracies": accuracies, "alignments": study.alignments,
                "paths": study.paths and study.paths.to_dict(), "other": other, "notes": study.notes, "files": paths,
            }
        )  # fmt: skip
        return
    print_table(list(frame.columns), frame.astype(object).to_numpy().tolist(), "When units are on, layer by layer")
    columns = ["network", "gates", "value network is given", "test accuracy", "parameters"]
    told = lambda share: "not trained" if share is None else f"{share:.1%}"
    rows = [[told(a[c]) if c == "test accuracy" else a[c] for c in columns] for a in accuracies]
    print_table(columns, rows, "The network and its gated versions")
    if other:
        say(f"Path kernels of {study.model} and {other['name']}: alignment {other['npk alignment']:.3f}.")
        for space in other.get("spaces", ()):
            say(f"  {space['space']}: {space['agreement']:.1%} of gates agree (before {space['before']:.1%})")
    if study.paths is not None:
        say(study.paths)
    say(headline(study))
    for note in study.notes:
        say(f"Note: {note}")
    tell(f"wrote {', '.join(str(path) for path in paths.values())}")
