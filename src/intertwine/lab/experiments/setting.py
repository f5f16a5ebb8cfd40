"""Setting of an experiment: how big it is, on which data, and where it may work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..data import load
from ..networks import fit_to
from ..training import RECIPES, Recipe, fast_precision

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
        """One of three values.

        Examples:
            >>> Setting("small").by_scale(1, 2, 3)
            2
        """
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def fitted(self, *networks: str) -> str:
        """The network of this scale, fitted to the data (their shape is looked up, where it is not known by name)."""
        network = self.by_scale(*networks) if len(networks) > 1 else networks[0]
        if self.data_name in SHAPES:
            return fit_to(network, *SHAPES[self.data_name])
        data = load(self.data_spec)
        return fit_to(network, data.shape, len(data.classes))

    def recipe(self, network: str = "", **changes: Any) -> Recipe:
        """How experiments train their networks, unless they are about training.

        Args:
            network: Its name; deep ones need more epochs, and only need to be there at the scale ``smoke``.
            changes: Further settings at every scale.

        Returns:
            A few epochs on digits; at the scale ``small`` a few with one cycle of a large rate, in mixed precision
            where that is fast; the first paper's own.
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
