"""The state of a training run, on disk, so that it can be killed at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._io import write_atomically
from ..._scratch import sweep
from ..._untrusted.weights import check_weights_file
from ...errors import CheckpointError
from .recipe import with_defaults

__all__ = ["TrainingState", "discard_state", "load_state", "read_state", "same_run", "state_path", "write_state"]

S = TypeVar("S")


@dataclass
class TrainingState:
    """All that the rest of a run depends on.

    Random numbers are drawn from generators that are seeded anew for every epoch and step, so the number of finished
    steps stands for their state.

    Args:
        settings: What is being trained, with what; a run only resumes its own state.
        step: Finished steps.
        model: State dict.
        optimizer: State dict of the optimizer.
        best: State dict of the best epoch so far; empty before the first epoch ends.
        best_epoch: Its number, from 1; 0 before.
        loss_sum: Sum of the losses of this epoch's finished steps.
        seconds: Time spent so far.
        history: One entry for each finished epoch: epoch, loss, validation accuracy, learning rate.
    """

    settings: dict[str, Any]
    step: int = 0
    model: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def state_path(path: str | Path) -> Path:
    """Where the state of the run that will write ``path`` lies."""
    return Path(path).with_suffix(".training.pt")


def write_state(path: str | Path, state: Any) -> None:
    """Write the fields of a state atomically, as a file that reads with ``weights_only=True``."""
    contents = {f.name: getattr(state, f.name) for f in fields(state)}
    write_atomically(path, lambda temporary: torch.save(contents, temporary))


def load_state(path: Path, kind: type[S], writer: str, cure: str) -> S:
    """Read what ``write_state`` wrote.

    Raises:
        CheckpointError: If it does not read.
    """
    try:
        return kind(**torch.load(check_weights_file(path), map_location="cpu", weights_only=True))
    except Exception as error:  # torch.load raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"training state must be a file that {writer}() wrote. Got {str(path)!r}, which does not read ({reason}). "
            f"Remove it {cure}."
        ) from None


def discard_state(path: str | Path) -> None:
    """Remove the state, and what kills in the middle of a write left beside it."""
    path = Path(path)
    path.unlink(missing_ok=True)
    sweep(path.parent)


def same_run(written: dict[str, Any], settings: dict[str, Any], start: bool) -> bool:
    """Whether settings are of one run; with ``start`` only if it began with the same weights too."""
    differing = {key for key in {**written, **settings} if written.get(key) != settings.get(key)}
    return not differing or (not start and differing == {"start"})


def read_state(path: str | Path, settings: dict[str, Any], start: bool = False) -> TrainingState | None:
    """Read the state of an interrupted run with the same settings.

    Args:
        path: Of the state.
        settings: What the caller is about to train.
        start: Whether the initial weights must be the same, beside the settings.

    Returns:
        The state, or ``None`` where there is no file.

    Raises:
        CheckpointError: If the file does not read or belongs to a run with other settings.
    """
    path = Path(path)
    if not path.is_file():
        return None
    state = load_state(path, TrainingState, "train", "to start over")
    state.settings = with_defaults(state.settings)
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
    return state
