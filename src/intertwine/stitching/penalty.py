"""The stitching penalty: what the stitched network loses, as a fraction of accuracy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._progress import track
from ..features.batches import check_repeatable, length
from ..features.evaluate import correct
from ..features.repeatable import repeatable
from ..programs import Part, check_path, flat_inputs
from ._batches import labels_of
from .networks.pair import Pair
from .networks.stitched import Stitched, by_trunk

__all__ = ["Evaluation", "accuracies", "evaluate", "penalty"]


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of two models and of networks stitched from them.

    Attributes:
        accuracy_a: Of A, 0 to 1.
        accuracy_b: Of B.
        accuracies: Of the stitched networks.
        errors: Standard errors of their penalties over examples, all three networks on the same ones.
        examples: How many examples, those whose labels are ignored (-100) left out.
    """

    accuracy_a: float
    accuracy_b: float
    accuracies: tuple[float, ...]
    errors: tuple[float, ...]
    examples: int

    @property
    def penalties(self) -> tuple[float, ...]:
        """Eq. 4.3 for each."""
        return tuple(penalty(self.accuracy_a, self.accuracy_b, stitched) for stitched in self.accuracies)


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


def accuracies(networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None) -> list[float]:
    """Accuracy of stitched networks, each trunk run once per batch.

    Args:
        networks: Evaluated with the rounded maps, batch norm in evaluation mode; their own modes do not matter.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Raises:
        ValueError: If the loader is empty.
    """  # noqa: DOC502 - raised by the count
    check_repeatable(loader)
    device = next((t.device for net in networks for t in net.tail.buffers()), None)
    rights = _hits(_together(networks), loader, device, networks[0].classes, progress)
    return [int(right.sum()) / len(right) for right in rights]


def evaluate(
    pair: Pair, networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None
) -> Evaluation:
    """Accuracy of A, of B and of stitched networks in one pass over the data: whole models and trunks run once a batch.

    Args:
        pair: The models.
        networks: Stitched from them, at any layers; evaluated as by :func:`accuracies`.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Raises:
        ValueError: If the loader is empty.
        RuntimeError: If a model whose control flow depends on data took another path than in its recorded run.
    """  # noqa: DOC502 - raised by what it calls
    check_repeatable(loader)
    programs = pair.a, pair.b
    whole = [Part(program, outputs=program.outputs[:1]) for program in programs]
    stitched = _together(networks)

    def run(inputs: tuple[Tensor, ...], batch: Any) -> list[Tensor]:
        outputs = [part(*inputs)[0] for part in whole]
        for model, program, output, name in zip(pair.models, programs, outputs, "AB"):
            check_path(model, program, batch, output, name)
        return [*outputs, *stitched(inputs, batch)]

    right_a, right_b, *rights = _hits(run, loader, pair.device, pair.classes, progress)
    lost = [(right_a.double() + right_b.double()) / 2 - right.double() for right in rights]
    errors = [float(x.std(unbiased=True) / len(x) ** 0.5) if len(x) > 1 else float("nan") for x in lost]
    share = lambda right: int(right.sum()) / len(right)
    return Evaluation(share(right_a), share(right_b), tuple(map(share, rights)), tuple(errors), len(right_a))


def _together(networks: Sequence[Stitched]) -> Callable[[tuple[Tensor, ...], Any], list[Tensor]]:
    """All networks as they are evaluated, each trunk run once."""
    tails = {id(net): net.tail.fork().eval() for net in networks}
    maps = {id(net): net.evaluated() for net in networks}
    groups = by_trunk(networks)

    def run(inputs: tuple[Tensor, ...], _: Any) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in groups:
            crossing = group[0].trunk(*inputs)
            found |= {id(net): tails[id(net)](*maps[id(net)](crossing))[0] for net in group}
        return [found[id(net)] for net in networks]

    return run


@torch.no_grad()
def _hits(
    run: Callable[[tuple[Tensor, ...], Any], list[Tensor]],
    loader: Iterable[Any],
    device: torch.device | None,
    classes: int,
    progress: bool | None,
) -> list[Tensor]:
    """For every network, which examples it gets right, those whose labels are ignored left out."""
    rights: list[list[Tensor]] = []
    for batch in track(repeatable(loader), "Evaluating", length(loader), progress):
        labels = labels_of(batch, classes).to(device)
        rights.append([correct(logits, labels).cpu() for logits in run(flat_inputs(batch, device), batch)])
    if not rights or not sum(len(batch[0]) for batch in rights):
        raise ValueError("loader must yield at least one example with a label. Got none.")
    return [torch.cat(parts) for parts in zip(*rights)]
