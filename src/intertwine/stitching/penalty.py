"""The stitching penalty: what the stitched network loses, as a fraction of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._progress import track
from .._zoo_intervals import PairInterval, pair_interval
from ..taps.batches import length
from ._batches import check_loader, labelled
from .network import Pair, Stitched
from .recalibrate import by_trunk
from .replay import Replay

__all__ = ["accuracies", "model_accuracies", "penalty", "penalty_interval"]


def penalty(accuracy_a: float, accuracy_b: float, stitched: float) -> float:
    """``(Acc f + Acc f~) / 2 - Acc S(f, f~, l, phi)`` (paper 1, eq. 4.3), as a fraction: 0.01 is one point.

    Args:
        accuracy_a: Of network A, 0 to 1.
        accuracy_b: Of network B.
        stitched: Of the stitched network.

    Returns:
        The penalty; negative where the stitched network is better than both on average.

    Examples:
        >>> round(penalty(0.90, 0.92, 0.88), 4)
        0.03
    """
    return (accuracy_a + accuracy_b) / 2 - stitched


def penalty_interval(
    pairs: Sequence[tuple[Hashable, Hashable]], penalties: Sequence[float], level: float = 0.95
) -> PairInterval:
    """Confidence interval of the mean penalty over pairs of models, by leaving out *models*.

    Pairs that share a model are not independent: an interval over pairs that promises 95 % covers 41 %.

    Args:
        pairs: Names of the two models behind each penalty.
        penalties: The penalties.
        level: Nominal coverage.

    Returns:
        Mean, interval and the number of models it rests on; fewer than three models are a ``ValueError``.
    """
    return pair_interval(pairs, penalties, level)


def accuracies(networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool = False) -> list[float]:
    """Accuracy of stitched networks, each trunk run once per batch.

    Args:
        networks: Evaluated with the rounded maps, batch norm in evaluation mode; their modes are kept.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Returns:
        One fraction for each network, in order.

    Raises:
        ValueError: If the loader is empty.
    """  # noqa: DOC502 - raised by the count
    check_loader(loader)
    found: dict[int, float] = {}
    for group in by_trunk(networks):
        modes = [net.tail.training for net in group]
        for net in group:
            net.tail.eval()
        try:
            maps = [net.evaluated() for net in group]

            def run(inputs: tuple[Tensor, ...], group: list[Stitched] = group, maps: list[Any] = maps) -> list[Tensor]:
                crossing = group[0].trunk(*inputs)
                return [net.tail(*mapped(crossing))[0] for net, mapped in zip(group, maps)]

            device = next((t.device for t in group[0].tail.buffers()), None)
            found |= zip(map(id, group), _count(run, loader, device, progress))
        finally:
            for net, mode in zip(group, modes):
                net.tail.train(mode)
    return [found[id(net)] for net in networks]


def model_accuracies(pair: Pair, loader: Iterable[Any], *, progress: bool = False) -> tuple[float, float]:
    """Accuracy of A and of B, untouched.

    Args:
        pair: The models.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Returns:
        Two fractions.

    Raises:
        ValueError: If the loader is empty.
    """  # noqa: DOC502 - raised by the count
    check_loader(loader)
    whole = [
        Replay(rec, [r.id for r in rec.program.inputs], [rec.program.outputs[0].id]).eval() for rec in (pair.a, pair.b)
    ]
    a, b = _count(lambda inputs: [model(*inputs)[0] for model in whole], loader, pair.device, progress)
    return a, b


@torch.no_grad()
def _count(
    run: Callable[[tuple[Tensor, ...]], list[Tensor]],
    loader: Iterable[Any],
    device: torch.device | None,
    progress: bool,
) -> list[float]:
    right: list[Tensor] = []
    total = 0
    for inputs, labels in labelled(track(loader, "Evaluating", length(loader), progress), device):
        hits = [(logits.argmax(dim=1) == labels).sum() for logits in run(inputs)]
        right = hits if not right else [a + b for a, b in zip(right, hits)]
        total += len(labels)
    if not total:
        raise ValueError("loader must yield at least one example. Got none.")
    return [int(hits) / total for hits in right]
