"""Loss and accuracy of a model on labelled batches."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from .._evaluation import evaluating, unchanged
from .._examples import run
from .activations import unwrap
from .batches import call, device_of, labels_in, repeatable, size
from .points import select

_IGNORED = -100  # label of what is left out, as in cross-entropy
Loss = Callable[[Any, Any], Tensor]  # (output of the model, batch) -> mean loss of the batch


@dataclass(frozen=True)
class Score:
    """Performance of a model.

    Attributes:
        loss: Mean over labels, without ignored ones (-100); over examples if labels are not classes, or a ``loss`` is
            given; NaN if all labels are ignored.
        accuracy: Share of labels at the largest logit, without ignored ones (-100); ``None`` if labels are not classes.
            Logits that include NaN count as wrong.
        examples: Number of examples.
    """

    loss: float
    accuracy: float | None
    examples: int


def evaluate(model: nn.Module, loader: Iterable[Any], loss: Loss | None = None) -> Score:
    """Loss and accuracy of a model in evaluation mode, without gradients.

    Without ``loss``, a batch is ``(inputs, labels, ...)`` or a dict with ``labels``. A model that takes ``labels`` and
    returns its own ``loss``, as those of transformers do, is asked for it; otherwise the loss is the cross-entropy of
    the logits, ``(N, classes)`` or ``(N, T, classes)``. For other data, ``loss(output, batch)`` is the mean of a batch.

    Raises:
        ValueError: If the loader is empty, has no labels, or logits and labels do not fit.

    Examples:
        >>> evaluate(nn.Identity(), [(torch.eye(3), torch.tensor([0, 1, 0]))]).accuracy
        0.667
    """
    device = device_of(model)
    total, weights, correct, labels_seen, examples = 0.0, 0, 0, 0, 0
    with evaluating(model), unchanged(model), torch.no_grad():
        for batch in repeatable(loader):
            n = size(batch)
            value, weight, right, count = _scored(model, batch, device, loss)
            if weight:  # else the mean is over no labels, and not a number
                total, weights = total + weight * value, weights + weight
            examples += n
            correct, labels_seen = correct + right, labels_seen + count
    if examples == 0:
        raise ValueError("loader must yield at least one example. Got none.")
    return Score(total / weights if weights else float("nan"), correct / labels_seen if labels_seen else None, examples)


def _scored(
    model: nn.Module, batch: Any, device: torch.device | None, loss: Loss | None
) -> tuple[float, int, int, int]:
    """Mean loss of a batch, the number of labels in this mean, of labels at the largest logit, and of all labels."""
    labels = labels_in(batch)
    if loss is not None:
        output = call(model, batch, device)
        right, count = (0, 0) if labels is None else _counts(logits_of(output), labels, shifts=True)
        return float(loss(output, batch)), size(batch), right, count
    if labels is None:
        raise ValueError(
            "loader must yield (inputs, labels) or a dict with 'labels'. Got a batch without labels. "
            "Pass loss=function(output, batch) to score without labels."
        )
    if isinstance(batch, Mapping) and "labels" in {*batch} & {*inspect.signature(unwrap(model).forward).parameters}:
        output = run(model, batch, device)
        own = getattr(output, "loss", None)
        if own is not None:
            logits = logits_of(output)
            counted = _averaged(float(own), logits, labels, size(batch))
            return float(own), counted, *_counts(logits, labels, shifts=True)
    else:
        output = call(model, batch, device)
    logits = logits_of(output)
    if not _fit(logits, labels):
        shapes = f"{None if logits is None else tuple(logits.shape)} for labels {tuple(labels.shape)}"
        raise ValueError(
            f"model must return logits (N, classes) or (N, T, classes) for labels of classes. Got {shapes}. "
            "Pass loss=function(output, batch)."
        )
    return _cross_entropy(logits, labels), int(known(labels).sum()), *_counts(logits, labels)


def _averaged(own: float, logits: Tensor | None, labels: Tensor, examples: int) -> int:
    """Number of labels in the mean of a model's own loss: text models predict label ``t + 1`` at ``t``."""
    if not _fit(logits, labels):
        return examples
    if labels.ndim > 1:
        shifted = _cross_entropy(logits[:, :-1], labels[:, 1:])
        if abs(own - shifted) < abs(own - _cross_entropy(logits, labels)):
            labels = labels[:, 1:]
    return int(known(labels).sum())


def _cross_entropy(logits: Tensor, labels: Tensor) -> float:
    flat = logits.reshape(-1, logits.shape[-1]).float()
    target = labels.to(logits.device, torch.long).flatten()
    return float(nn.functional.cross_entropy(flat, target, ignore_index=_IGNORED))


def _fit(logits: Tensor | None, labels: Tensor) -> TypeGuard[Tensor]:
    return logits is not None and logits.shape[:-1] == labels.shape and not labels.is_floating_point()


def known(labels: Tensor) -> Tensor:
    """The labels that count: all but ignored ones (-100)."""
    return labels.long() != _IGNORED  # in bytes 156 is -100


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """For each of ``K`` labels of ``(*N)`` that count, whether the largest logit is at it, none NaN: ``(..., K)``."""
    labels = labels.to(logits.device)
    right = (logits.argmax(-1) == labels) & ~logits.isnan().any(-1)  # NaN counts as the largest
    return right[..., known(labels)]


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a model returned: a tensor, or something that has ``logits``."""
    own = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return own if isinstance(own, Tensor) else select(output)


def _counts(logits: Tensor | None, labels: Tensor, shifts: bool = False) -> tuple[int, int]:
    """Numbers of labels that are right, and that count; none if the model may shift them, as only it knows how."""
    if not _fit(logits, labels) or (shifts and labels.ndim != 1):
        return 0, 0
    right = correct(logits, labels)
    return int(right.sum()), len(right)
