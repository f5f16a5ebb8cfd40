"""``intertwine compare`` and ``demo``: two or more checkpoints in, one report out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from ..._untrusted.checkpoints import HF
from .._command import one_thread
from .._options import DataOptions, DeviceOptions, advanced, option
from .._outputs import tell
from . import Study, inputs, iw, torch

_EXAMPLES = (1000, 8192)  # examples (other than text), and tokens of text
_BATCH = (250, 2048)
_FEWEST = 8  # blocks of text, however long they are
_OF_TWO = ("layers_b", "exact")
_DEMO = "digits_cnn"
_SEEDS = (0, 1)
_LOOK_AT = """
Open {page} in a browser. What to look at:
  1. The diagonal of each heat map: does a layer resemble its own counterpart most, although the seeds differ?
  2. The curves: how far does each score lie above chance (dashed) and above untrained networks (dash-dotted)?
     A score means little without these two.
  3. G-ReLU beside orthogonal measures: G-ReLU measures ignore only what a ReLU network can undo, permuted and
     rescaled channels. They tell whether single channels agree, not only the space that the channels span.
Then compare your own networks: intertwine compare --help"""


class Compare(Study, DeviceOptions, DataOptions):
    """Compare two networks, every layer of A with every layer of B, or many networks layer by layer.

    Prints a table and writes results.json, results.parquet and report.html. Model and data may be left out if a card,
    as 'intertwine train' writes it, lies beside the weights.

    Example:
      intertwine compare a.safetensors b.safetensors --model resnet20 --data cifar10:PATH
      intertwine compare a.pt b.pt --model mypackage.models:make_net --data images:photos --out comparison
      intertwine compare small.safetensors large.safetensors --measures g_relu_cka,linear_cka
      intertwine compare runs/*.safetensors --model resnet20 --data cifar10:PATH --workers 4
    """

    python = 'iw.compare(a, b, loader); iw.compare_many({"a": a, "b": b, "c": c}, loader)'

    checkpoints: list[Path]
    model_b: str | None = None
    split: str = "test"
    examples: int | None = option(
        "Use at most this many examples of the split. Default: 1000, or blocks of text with 8192 tokens.", min=4
    )
    layers: list[str] | None = option(
        "Layers of both networks, joined by commas; '*' matches any text. Default: nonlinearities and "
        "ends of residual blocks."
    )
    layers_b: list[str] | None = None
    measures: list[str] | None = option(
        "Measures, joined by commas. Default: those that fit the networks. A wrong name lists all of them."
    )
    null: int = advanced("Shuffles for chance levels; 0 for none.", 20, min=0)
    untrained: int = advanced(
        "Untrained copies of A and of B (of many networks: of each architecture) as a baseline; 0 for none.",
        3,
        min=0,
    )
    bootstrap: int = advanced("Random halves for confidence intervals; 0 for none.", 20, min=0)
    batch_size: int | None = advanced(
        "Examples run through the networks at once. Default: 250, or 2048 tokens of text.", min=1
    )
    exact: bool = advanced("Use all pairs of examples and all positions, however long it takes.", False)
    memory: str | None = advanced("Memory to use, such as 4GB. Default: half of what is free.")
    workers: int | None = advanced("For many networks: processes that score pairs. Default: none.", min=1)
    ray: str | None = advanced("For many: Ray scores pairs: local, auto, or HOST:PORT of a cluster.", metavar="ADDRESS")
    out: Path = Path("comparison")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.checkpoints) == 2 and (self.workers or self.ray):
            raise ValueError("--workers and --ray must go with three checkpoints or more. Got 2.")
        given = [f"--{name.replace('_', '-')}" for name in _OF_TWO if getattr(self, name)]
        if given and len(self.checkpoints) > 2:
            raise ValueError(f"{' and '.join(given)} must go with two checkpoints. Got {len(self.checkpoints)}.")

    def find(self) -> iw.Comparison | iw.ComparisonSet:
        chosen = [iw.similarity.measure(name) for name in self.measures or ()] or None
        paths = _in_order(self.checkpoints) if len(self.checkpoints) > 2 else self.checkpoints
        group = inputs.open_group(paths, self, "always")
        splits, networks, facts = group.need_data(), group.networks, group.facts(self.split)
        examples, batch_size = self.examples or _size(_EXAMPLES, splits), self.batch_size or _size(_BATCH, splits)
        loader, notes = inputs.batches(splits, self.split, examples, batch_size, networks)
        wanted = [self.layers, self.layers_b or self.layers]
        for network, layers in zip(networks, [*wanted, *wanted[1:] * (len(networks) - 2)]):
            with iw.features.tap(network.model, layers) as tapped:  # wrong names are refused before long work
                tapped.prepare(loader.batch(slice(0, 2)))
        found: iw.Comparison | iw.ComparisonSet
        drawn = iw.similarity.Resampling(self.null, self.bootstrap, self._fresh(networks, splits), self.seed)
        if len(networks) > 2:  # statistics stay in the folder, so that a stopped run can resume
            work = None
            if self.workers or self.ray:
                work = iw.lab.tiles.by_jobs(self.out, iw.lab.runs.choose_executor(self.workers, ray=self.ray))
            found = iw.compare_many(
                dict(zip(group.names, group.models)), loader, self.layers, chosen or iw.similarity.MANY,
                folder=self.out / "statistics", work=work, resampling=drawn, progress=True,
            )  # fmt: skip
        else:
            one, other = group.models
            found = iw.compare(
                one, other, loader, layers=wanted[0], layers_b=wanted[1], measures=chosen, resampling=drawn,
                progress=True, exact=True if self.exact else None,
                reading=iw.features.Reading(memory=self.memory),
            )  # fmt: skip
            a, b = facts["networks"]
            facts = {"network_a": a, "network_b": b, "data": facts["data"]}
        settings = {**found.settings, **facts, "command": self.line}
        return replace(found, settings=settings, notes=(*notes, *found.notes))

    def _fresh(
        self, networks: Sequence[inputs.Opened], splits: iw.lab.data.DataSplits
    ) -> tuple[list[torch.nn.Module], list[torch.nn.Module]] | int:
        """Untrained networks, built as the command's are; or their number, where the library must build them itself."""
        from ...lab.networks import fit_to
        from ...similarity.comparison.untrained import Redrawn, architecture, makers

        asked = iw.similarity.Resampling(null=self.null, bootstrap=0, untrained=self.untrained, seed=self.seed)
        built = list[list[torch.nn.Module]]()
        apart = self.layers_b not in (None, self.layers)  # networks of one architecture, compared at other layers
        kinds = [(architecture(network.model), k if apart else 0) for k, network in enumerate(networks)]
        for k, kind in enumerate(dict.fromkeys(kinds)):
            network = networks[kinds.index(kind)]
            spec = network.facts["model"]
            if spec.startswith(HF):  # its configuration names its class
                return self.untrained
            fitted = [fit_to(spec, splits.shape, len(splits.classes))] if inputs.is_builtin(spec) else []
            draw = Redrawn(network.model, [partial(inputs.build_model, one) for one in [*fitted, spec]])
            drawn = [make() for make in makers("", draw, asked, k, kinds.count(kind) > 1)]
            built.append([one for one in drawn if isinstance(one, torch.nn.Module)])
            if not drawn or len(built[-1]) < len(drawn):
                return self.untrained
        every = [one for some in built for one in some]
        return (every, every) if len(networks) > 2 else (built[0], built[-1])


class Demo(Study):
    """Train two small ReLU networks on handwritten digits, compare them and write a report.

    Needs no download, since scikit-learn includes the digits. Takes about a minute.

    Example:
      intertwine demo --out demo
    """

    python = 'iw.compare(a, b, loader).to_html("report.html")'
    writes = tuple(f"seed{seed}{end}" for seed in _SEEDS for end in (".safetensors", ".json"))

    out: Path = option("Folder for checkpoints, results and report.html.", Path("demo"), metavar="DIR")

    def find(self) -> iw.Comparison | iw.ComparisonSet:
        one_thread()
        count = len(iw.lab.data.load("digits").train)
        tell(f"Training two networks ({_DEMO}) that differ only in their seeds, on {count:,} digits.")
        paths = [self.out / f"seed{seed}.safetensors" for seed in _SEEDS]
        for seed, path in zip(_SEEDS, paths):
            iw.lab.training.train(_DEMO, "digits", "digits", seed=seed, out=path, resume="same", device="cpu")
        asked: dict[str, Any] = {"checkpoints": paths, "data": "digits", "device": "cpu", "out": self.out}
        return Compare(**asked, line=self.line).find()

    def words(self, found: iw.Comparison) -> str:
        return f"{found.summary()}\n{_LOOK_AT.format(page=self.out / 'report.html')}"


def _in_order(paths: Sequence[Path]) -> list[Path]:
    """Checkpoints sorted by number where their names differ in one number only; a shell's ``step-*`` sorts as text."""
    split = [re.split(r"(\d+(?:\.\d+)?)", str(path)) for path in paths]
    differ = {k for one in split for k, (x, y) in enumerate(zip(one, split[0])) if x != y}
    if len({len(one) for one in split}) > 1 or len(differ) != 1 or (at := differ.pop()) % 2 == 0:
        return list(paths)
    return [path for _, path in sorted(zip(split, paths), key=lambda pair: float(pair[0][at]))]


def _size(sizes: tuple[int, int], splits: iw.lab.data.DataSplits) -> int:
    """How many examples: of text so many that their tokens, each of which is a row of features, are few enough."""
    images, tokens = sizes
    return images if splits.mean else max(_FEWEST, min(images, tokens // prod(splits.shape)))
