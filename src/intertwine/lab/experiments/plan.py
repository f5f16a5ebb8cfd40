"""Setting and plan of an experiment: networks to train and jobs that use them; making a plan runs nothing."""

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
    """How large an experiment is, on which data, and where it works.

    Args:
        scale: ``smoke`` takes seconds on digits, ``small`` CPU hours on CIFAR-10, ``paper`` has the papers' sizes.
        folder: Holds networks, finished jobs and values, so that a killed experiment resumes.
        data: Labelled images, named as for ``lab.data.load``; not used at smoke scale, which has digits.
        seed: Seed of everything random.
        device: ``auto``, ``cpu``, ``cuda`` ...
        workers: Number of processes; one for each core if ``None``; with 0, jobs run in this process.
        progress: Whether to show progress.
        concepts: Images with labelled pixels, named as for ``lab.data.load_concepts``; generated at smoke scale.
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
        """Name of the data, without its path."""
        return self.data_spec.partition(":")[0]

    @property
    def digits(self) -> bool:
        """Whether the data are digits, which are neither shifted, mirrored nor cropped."""
        return self.data_name == "digits"

    def by_scale(self, smoke: Any, small: Any, paper: Any) -> Any:
        """One of three values: ``Setting("small").by_scale(1, 2, 3)`` is 2."""
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def fitted(self, *networks: str) -> str:
        """The network of this scale, fitted to the data, which are loaded unless their shape is known by name."""
        network = self.by_scale(*networks) if len(networks) > 1 else networks[0]
        if self.data_name in SHAPES:
            return fit_to(network, *SHAPES[self.data_name])
        data = load(self.data_spec)
        return fit_to(network, data.shape, len(data.classes))

    def recipe(self, network: str = "", **changes: Any) -> Recipe:
        """Training recipe of experiments that are not about training; ``changes`` apply at every scale.

        A few epochs on digits; at scale ``small`` a few with one cycle of a large rate, in mixed precision where that
        is fast; at scale ``paper`` the first paper's. Deep networks train longer, but at smoke scale only briefly.
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

    path: Path  # Path of its checkpoint
    name: str  # Its seed, as text


Pairs = list[tuple[PlannedMember, PlannedMember]]


@dataclass(frozen=True)
class PlannedZoo:
    """Networks of one architecture that differ in their seeds."""

    arm: str  # Their name in the table of values
    network: str  # Text for ``networks.build``, fitted to the data
    data: str  # As ``lab.data.load`` takes it
    recipe: Recipe  # How they are trained
    seeds: tuple[int, ...]  # One for each network
    folder: Path  # Of checkpoints: named by architecture, data and recipe, so that experiments share networks
    examples: int | None = None  # Training examples; all of them if ``None``

    @property
    def members(self) -> list[PlannedMember]:
        """The networks, by seed."""
        return [PlannedMember(member_path(self.folder, seed), f"{seed}") for seed in self.seeds]

    @property
    def words(self) -> str:
        """Description of the networks and of their training."""
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
    """A job, whose ``run`` returns rows (dictionaries of ``COLUMNS``), and the columns that all its rows share."""

    job: Job
    columns: dict[str, str]  # ``arm``, ``network``, ``partner``


@dataclass
class Design:
    """Plan of an experiment: everything that it would do."""

    setting: Setting
    zoos: list[PlannedZoo] = field(default_factory=list)  # Trained first; their test accuracies are values too
    tasks: list[PlannedJob] = field(default_factory=list)  # Jobs, most of them on these networks
    notes: list[str] = field(default_factory=list)  # What a reader must know

    def zoo(
        self, arm: str, network: str, count: int, recipe: Recipe | None = None, *, first: int = 0,
        examples: int | None = None,
    ) -> PlannedZoo:  # fmt: skip
        """A zoo of ``count`` networks with seeds ``setting.seed + first, ...``, named ``arm`` in the table of values.

        ``network`` is text for ``networks.build`` and is fitted to the data. The recipe is ``setting.recipe(network)``
        unless given. ``examples`` is the number of training examples: all of them if ``None``.
        """
        s = self.setting
        network, recipe, start = s.fitted(network), recipe or s.recipe(network), s.seed + first
        seeds, other = tuple(range(start, start + count)), {"float32": "bfloat16"}.get(recipe.precision, "float32")
        here, there = (PlannedZoo(arm, network, s.data_spec, one, seeds, self._folder(network, one, examples, seeds),
                                  examples) for one in (recipe, recipe.but(precision=other)))  # fmt: skip
        # At small scale precision is what is fast: networks that another machine trained are not trained again.
        trained = lambda zoo: all(m.path.exists() for m in zoo.members)
        made = there if s.scale == "small" and trained(there) and not trained(here) else here
        self.zoos.append(made)
        return made

    def _folder(self, network: str, recipe: Recipe, examples: int | None, seeds: tuple[int, ...]) -> Path:
        """Folder of a zoo, named by all that its networks depend on."""
        s = self.setting
        settings = json.dumps([recipe.to_dict(), examples], sort_keys=True).encode()
        digest = hashlib.blake2b(settings, digest_size=4).hexdigest()
        name = "-".join([network.replace(":", "-").replace(",", "-").replace("=", ""), s.data_name, digest])
        # Which networks are trained together changes their last bits. At smoke scale, where bits are compared, a zoo
        # is always trained by itself, whatever other experiments train.
        return s.folder / "zoos" / (name + (f"-{seeds[0]}-{len(seeds)}" if s.scale == "smoke" else ""))

    def add(self, job: Job, arm: str = "", network: object = "", partner: object = "") -> None:
        """Add a job, with the arm, network and partner that its values belong to."""
        self.tasks.append(PlannedJob(job, {"arm": arm, "network": str(network), "partner": str(partner)}))

    def pair(
        self, kind: type[PairJob], pair: tuple[PlannedMember, PlannedMember], arm: str = "", **settings: Any
    ) -> None:
        """Add a job on an ordered pair of networks."""
        a, b = pair
        s = self.setting
        job = kind(a=a.path.as_posix(), b=b.path.as_posix(), data=s.data_spec, device=s.device, **settings)
        self.add(job, arm, a.name, b.name)

    def baseline(self) -> None:
        """Add the floor of statements about accuracy: logistic regression on pixels, and chance."""
        self.add(BaselineJob(data=self.setting.data_spec), BASELINE)

    def note(self, *lines: str) -> None:
        """Add what a reader must know."""
        self.notes += lines


class MeasuredJob(Job):
    """A job of an experiment: its values, by their fingerprint, decide if a result is still valid, not its code."""

    code: ClassVar[str] = ""


class DataJob(MeasuredJob):
    """A job that runs networks on data; such jobs share a GPU."""

    gpus: ClassVar[float] = 1 / 16

    data: str  # As ``lab.data.load`` takes it
    device: str = "auto"  # Device of the networks


class ZooJob(DataJob):
    """Training of one architecture from several seeds; networks that exist already are left alone."""

    network: str  # Text for ``networks.build``
    recipe: dict[str, Any]  # Settings of the training recipe
    seeds: tuple[int, ...]  # One for each network
    folder: str  # Folder of their checkpoints
    examples: int | None = None  # Training examples; all of them if ``None``

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows of each trained network: accuracy on the test images, and training loss of its best epoch."""
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
    """A job on two networks."""

    a: str  # Checkpoint of network A
    b: str  # Checkpoint of network B

    @property
    def label(self) -> str:
        """Names of the two networks."""
        return " and ".join(f"{Path(path).parent.name[:24]}/{Path(path).stem}" for path in (self.a, self.b))

    def networks(self) -> tuple[Any, Any]:
        """Both networks on the job's device; on a CPU in the memory layout that makes convolutions fast."""
        device = choose_device(self.device)
        layout = torch.channels_last if device.type == "cpu" else torch.preserve_format
        a, b = (load_checkpoint(path).to(device, memory_format=layout) for path in (self.a, self.b))  # type: ignore[call-overload]
        return a, b


class BaselineJob(MeasuredJob):
    """The trivial baseline of a data set: chance, and logistic regression on normalised pixels (L2, C = 1e-2)."""

    data: str  # As ``lab.data.load`` takes it

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows of accuracies on the test images, after a fit to at most 20,000 training images."""
        data = load(self.data).first(_FEW)
        truth = data.test.labels
        reached = {"logistic regression": float(logistic_regression(data, 100).mean()),
                   "chance": truth.bincount().max().item() / len(truth)}  # fmt: skip
        return [row("accuracy", share, layer=name, images=len(truth)) for name, share in reached.items()]


def logistic_regression(data: DataSplits, iterations: int) -> NDArray[np.bool_]:
    """Whether logistic regression on pixels (L2, C = 1e-2) is right about each test image."""
    from sklearn.linear_model import LogisticRegression

    (x, y), (new, truth) = (data.loader(split).batch(slice(None)) for split in ("train", "test"))
    fitted = LogisticRegression(C=1e-2, max_iter=iterations).fit(x.flatten(1).numpy(), y.numpy())
    return fitted.predict(new.flatten(1).numpy()) == truth.numpy()


def row(statistic: str, value: float | None, **where: Any) -> dict[str, Any]:
    """A row of the table of values: a number, and any other of its ``COLUMNS``."""
    return {"statistic": statistic, "value": value, **where}


def cyclic_pairs(zoo: PlannedZoo) -> Pairs:
    """Each network with the next one, the last with the first: the fewest pairs that use all equally often."""
    members, n = zoo.members, len(zoo.seeds)
    return [(members[k], members[(k + 1) % n]) for k in range(n)] if n > 1 else []


def unordered_pairs(zoo: PlannedZoo) -> Pairs:
    """Every pair of distinct networks once, for measures that do not depend on their order."""
    return list(itertools.combinations(zoo.members, 2))


@cache
def activations_of(network: str) -> tuple[str, ...]:
    """Names of a built-in network's activations, in order."""
    return tuple(n for n, _ in build(network).named_modules() if n.rpartition(".")[2].startswith("relu"))


def accuracy_rows(model: nn.Module, data: DataSplits) -> list[dict[str, Any]]:
    """Rows of accuracy and loss on equal blocks of test images, so that arms are compared on the same images."""
    rows, device = list[dict[str, Any]](), next(model.parameters()).device
    for number, part in blocks(len(data.test)):
        found = evaluate(model, Batches(data.test.take(part).to(device), data.mean, data.std))
        rows.append(row("accuracy", found.accuracy, images=part.stop - part.start, block=number))
        rows.append(row("loss", found.loss, block=number))
    return rows


def blocks(images: int) -> list[tuple[int, slice]]:
    """Blocks of test images of equal size, with their numbers; a single block has number -1."""
    count = next(k for k in range(_BLOCKS, 0, -1) if images % k == 0)
    size = images // count
    return [(k if count > 1 else -1, slice(k * size, (k + 1) * size)) for k in range(count)]
