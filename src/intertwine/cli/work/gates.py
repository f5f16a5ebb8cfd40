"""Work of ``intertwine gates``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import gates as library
from ..._io import write_tensors
from ...gates import GatedNetwork, GateStudy, gate_patterns
from ...lab import networks, training
from ...lab.data import Batches, DataSplits
from ...lab.training import Recipe, accuracy, choose_device, fast_precision, recipe_for
from ...report.pages.gates import headline
from .._gated_versions import card_name, gated_version, versions_of
from .._models import build_model, is_builtin
from .._networks import Opened, batches, check_run, data_facts, open_network, read_checkpoint, read_data
from .._outputs import RESULTS, claim_folder
from .._results import tell_written, write_results
from .._running import one_thread
from .._show import print_json, print_table, say, tell
from ..commands.gates import VERSIONS, GatesOptions
from ._path_kernels import affordable

_FRESH = "digits_cnn"
_LARGE = 16  # pixels: below, mixed precision gains nothing
_LAYERS = 6  # whose features are shown


def run(asked: GatesOptions) -> None:
    """Take a ReLU network apart into gates and paths, and train its gated versions."""
    versions_of(asked.gated)  # unknown names are refused first
    where = choose_device(asked.device)
    if where.type == "cpu":
        one_thread()
    sides = [read_checkpoint(path) for path in (asked.a, asked.b) if path is not None]
    spec, splits = read_data(asked if sides or asked.data else replace(asked, data="digits"), sides, [asked.model])
    if not sides and not asked.epochs:
        raise ValueError("--epochs must be at least 1 where no checkpoint is given. Got 0, and nothing to convert.")
    splits.need_labels("to study gates by class")
    precision = fast_precision(where) if splits.shape[-1] >= _LARGE else "float32"
    recipe = recipe_for(splits.shape).but(epochs=max(1, asked.epochs), precision=precision)
    few = splits.first(asked.train_examples)
    made = [f"{name}{end}" for name in (*VERSIONS, "network") for end in (".safetensors", ".json")]
    claim_folder(asked.out, [*RESULTS, "kernels.safetensors", *made], [path for path in (asked.a, asked.b) if path])
    networks = [open_network(side, asked.model, splits) for side in sides] or [_fresh(asked, few, recipe, where)]
    versions = _buildable(networks, asked.gated)
    loader, notes = batches(splits, asked.split, asked.examples, 250, networks)
    for network in networks:
        check_run(network, loader, splits)
    x, labels = _stacked(loader)
    library.gate_patterns(networks[0].model, x[:1])  # what is no ReLU network is refused before anything is trained
    if asked.example >= len(x):
        raise ValueError(f"--example must be below {len(x)}, the number of examples. Got {asked.example}.")
    count, said = affordable(networks[0].model, x, asked.kernel_examples)
    built = {name: gated_version(name, networks[0].model, x[:1], asked.seed) for name in versions}
    base = networks[0]
    accuracies = [_own_row(base.name, base.model, base.facts.get("epoch"), splits, where)]
    accuracies += [
        _trained(asked, name, net, card_name(name, net, str(base.facts["model"]), splits), few, recipe, where)
        for name, net in built.items()
    ]
    study = library.examine(
        networks[0].model.to(where), x.to(where), labels.to(where), splits.classes, kernel_examples=count,
        example=asked.example, progress=True,
    )  # fmt: skip
    settings: dict[str, Any] = {
        **study.settings, "seed": asked.seed, "accuracies": accuracies, "network": networks[0].facts,
        "data": data_facts(spec, asked.split, splits), "command": asked.line,
    }  # fmt: skip
    if len(few.train) < len(splits.train) and built and asked.epochs:
        said.append(
            f"The gated versions saw {len(few.train):,} training examples, {asked.epochs} times; what they lack beside "
            "a network that saw more is not due to their gates alone."
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
    _present(study, asked.out, asked.as_json)


def _buildable(networks: list[Opened], gated: list[str] | None) -> list[str]:
    """The gated versions to build: none of what is a gated network itself."""
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
            f"--gated must be none where A is a gated network. Got {', '.join(versions)}. Give the network that it was "
            "built from."
        )
    return []


def _spread(names: list[str]) -> list[str]:
    """At most so many of the layers as a page shows, from the first to the last."""
    if len(names) <= _LAYERS:
        return names
    return [names[round(k * (len(names) - 1) / (_LAYERS - 1))] for k in range(_LAYERS)]


def _fresh(asked: GatesOptions, splits: DataSplits, recipe: Recipe, where: Any) -> Opened:
    """A network that is trained here."""
    spec = asked.model or _FRESH
    trial = build_model(networks.fit_to(spec, splits.shape, len(splits.classes)) if is_builtin(spec) else spec)
    gate_patterns(trial.eval(), splits.loader("test", 1).batch(slice(0, 1))[0])  # refuses what has no gates
    tell(f"No checkpoint was given: training {spec} on {len(splits.train):,} examples of {splits.name}.")
    network = spec if is_builtin(spec) else _seeded(lambda: build_model(spec), asked.seed)
    path = asked.out / "network.safetensors"
    training.train(
        network, splits, recipe, seed=asked.seed, name=None if is_builtin(spec) else spec, out=path, device=where
    )
    return replace(open_network(read_checkpoint(path), asked.model, splits), name=spec)


def _trained(
    asked: GatesOptions, name: str, network: GatedNetwork, spec: str, splits: DataSplits, recipe: Recipe, where: Any
) -> dict[str, Any]:
    """Train a gated version in place, or only write it; return its row of the table."""
    title, source, given = VERSIONS[name]
    path = asked.out / f"{name}.safetensors"
    row: dict[str, Any] = {"network": title, "gates": source, "value network is given": given}
    row["parameters"] = sum(p.numel() for p in network.parameters())
    if not asked.epochs:
        facts = {"mean": splits.mean, "std": splits.std, "classes": splits.classes, "shape": splits.shape}
        card = training.Card(architecture=spec, data=splits.name, seed=asked.seed, **facts)  # type: ignore[arg-type]
        training.save_checkpoint(path, network, card)
        return {**row, "test accuracy": None, "epochs": 0}
    tell(f"Training {title}: gates {source}, the value network is given {given}.")
    run = training.train(network, splits, recipe, seed=asked.seed, name=spec, out=path, resume="same", device=where)
    network.load_state_dict(run.model.state_dict())
    return {**row, "test accuracy": run.card.metrics["test_accuracy"], "epochs": asked.epochs}


def _own_row(name: str, model: nn.Module, epoch: Any, splits: DataSplits, where: Any) -> dict[str, Any]:
    """The row of the network itself."""
    right = accuracy(model.to(where), Batches(splits.test.to(where), splits.mean, splits.std))
    return {
        "network": name, "gates": "its own", "value network is given": "x", "test accuracy": right, "epochs": epoch,
        "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _stacked(loader: Any) -> tuple[Tensor, Tensor]:
    pairs = list(loader)
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _beside(a: Opened, b: Opened, x: Tensor, study: GateStudy) -> dict[str, Any]:
    """How B's gates compare with A's."""
    count = int(study.settings["kernel examples"])
    left, right = a.model.cpu(), b.model.cpu()
    found: dict[str, Any] = {"name": b.name, "npk alignment": library.npk_alignment(left, right, x[:count])}
    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (left, right)]
    if shapes[0] == shapes[1]:
        found |= library.match_gates(left, right, x).to_dict()
    return found


def _present(study: GateStudy, out: Path, as_json: bool) -> None:
    paths = write_results(study, out)
    kernels = {"npk": study.npk, "ntk": study.ntk, "labels": study.labels}
    kernels |= {f"base/{name}": kernel for name, kernel in study.base.items()}
    paths["kernels.safetensors"] = write_tensors(out / "kernels.safetensors", kernels)
    frame = study.to_frame()
    accuracies = study.settings["accuracies"]
    other = study.settings.get("other")
    if as_json:
        print_json(
            {
                "kind": "GateStudy", "headline": headline(study), "layers": frame.to_dict("records"),
                "accuracies": accuracies, "alignments": study.alignments,
                "other": other, "notes": study.notes, "files": paths,
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
    say(study.active)
    say(headline(study))
    for note in study.notes:
        say(f"Note: {note}")
    tell_written(paths)
