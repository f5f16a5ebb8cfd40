"""Setting of an experiment, and its plan: networks to train and jobs on them; nothing is done when it is made."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...features.evaluate import evaluate
from ..data import Batches, DataSplits, load
from ..networks import build, fit_to
from ..runs import Job
from ..training import (
    RECIPES,
    Recipe,
    choose_device,
    fast_precision,
    load_checkpoint,
    member_path,
    read_card,
    train_many,
)

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
SHAPES = {"digits": ((1, 8, 8), 10), "cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 100)}
_DEEP = ("resnet", "vgg")


@dataclass(frozen=True)
class Setting:
    """How big an experiment is and where it may work.

    Args:
        scale: ``smoke`` is seconds on digits, ``small`` hours of a CPU on CIFAR-10, ``paper`` the papers' sizes.
        folder: Holds networks, finished jobs and values, so that the same experiment goes on after a kill.
        data: Images with labels, as ``lab.data.load`` takes them; not used at smoke scale, which has digits.
        seed: Of everything random.
        device: ``auto``, ``cpu``, ``cuda`` ...
        workers: Processes; one for each core if ``None``, and at 0 jobs run in this process.
        progress: Whether to show progress.
        concepts: Images with labelled pixels, as ``lab.data.load_concepts`` takes them; generated at smoke scale.
    """

    scale: Scale = "smoke"
    folder: Path = field(default_factory=lambda: Path("reproduction"))
    data: str = "cifar10"
    seed: int = 0
    device: str = "auto"
    workers: int | None = 0
    progress: bool = False
    concepts: str = "generated"

    @property
    def data_spec(self) -> str:
        """``digits`` at smoke scale, otherwise ``data``."""
        return "digits" if self.scale == "smoke" else self.data

    @property
    def data_name(self) -> str:
        """The data without the place where they lie."""
        return self.data_spec.partition(":")[0]

    @property
    def digits(self) -> bool:
        """Whether it works on digits, which are neither moved, mirrored nor cropped."""
        return self.data_name == "digits"

    def by_scale(self, smoke: Any, small: Any, paper: Any) -> Any:
        """One of three values: ``Setting("small").by_scale(1, 2, 3)`` is 2."""
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def fitted(self, *networks: str) -> str:
        """The network of this scale, fitted to the data (their shape is looked up, where it is not known by name)."""
        network = self.by_scale(*networks) if len(networks) > 1 else networks[0]
        if self.data_name in SHAPES:
            return fit_to(network, *SHAPES[self.data_name])
        data = load(self.data_spec)
        return fit_to(network, data.shape, len(data.classes))

    def recipe(self, network: str = "", **changes: Any) -> Recipe:
        """How experiments train their networks, unless they are about training; with ``changes`` at every scale.

        A few epochs on digits; at the scale ``small`` a few with one cycle of a large rate, in mixed precision where
        that is fast; the first paper's own. Deep networks need more, and only need to be there at smoke scale.
        """
        deep = network.startswith(_DEEP)
        if self.digits:
            chosen = RECIPES["digits"].but(epochs=self.by_scale(2 if deep else 10, 20, 20), batch_size=64)
        elif self.scale == "paper":
            chosen = RECIPES["paper"]
        else:
            cycle: dict[str, Any] = {"schedule": "cyclic", "warmup": 1, "learning_rate": 1e-2, "batch_size": 128}
            chosen = RECIPES["paper"].but(epochs=6 if deep else 4, precision=fast_precision(self.device), **cycle)
        return chosen.but(**changes)


BASELINE = "trivial baseline"
_BLOCKS = 20  # of test images, at most
_FEW = 20_000  # training images of the trivial baseline


class PlannedMember(NamedTuple):
    """A network of a zoo, trained or not yet."""

    path: Path  # Of its checkpoint
    name: str  # By its seed


Pairs = list[tuple[PlannedMember, PlannedMember]]


@dataclass(frozen=True)
class PlannedZoo:
    """Networks of one architecture that differ in their seeds."""

    arm: str  # What they are called in the table of values
    network: str  # Text for ``networks.build``, fitted to the data
    data: str  # As ``lab.data.load`` takes it
    recipe: Recipe  # How they are trained
    seeds: tuple[int, ...]  # One for each
    folder: Path  # Where they lie: named by architecture, data and recipe, so that experiments share them
    examples: int | None = None  # For training; all of them if ``None``

    @property
    def members(self) -> list[PlannedMember]:
        """The networks, by seed."""
        return [PlannedMember(member_path(self.folder, seed), f"{seed}") for seed in self.seeds]

    @property
    def words(self) -> str:
        """What they are and how they are trained."""
        length = f"{self.recipe.iterations:,} iterations" if self.recipe.iterations else f"{self.recipe.epochs} epochs"
        data = self.data.partition(":")[0] + (f" ({self.examples:,} images)" if self.examples else "")
        return f"{len(self.seeds)} {self.network}, {length} of {data} in batches of {self.recipe.batch_size}"

    def job(self, device: str) -> ZooJob:
        """The job that trains them."""
        return ZooJob(
            network=self.network, data=self.data, recipe=self.recipe.to_dict(), seeds=self.seeds,
            folder=self.folder.as_posix(), examples=self.examples, device=device,
        )  # fmt: skip


class PlannedJob(NamedTuple):
    """A job, whose ``run`` returns rows (dictionaries of ``COLUMNS``), and the columns that these have in common."""

    job: Job
    columns: dict[str, str]  # ``arm``, ``network``, ``partner``


@dataclass
class Design:
    """All that an experiment would do."""

    setting: Setting
    zoos: list[PlannedZoo] = field(default_factory=list)  # To train first; their test accuracies are values too
    tasks: list[PlannedJob] = field(default_factory=list)  # Most of them on these networks
    notes: list[str] = field(default_factory=list)  # What a reader must know

    def zoo(
        self, arm: str, network: str, count: int, recipe: Recipe | None = None, *, first: int = 0,
        examples: int | None = None,
    ) -> PlannedZoo:  # fmt: skip
        """So many networks from the seeds ``setting.seed + first, ...``, under the name ``arm`` in the table.

        ``network`` is text for ``networks.build`` and is fitted to the data; the recipe is ``setting.recipe(network)``
        unless given, and so many training ``examples`` are used: all of them if ``None``.
        """
        s = self.setting
        network, recipe = s.fitted(network), recipe or s.recipe(network)
        settings = json.dumps([recipe.to_dict(), examples], sort_keys=True).encode()
        digest = hashlib.blake2b(settings, digest_size=4).hexdigest()
        name = "-".join([network.replace(":", "-").replace(",", "-").replace("=", ""), s.data_name, digest])
        start = s.seed + first
        # Which networks are trained at once changes their last bits. At smoke scale, where bits are compared, these
        # are those of one zoo, whatever other experiments train beside them.
        name += f"-{start}-{count}" if s.scale == "smoke" else ""
        seeds, folder = tuple(range(start, start + count)), s.folder / "zoos" / name
        made = PlannedZoo(arm, network, s.data_spec, recipe, seeds, folder, examples)
        self.zoos.append(made)
        return made

    def add(self, job: Job, arm: str = "", network: object = "", partner: object = "") -> None:
        """A job, with what its values are of."""
        self.tasks.append(PlannedJob(job, {"arm": arm, "network": str(network), "partner": str(partner)}))

    def pair(
        self, kind: type[PairJob], pair: tuple[PlannedMember, PlannedMember], arm: str = "", **settings: Any
    ) -> None:
        """A job on an ordered pair of networks."""
        a, b = pair
        s = self.setting
        job = kind(a=a.path.as_posix(), b=b.path.as_posix(), data=s.data_spec, device=s.device, **settings)
        self.add(job, arm, a.name, b.name)

    def baseline(self) -> None:
        """What logistic regression on pixels reaches on the data, and chance: the floor of statements on accuracy."""
        self.add(BaselineJob(data=self.setting.data_spec), BASELINE)

    def note(self, *lines: str) -> None:
        """What a reader must know."""
        self.notes += lines


class MeasuredJob(Job):
    """A job of an experiment: whether its result holds is seen by what it gives, not by its code."""

    code: ClassVar[str] = ""


class DataJob(MeasuredJob):
    """One that runs networks on data: it shares a GPU."""

    gpus: ClassVar[float] = 1 / 16

    data: str  # As ``lab.data.load`` takes it
    device: str = "auto"  # Where


class ZooJob(DataJob):
    """Networks of one architecture, trained from several seeds; those that are there are left alone."""

    network: str  # Text for ``networks.build``
    recipe: dict[str, Any]  # Settings
    seeds: tuple[int, ...]  # One for each network
    folder: str  # Where their checkpoints lie
    examples: int | None = None  # Training examples; all of them if ``None``

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Train. For each network its accuracy on the test images, and the training loss of its best epoch."""
        data = load(self.data).first(self.examples)
        made = train_many(
            self.network, data, Recipe(**self.recipe), seeds=self.seeds, out=self.folder, device=self.device,
            progress=False,
        )  # fmt: skip
        if made.diverged:
            raise RuntimeError(f"networks must train. Got seeds {made.diverged} of {self.network} that diverged.")
        rows = []
        for path, seed in zip(made.paths, self.seeds):
            if card := read_card(path):
                of = {"network": f"{seed}"}
                rows.append(row("accuracy", card.metrics["test_accuracy"], images=len(data.test), **of))
                rows.append(row("loss", card.metrics["training_loss"], **of))
        return rows


class PairJob(DataJob):
    """What is done with two networks."""

    a: str  # Checkpoint of network A
    b: str  # Checkpoint of network B

    @property
    def label(self) -> str:
        """The two networks."""
        return " and ".join(f"{Path(path).parent.name[:24]}/{Path(path).stem}" for path in (self.a, self.b))

    def networks(self) -> tuple[Any, Any]:
        """Both, on their device; on a CPU in the layout in which convolutions are fast."""
        device = choose_device(self.device)
        layout = torch.channels_last if device.type == "cpu" else torch.preserve_format
        a, b = (load_checkpoint(path).to(device, memory_format=layout) for path in (self.a, self.b))  # type: ignore[call-overload]
        return a, b


class BaselineJob(MeasuredJob):
    """The trivial baseline of a data set: logistic regression on normalised pixels (L2, strength 1e-2), and chance."""

    data: str  # As ``lab.data.load`` takes it

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Fit to at most 20,000 training images. Accuracies on the test images."""
        data = load(self.data).first(_FEW)
        truth = data.test.labels
        reached = {"logistic regression": float(logistic_regression(data, 100).mean()),
                   "chance": truth.bincount().max().item() / len(truth)}  # fmt: skip
        return [row("accuracy", share, layer=name, images=len(truth)) for name, share in reached.items()]


def logistic_regression(data: DataSplits, iterations: int) -> NDArray[np.bool_]:
    """Of which test images logistic regression on pixels (L2, strength 1e-2) is right."""
    from sklearn.linear_model import LogisticRegression

    (x, y), (new, truth) = (data.loader(split).batch(slice(None)) for split in ("train", "test"))
    fitted = LogisticRegression(C=1e-2, max_iter=iterations).fit(x.flatten(1).numpy(), y.numpy())
    return fitted.predict(new.flatten(1).numpy()) == truth.numpy()


def row(statistic: str, value: float | None, **where: Any) -> dict[str, Any]:
    """A row of the table of values: a number, and what else is known of it (see ``COLUMNS``)."""
    return {"statistic": statistic, "value": value, **where}


def cyclic_pairs(zoo: PlannedZoo) -> Pairs:
    """Each network with the next one, the last with the first: the fewest pairs that hold all equally often."""
    members, n = zoo.members, len(zoo.seeds)
    return [(members[k], members[(k + 1) % n]) for k in range(n)] if n > 1 else []


def unordered_pairs(zoo: PlannedZoo) -> Pairs:
    """Every pair of distinct networks once, for what does not depend on their order."""
    return list(itertools.combinations(zoo.members, 2))


@cache
def activations_of(network: str) -> tuple[str, ...]:
    """Names of a built-in network's activations, in order."""
    return tuple(n for n, _ in build(network).named_modules() if n.rpartition(".")[2].startswith("relu"))


def accuracy_rows(model: nn.Module, data: DataSplits) -> list[dict[str, Any]]:
    """Accuracy and loss on the test images, in blocks of equal size: arms are compared on the same images."""
    rows, device = list[dict[str, Any]](), next(model.parameters()).device
    for number, part in blocks(len(data.test)):
        found = evaluate(model, Batches(data.test.take(part).to(device), data.mean, data.std))
        rows.append(row("accuracy", found.accuracy, images=part.stop - part.start, block=number))
        rows.append(row("loss", found.loss, block=number))
    return rows


def blocks(images: int) -> list[tuple[int, slice]]:
    """Blocks of test images, of equal size, by number; -1 where there is a single one."""
    count = next(k for k in range(_BLOCKS, 0, -1) if images % k == 0)
    size = images // count
    return [(k if count > 1 else -1, slice(k * size, (k + 1) * size)) for k in range(count)]
