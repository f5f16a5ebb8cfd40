"""The state of a training run, on disk, so that it can be killed at any moment."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._io import write_atomically
from ..._io.scratch import sweep
from ..._untrusted.weights import check_weights_file
from ...errors import CheckpointError


@dataclass
class TrainingState:
    """All that the rest of k runs depends on.

    Random numbers are drawn from generators that are seeded anew for every epoch and step, so the number of finished
    steps stands for their state.
    """

    settings: dict[str, Any]  # What is being trained, with what, with the first seed; runs only resume their own state
    seeds: list[int]  # One for each network
    engine: str = "in turn"  # Name of the engine
    step: int = 0  # Finished steps
    seconds: float = 0.0  # Time spent so far
    # Weights, buffers and optimizers of the engine; empty before the first save
    snapshot: dict[str, Any] = field(default_factory=dict)
    # For each network the sum of the losses of this epoch's finished steps
    loss_sums: list[float] = field(default_factory=list)
    # State dict of each network's best epoch so far; empty before the first epoch ends
    best: list[dict[str, Tensor]] = field(default_factory=list)
    best_epochs: list[int] = field(default_factory=list)  # Their numbers, from 1; 0 before
    # For each network one entry for each finished epoch: epoch, loss, validation accuracy, learning rate
    history: list[list[dict[str, float]]] = field(default_factory=list)
    diverged: list[bool] = field(default_factory=list)  # Whether a network's loss or weights are no numbers any more

    def __post_init__(self) -> None:
        """Begin what is not given."""
        k = len(self.seeds)
        self.loss_sums, self.best_epochs = self.loss_sums or [0.0] * k, self.best_epochs or [0] * k
        self.best, self.history = self.best or [{} for _ in range(k)], self.history or [[] for _ in range(k)]
        self.diverged = self.diverged or [False] * k

    def best_of(self, i: int) -> dict[str, float]:
        """The entry of network ``i``'s best epoch, of which there must be one."""
        return self.history[i][self.best_epochs[i] - 1]


def state_path(path: str | Path) -> Path:
    """Where the state of the run that will write ``path`` lies."""
    return Path(path).with_suffix(".training.pt")


def write_state(path: str | Path, state: TrainingState) -> None:
    """Write a state atomically, as a file that reads with ``weights_only=True``."""
    contents = {f.name: getattr(state, f.name) for f in fields(state)}
    write_atomically(path, lambda temporary: torch.save(contents, temporary))


def load_state(path: Path) -> TrainingState:
    """Read what ``write_state`` wrote."""
    try:
        state = TrainingState(**torch.load(check_weights_file(path), map_location="cpu", weights_only=True))
    except Exception as error:  # torch.load raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"training state must be a file that train() or train_many() wrote. Got {str(path)!r}, which does not read "
            f"({reason}). Remove it to start over."
        ) from None
    return state


def discard_state(path: str | Path) -> None:
    """Remove the state, and what kills in the middle of a write left beside it."""
    path = Path(path)
    path.unlink(missing_ok=True)
    sweep(path.parent)


def same_run(written: dict[str, Any], settings: dict[str, Any], start: bool) -> bool:
    """Whether settings are of one run; with ``start`` only if it began with the same weights too."""
    differing = {key for key in {**written, **settings} if written.get(key) != settings.get(key)}
    return not differing or (not start and differing == {"start"})


def check_same_run(path: Path, state: TrainingState, settings: dict[str, Any], start: bool = False) -> None:
    """Check that a state is of the run that is about to go on, whose settings are given.

    With ``start`` the initial weights must be the same too.

    Raises:
        CheckpointError: If it is of another one.
    """
    if not same_run(state.settings, settings, start):
        changed = [
            f"{key}: {state.settings.get(key)!r}, now {settings.get(key)!r}"
            for key in {**state.settings, **settings}
            if state.settings.get(key) != settings.get(key)
        ]
        raise CheckpointError(
            f"training state must be of the same run. Got {str(path)!r} with other settings ({'; '.join(changed)}). "
            "Remove it to start over, or choose another output path."
        )
