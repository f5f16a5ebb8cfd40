"""Checkpoints of training: a file that keeps a run after every epoch, and the check that it is of this run."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..._io import write_atomically
from ..._untrusted.weights import check_weights_file
from ...errors import CheckpointError
from ...features.batches import length, peek
from ...programs import flat_inputs
from .._batches import labels_of
from ..networks.stitched import Stitched
from .state import Best, Epoch, TrainingState


def identity_of(networks: Sequence[Stitched], loader: Iterable[Any], needed: bool) -> str:
    """What the run is about, so that no file of other networks or data is taken for it: a hash of both."""
    batch = peek(loader)[0]
    labels = labels_of(batch)
    if not needed:
        return ""
    digest = hashlib.blake2b(repr(length(loader)).encode(), digest_size=16)
    tail = networks[0].tail
    moving = tail.statistics()  # these change in training
    weights = [*networks[0].trunk.state_dict().values(), *(v for k, v in tail.state_dict().items() if k not in moving)]
    for tensor in (*weights, *flat_inputs(batch), labels):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def describe(run: TrainingState) -> dict[str, Any]:
    """What a run is, for the file that keeps it: families, widths and settings of its layers."""
    plain = lambda layer: {
        key: value for key, value in vars(layer).items() if isinstance(value, int | float | str) and key[0] != "_"
    }
    described = [{"kind": type(layer).__name__, **plain(layer), "training": False} for layer in run.network.layers]
    return {"layers": described, "tail_norm": run.network.tail_norm}


def save(path: Path | None, settings: dict[str, Any], runs: list[TrainingState], epochs: int, step: int) -> None:
    """Write the file, where one is wanted."""
    if path is None:
        return
    kept = {
        "settings": settings,
        "epochs": epochs,
        "step": step,
        "runs": [
            {
                "layers": [layer.state_dict() for layer in run.network.layers],
                "optimizer": None if run.optimizer is None else run.optimizer.state_dict(),
                "tail": run.network.tail.statistics(),
                "history": [asdict(epoch) for epoch in run.history],
                "stopped_at": run.stopped_at,
                "best": None if run.best is None else vars(run.best),
                "start_loss": run.start_loss,
            }
            for run in runs
        ],
    }
    write_atomically(path, lambda temporary: torch.save(kept, temporary))


def resume(path: Path | None, settings: dict[str, Any], runs: list[TrainingState]) -> tuple[int, int]:
    """Put every run where the file left it; how many epochs and steps are done."""
    if path is None or not path.is_file():
        return 0, 0
    try:
        kept = torch.load(check_weights_file(path), map_location="cpu", weights_only=True)
        found = kept["settings"]
    except Exception as error:  # torch.load raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"state must be a file that train_layers wrote. Got {str(path)!r}, which does not read ({reason}). "
            "Remove it to start over."
        ) from None
    if found != settings:
        changed = [key for key in settings if found.get(key) != settings[key]]
        raise CheckpointError(
            f"state must be of the same run. Got {str(path)!r} with another {', '.join(changed)}. "
            "Remove it to start over, or choose another file."
        )
    for run, old in zip(runs, kept["runs"]):
        for layer, tensors in zip(run.network.layers, old["layers"]):
            layer.load_state_dict(tensors)
        if run.optimizer is not None:
            run.optimizer.load_state_dict(old["optimizer"])
        run.network.tail.load_statistics(old["tail"])
        run.history = [Epoch(**epoch) for epoch in old["history"]]
        run.stopped_at, run.start_loss = old["stopped_at"], old["start_loss"]
        run.best = None if old["best"] is None else Best(**old["best"])
    return kept["epochs"], kept["step"]
