"""Mixup and CutMix: pairs of examples, and targets in the same proportion."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mix(x: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """Mix every example with another one of its batch, by mixup or CutMix.

    With weight ``l`` from Beta(a, a), mixup gives ``l x_i + (1 - l) x_j``; CutMix replaces one rectangle of about
    ``1 - l`` of the area by the other image's. Targets are mixed in the proportion that was really used. One choice of
    method and weight holds for the batch. Sources: Zhang et al. 2018 (arXiv:1710.09412), Yun et al. 2019
    (arXiv:1905.04899); paper 1 trains its transformers with both (v2 D.4).

    Args:
        x: ``(N, C, *S)``; ``(N, C, H, W)`` for CutMix.
        labels: ``(N,)``.
        classes: Number of classes.
        mixup: The parameter a of mixup; 0 leaves it out.
        cutmix: The parameter a of CutMix; 0 leaves it out. With both, half of the batches take each.

    Returns:
        Mixed inputs, and targets ``(N, classes)`` that sum to 1. Random numbers are torch's global ones.

    Examples:
        >>> x, t = mix(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]), classes=3, mixup=0.8, cutmix=1.0)
        >>> x.shape, t.sum(dim=1)
        (torch.Size([4, 3, 8, 8]), tensor([1., 1., 1., 1.]))
    """
    targets = F.one_hot(labels, classes).to(x.dtype)
    if not mixup and not cutmix:
        return x, targets
    cut = bool(cutmix) and (not mixup or float(torch.rand(())) < 0.5)
    strength = torch.tensor(cutmix if cut else mixup)
    weight = float(torch.distributions.Beta(strength, strength).sample())
    other = torch.randperm(len(x)).to(x.device)
    if cut:
        x, weight = _paste(x, x[other], weight)
    else:
        x = weight * x + (1 - weight) * x[other]
    return x, weight * targets + (1 - weight) * targets[other]


def _paste(x: Tensor, other: Tensor, weight: float) -> tuple[Tensor, float]:
    """Paste a rectangle with the image's proportions at a random centre; say what share of the image is left."""
    h, w = x.shape[-2:]
    side = (1 - weight) ** 0.5
    top, bottom = _interval(h, side)
    left, right = _interval(w, side)
    x = x.clone()
    x[..., top:bottom, left:right] = other[..., top:bottom, left:right]
    return x, 1 - (bottom - top) * (right - left) / (h * w)


def _interval(size: int, share: float) -> tuple[int, int]:
    length, centre = round(size * share), int(torch.randint(size, ()))
    return max(centre - length // 2, 0), min(centre - length // 2 + length, size)
