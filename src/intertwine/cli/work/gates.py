"""Work of ``intertwine gates``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ... import gates as library
from ..._io import write_tensors
from ...gates import GatedNetwork, GateStudy, gate_patterns
from ...lab import networks
from ...lab.data import Batches, DataSplits
from ...lab.training import (
    Card,
    Recipe,
    accuracy,
    choose_device,
    fast_precision,
    recipe_for,
    save_checkpoint,
    train,
)  # fmt: skip
from ...report.pages.gates import headline
from .._running import one_thread
from ..commands.gates import VERSIONS, GatesOptions
from ..inputs.gated_versions import card_name, gated_version, versions_of
from ..inputs.models import build_model, is_builtin
from ..inputs.networks import Opened, batches, check_run, data_facts, open_network, read_checkpoint, read_data
from ..outputs.files import RESULTS, claim_folder
from ..outputs.results import present
from ..outputs.show import print_table, say, tell
from ._path_kernels import affordable

_FRESH = "digits_cnn"
_LARGE = 16  # pixels: below, mixed precision gains nothing
_LAYERS = 6  # whose features are shown
_FEWER = (
    "The gated versions saw {examples:,} training examples, {epochs} times; what they lack beside a network that saw "
    "more is not due to their gates alone."
)


def run(asked: GatesOptions) -> None:
    """Take a ReLU network apart into gates and paths, and train its gated versions."""
    where = choose_device(asked.device)
    if where.type == "cpu":
        one_thread()
    given = [path for path in (asked.a, asked.b) if path is not None]
    sides = [read_checkpoint(path) for path in given]
    spec, splits = read_data(asked if sides or asked.data else replace(asked, data="digits"), sides, [asked.model])
    splits.need_labels("to study gates by class")
    made = [f"{name}{end}" for name in (*VERSIONS, "network") for end in (".safetensors", ".json")]
    claim_folder(asked.out, [*RESULTS, "kernels.safetensors", *made], given)
    training = _Training(asked, splits.first(asked.train_examples), where)
    networks = [open_network(side, asked.model, splits, asked) for side in sides] or [training.fresh()]
    base, versions = networks[0], _buildable(networks, asked.gated)
    loader, notes = batches(splits, asked.split, asked.examples, 250, networks)
    for network in networks:
        check_run(network, loader, splits)
    x, labels = _stacked(loader)
    library.gate_patterns(base.model, x[:1])  # what is no ReLU network is refused before anything is trained
    if asked.example >= len(x):
        raise ValueError(f"--example must be below {len(x)}, the number of examples. Got {asked.example}.")
    count, said = affordable(base.model, x, asked.kernel_examples)
    built = {name: gated_version(name, base.model, x[:1], asked.seed) for name in versions}
    accuracies = [_own_row(base, splits, where), *(training.version(name, net, base) for name, net in built.items())]
    study = library.examine(
        base.model.to(where), x.to(where), labels.to(where), splits.classes, kernel_examples=count,
        index=asked.example, progress=True,
    )  # fmt: skip
    title, features = _features(study, base, built, x[:1])
    settings = {
        **study.settings, "seed": asked.seed, "accuracies": accuracies, "network": base.facts,
        "data": data_facts(spec, asked.split, splits), "command": asked.line, "feature network": title,
        "other": _beside(base, networks[1], x, study) if len(networks) > 1 else None,
    }  # fmt: skip
    settings = {key: value for key, value in settings.items() if value is not None}
    if len(training.data.train) < len(splits.train) and built and asked.epochs:
        said.append(_FEWER.format(examples=len(training.data.train), epochs=asked.epochs))
    notes = [*notes, *said, *study.notes]
    study = replace(study, model=base.name, features=features, settings=settings, notes=tuple(notes))
    kernels = {"npk": study.npk, "ntk": study.ntk, "labels": study.labels}
    kernels |= {f"base/{name}": kernel for name, kernel in study.base.items()}
    files = {"kernels.safetensors": write_tensors(asked.out / "kernels.safetensors", kernels)}
    present(study, asked.out, asked.as_json, _print, _data(study), files)


@dataclass(frozen=True)
class _Training:
    """What is trained here: a network where no checkpoint was given, and gated versions."""

    asked: GatesOptions
    data: DataSplits
    device: torch.device

    @property
    def recipe(self) -> Recipe:
        """Settings by the size of the inputs, with the epochs that were asked for."""
        precision = fast_precision(self.device) if self.data.shape[-1] >= _LARGE else "float32"
        return recipe_for(self.data.shape).but(epochs=max(1, self.asked.epochs), precision=precision)

    def fresh(self) -> Opened:
        """A network of the model that was named."""
        spec, splits = self.asked.model or _FRESH, self.data
        trial = build_model(networks.fit_to(spec, splits.shape, len(splits.classes)) if is_builtin(spec) else spec)
        gate_patterns(trial.eval(), splits.loader("test", 1).batch(slice(0, 1))[0])  # refuses what has no gates
        tell(f"No checkpoint was given: training {spec} on {len(splits.train):,} examples of {splits.name}.")
        network = spec if is_builtin(spec) else _seeded(lambda: build_model(spec), self.asked.seed)
        path = self.asked.out / "network.safetensors"
        name = None if is_builtin(spec) else spec
        train(network, splits, self.recipe, seed=self.asked.seed, name=name, out=path, device=self.device)
        return replace(open_network(read_checkpoint(path), self.asked.model, splits, self.asked), name=spec)

    def version(self, name: str, network: GatedNetwork, base: Opened) -> dict[str, Any]:
        """Train a gated version in place, or only write it; its row of the table."""
        title, source, given = VERSIONS[name]
        path, asked, splits = self.asked.out / f"{name}.safetensors", self.asked, self.data
        spec = card_name(name, network, str(base.facts["model"]), splits)
        row: dict[str, Any] = {"network": title, "gates": source, "value network is given": given}
        row["parameters"] = sum(p.numel() for p in network.parameters())
        if not asked.epochs:
            card = Card(
                architecture=spec, data=splits.name, seed=asked.seed, mean=splits.mean, std=splits.std,
                classes=splits.classes, shape=splits.shape,
            )  # fmt: skip
            save_checkpoint(path, network, card)
            return {**row, "test accuracy": None, "epochs": 0}
        tell(f"Training {title}: gates {source}, the value network is given {given}.")
        run = train(
            network, splits, self.recipe, seed=asked.seed, name=spec, out=path, resume="same", device=self.device
        )
        network.load_state_dict(run.model.state_dict())
        return {**row, "test accuracy": run.card.metrics["test_accuracy"], "epochs": asked.epochs}


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


def _features(study: GateStudy, base: Opened, built: dict[str, GatedNetwork], x: Tensor) -> tuple[str | None, Any]:
    """Name and effective maps of the first network whose gates are linear; nothing without one."""
    linear = {VERSIONS[name][0]: net for name, net in built.items() if name.startswith("dlgn")}
    if isinstance(base.model, GatedNetwork) and base.model.is_linear:
        linear = {base.name: base.model}
    for title, network in linear.items():
        layers = _spread([layer.name for layer in study.layers])
        return title, library.effective_maps(network.cpu(), x, layers, positions="centre")
    return None, None


def _own_row(base: Opened, splits: DataSplits, where: Any) -> dict[str, Any]:
    """The row of the network itself."""
    right = accuracy(base.model.to(where), Batches(splits.test.to(where), splits.mean, splits.std))
    return {
        "network": base.name, "gates": "its own", "value network is given": "x", "test accuracy": right,
        "epochs": base.facts.get("epoch"), "parameters": sum(p.numel() for p in base.model.parameters()),
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


def _data(study: GateStudy) -> dict[str, Any]:
    said = {key: study.settings.get(key) for key in ("accuracies", "other")}
    layers = study.to_frame().to_dict("records")
    return {
        "headline": headline(study), "layers": layers, **said, "alignments": study.alignments, "notes": study.notes
    }  # fmt: skip


def _print(study: GateStudy) -> None:
    frame, other = study.to_frame(), study.settings.get("other")
    print_table(list(frame.columns), frame.astype(object).to_numpy().tolist(), "When units are on, layer by layer")
    columns = ["network", "gates", "value network is given", "test accuracy", "parameters"]
    told = lambda share: "not trained" if share is None else f"{share:.1%}"
    accuracies = study.settings["accuracies"]
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
