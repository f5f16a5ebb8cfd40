"""``intertwine gates``: a ReLU network decomposed into gates and paths, and its gated versions trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._catalogue import VERSIONS
from .._command import one_thread
from .._options import DataOptions, DeviceOptions, advanced, argument, option
from .._outputs import tell
from . import Study, inputs, iw, torch
from .train import build_seeded

if TYPE_CHECKING:
    from ...lab.data import DataSplits
    from ...lab.training import Recipe

_KERNELS = "kernels.safetensors"
_FRESH = "digits_cnn"
_LARGE = 16  # pixels: below, mixed precision gains nothing
_EXAMPLES = 60  # of path kernels
_OPERATIONS = 1e10  # a minute or two on a CPU
_FEWER = (
    "The gated versions saw {examples:,} training examples, {epochs} times; where they fall short of a network that "
    "saw more, the gates alone are not the reason."
)


class Gates(Study, DeviceOptions, DataOptions):
    """Decompose a ReLU network into gates and paths, and train its gated versions.

    Reports how units switch, which gates classes share, the path and tangent kernels, and which paths make up the
    output for one input. Gated versions (DGN: gates from a second network; DLGN: from a linear one, whose features can
    be inspected) are built from the network, trained with the same recipe and written as checkpoints. Without A, a
    small network is trained on digits first; that and its three default versions take about half a minute. The
    checkpoint of a gated version is studied alone.

    Beside results.json, results.parquet and report.html, kernels.safetensors holds all kernels.

    Example:
      intertwine gates
      intertwine gates a.safetensors --data digits --gated dgn-fr,dgn-fl,dlgn-ones --epochs 20
      intertwine gates a.safetensors --data cifar10 --train-examples 10000
      intertwine gates a.safetensors b.safetensors --gated none
      intertwine gates a.safetensors --gated dlgn --epochs 0 --out converted
      intertwine gates converted/dlgn.safetensors
    """

    python = "iw.gates.examine(model, x, labels); iw.gates.dgn(model); iw.gates.dlgn(model)"
    writes = (_KERNELS, *(f"{name}{end}" for name in (*VERSIONS, "network") for end in (".safetensors", ".json")))

    a: Path | None = argument("Checkpoint of a ReLU network; if left out, one is trained.", metavar="[A]")
    b: Path | None = argument("Checkpoint of a second one, to align with A by its gates.", metavar="[B]")
    split: str = "test"
    examples: int = option("Use at most this many examples of the split for gate statistics.", 500, min=4)
    kernel_examples: int | None = advanced(
        "Examples for the kernels, spread evenly over classes. Default: 60, or as many as minutes allow.", min=4
    )
    gated: list[str] | None = option(
        f"Gated versions to build and train, joined by commas: {', '.join(VERSIONS)}; or none."
    )
    epochs: int = option("Passes over the data for every network trained here; 0 converts without training.", 6, min=0)
    train_examples: int | None = advanced("Use at most this many training examples for them. Default: all.", min=1)
    example: int = advanced("The input whose paths are shown.", 0, min=0)
    out: Path = Path("gates")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a is None and not self.epochs:
            raise ValueError("--epochs must be at least 1 where no checkpoint is given. Got 0, and nothing to convert.")

    def find(self) -> iw.gates.GateStudy:
        from ...gates.examine import check_labels

        where = iw.lab.training.choose_device(self.device)
        if where.type == "cpu":
            one_thread()
        sides = [inputs.read_checkpoint(path) for path in self.reads]
        asked_data = self if sides or self.data else replace(self, data="digits")
        spec, splits = inputs.read_data(asked_data, sides, [self.model])
        splits.need_labels("to study gates by class", classes=2)
        studied = splits.loader(self.split, examples=self.examples).split  # type: ignore[arg-type]
        check_labels(studied.inputs, studied.labels, splits.classes)
        data = splits.first(self.train_examples)
        networks = [inputs.open_network(side, self.model, splits, self) for side in sides] or [self._fresh(data, where)]
        base, versions = networks[0], _buildable(networks, self.gated)
        loader, notes = inputs.batches(splits, self.split, self.examples, 250, networks)
        for network in networks:
            inputs.check_run(network, loader, splits)
        x, labels = (torch.cat(parts) for parts in zip(*loader))
        iw.gates.gate_patterns(base.model, x[:1])  # refuse what is no ReLU network before training
        if self.example >= len(x):
            raise ValueError(f"--example must be below {len(x)}, the number of examples. Got {self.example}.")
        count, said = _affordable(base.model, x, self.kernel_examples)
        built = {name: inputs.gated_version(name, base.model, x[:1], self.seed) for name in versions}
        for name, version in built.items():  # refused before any other is trained or written
            _check_version(name, version, x[:1])
        trained = [self._version(name, network, base, data, where) for name, network in built.items()]
        batches = iw.lab.data.Batches(splits.test.to(where), splits.mean, splits.std)
        ones = isinstance(base.model, iw.gates.GatedNetwork) and base.model.input == "ones"
        own = {
            "network": base.name, "gates": "its own", "value network is given": "1" if ones else "x",
            "test accuracy": iw.lab.training.accuracy(base.model.to(where), batches),
            "epochs": base.facts.get("epoch"), "parameters": sum(p.numel() for p in base.model.parameters()),
        }  # fmt: skip
        study = iw.gates.examine(
            base.model.to(where), x.to(where), labels.to(where), splits.classes, kernel_examples=count,
            index=self.example, progress=True,
        )  # fmt: skip
        title, features = _features(study, base, built, x[:1])
        settings = {
            **study.settings, "seed": self.seed, "accuracies": [own, *trained], "network": base.facts,
            "data": inputs.data_facts(spec, self.split, splits), "command": self.line, "feature network": title,
            "other": _beside(base, networks[1], x, study) if len(networks) > 1 else None,
        }  # fmt: skip
        settings = {key: value for key, value in settings.items() if value is not None}
        if len(data.train) < len(splits.train) and built and self.epochs:
            said.append(_FEWER.format(examples=len(data.train), epochs=self.epochs))
        notes = [*notes, *said, *study.notes]
        return replace(study, model=base.name, features=features, settings=settings, notes=tuple(notes))

    def write(self, found: iw.gates.GateStudy) -> dict[str, Path]:
        from ..._io import write_tensors

        kernels = {"npk": found.npk, "ntk": found.ntk, "labels": found.labels}
        kernels |= {f"base/{name}": kernel for name, kernel in found.base.items()}
        return {**super().write(found), _KERNELS: write_tensors(self.out / _KERNELS, kernels)}

    def plain(self, found: iw.gates.GateStudy) -> dict[str, Any]:
        settings = {key: found.settings.get(key) for key in ("accuracies", "other")}
        rows = {"headline": found.verdict, "layers": found.to_frame().to_dict("records")}
        return {**rows, **settings, "alignments": found.alignments, "notes": found.notes}

    def _recipe(self, data: DataSplits, where: torch.device) -> Recipe:
        """Settings chosen by the size of the inputs, with the epochs that were asked for."""
        training = iw.lab.training
        precision = training.fast_precision(where) if data.shape[-1] >= _LARGE else "float32"
        return training.recipe_for(data.shape).but(epochs=max(1, self.epochs), precision=precision)

    def _fresh(self, data: DataSplits, where: torch.device) -> inputs.Opened:
        """A newly trained network of the model that was named."""
        from ...lab.networks import fit_to

        spec = self.model or _FRESH
        known = inputs.is_builtin(spec)
        trial = inputs.build_model(fit_to(spec, data.shape, len(data.classes)) if known else spec)
        # refuses what has no gates
        iw.gates.gate_patterns(trial.eval(), data.loader("test", 1).batch(slice(0, 1))[0])
        tell(f"No checkpoint was given: training {spec} on {len(data.train):,} examples of {data.name}.")
        network = spec if known else build_seeded(spec, self.seed)
        path = self.out / "network.safetensors"
        iw.lab.training.train(
            network, data, self._recipe(data, where), seed=self.seed, name=None if known else spec, out=path,
            resume="same", device=where,
        )  # fmt: skip
        return replace(inputs.open_network(inputs.read_checkpoint(path), self.model, data, self), name=spec)

    def _version(
        self, name: str, network: iw.gates.GatedNetwork, base: inputs.Opened, data: DataSplits, where: torch.device
    ) -> dict[str, Any]:
        """Train a gated version in place, or only write it; returns its row of the table."""
        training = iw.lab.training
        title, source, given, *_ = VERSIONS[name]
        path, spec = self.out / f"{name}.safetensors", inputs.card_name(name, network, str(base.facts["model"]), data)
        row: dict[str, Any] = {"network": title, "gates": source, "value network is given": given}
        row["parameters"] = sum(p.numel() for p in network.parameters())
        if not self.epochs:
            card = training.Card(
                architecture=spec, data=data.name, seed=self.seed, mean=data.mean, std=data.std, classes=data.classes,
                shape=data.shape,
            )  # fmt: skip
            training.save_checkpoint(path, network, card)
            return {**row, "test accuracy": None, "epochs": 0}
        tell(f"Training {title}: gates {source}, the value network is given {given}.")
        run = training.train(
            network, data, self._recipe(data, where), seed=self.seed, name=spec, out=path, resume="same", device=where
        )
        network.load_state_dict(run.model.state_dict())
        return {**row, "test accuracy": run.card.metrics["test_accuracy"], "epochs": self.epochs}


def _buildable(networks: list[inputs.Opened], gated: list[str] | None) -> list[str]:
    """The gated versions to build; none if the network is gated itself."""
    names = gated or ["dgn", "dlgn", "dlgn-ones"]
    versions = [name for name in dict.fromkeys(names) if name != "none"]
    if not any(isinstance(network.model, iw.gates.GatedNetwork) for network in networks):
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


def _check_version(name: str, network: iw.gates.GatedNetwork, x: torch.Tensor) -> None:
    try:
        with torch.no_grad():
            network.pre_activations(x)
    except ValueError as error:
        raise ValueError(f"{error} Or leave {name} out of --gated, which names the versions to build.") from None


def _affordable(model: torch.nn.Module, x: torch.Tensor, wanted: int | None) -> tuple[int, list[str]]:
    """The number of examples for path kernels, and a note if that is fewer than usual."""
    if wanted is not None:
        return wanted, []
    cost = iw.gates.neural_path_kernel_cost(model, x[:_EXAMPLES])
    if cost <= _OPERATIONS:
        return _EXAMPLES, []
    count = max(8, int(_EXAMPLES * (_OPERATIONS / cost) ** 0.5))
    note = (
        f"The kernels take {count} examples, since {_EXAMPLES} would need {cost:.0e} operations in this network. "
        "Say --kernel-examples for more."
    )
    return count, [note]


def _features(
    study: iw.gates.GateStudy, base: inputs.Opened, built: dict[str, iw.gates.GatedNetwork], x: torch.Tensor
) -> tuple[str | None, Any]:
    """Name and effective maps of the first network whose gates are linear; nothing without one."""
    from ...report.pages.gates import spread

    linear = {VERSIONS[name][0]: net for name, net in built.items() if name.startswith("dlgn")}
    if isinstance(base.model, iw.gates.GatedNetwork) and base.model.is_linear:
        linear = {base.name: base.model}
    for title, network in linear.items():
        layers = spread([layer.name for layer in study.layers])
        return title, iw.gates.effective_maps(network.cpu(), x, layers, positions="centre")
    return None, None


def _beside(a: inputs.Opened, b: inputs.Opened, x: torch.Tensor, study: iw.gates.GateStudy) -> dict[str, Any]:
    """The agreement of B's gates with A's, and that of untrained networks."""
    from ...similarity.comparison.untrained import Redrawn

    count = int(study.settings["kernel examples"])
    left, right = a.model.cpu(), b.model.cpu()
    found: dict[str, Any] = {"name": b.name, "npk alignment": iw.gates.npk_alignment(left, right, x[:count])}
    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (left, right)]
    if shapes[0] == shapes[1]:
        found |= iw.gates.match_gates(left, right, x).to_dict()
    one, two = (Redrawn(model)(seed) for seed, model in enumerate((left, right)))
    if isinstance(one, str) or isinstance(two, str):
        return found  # its initialisation cannot be repeated
    found["npk alignment untrained"] = iw.gates.npk_alignment(one, two, x[:count])
    if "spaces" in found:
        level = iw.gates.match_gates(one, two, x).to_dict()["spaces"]
        found["spaces"] = [{**s, "untrained": t["agreement"]} for s, t in zip(found["spaces"], level)]
    return found
