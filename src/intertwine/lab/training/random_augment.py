"""RandAugment: two random operations on every image, all of one strength."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_ROUNDS, _CHANCE, _SPREAD, _MOST = 2, 0.5, 0.5, 10.0
_LUMA = (0.299, 0.587, 0.114)  # of ITU-R 601
_TURN, _SHEAR, _SHIFT, _ENHANCE, _ADD = 30.0, 0.3, 0.45, 0.9, 110 / 255


def random_augment(x: Tensor, strength: float) -> Tensor:
    """Apply two of 15 operations to every image, each with probability 1/2.

    Each draws its strength from a normal distribution of deviation 0.5 around ``strength``, and its sign. Sources:
    Cubuk et al. 2020 (arXiv:1909.13719), with the operations and ranges of the recipe of Hassani et al. 2021 that paper
    1 trains its transformers by (v2 D.4): ``rand-m9-mstd0.5-inc1``.

    Args:
        x: ``(N, C, H, W)``, 0 to 1.
        strength: 0 to 10.

    Returns:
        A new tensor, 0 to 1. Random numbers are torch's global ones.

    Examples:
        >>> random_augment(torch.rand(4, 3, 8, 8), 9.0).shape
        torch.Size([4, 3, 8, 8])
    """
    operations = list(OPERATIONS.values())
    x = x.clone()
    for _ in range(_ROUNDS):
        kind = torch.randint(len(operations), (len(x),))
        level = (torch.randn(len(x)) * _SPREAD + strength).clamp(0, _MOST) / _MOST
        level = torch.where(torch.rand(len(x)) < 0.5, level, -level)
        applied = torch.rand(len(x)) < _CHANCE
        for k in kind[applied].unique().tolist():
            chosen = (applied & (kind == k)).to(x.device)
            x[chosen] = operations[k](x[chosen], level[chosen.cpu()].to(x)[:, None, None, None]).clamp(0, 1)
    return x


def _blend(other: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Away from another image, or towards it."""
    return lambda x, level: other(x) + (x - other(x)) * (1 + _ENHANCE * level)


def _grey(x: Tensor) -> Tensor:
    weights = x.new_tensor(_LUMA if x.shape[1] == len(_LUMA) else [1 / x.shape[1]] * x.shape[1])
    return (x * weights[:, None, None]).sum(1, keepdim=True).expand_as(x)


def _smooth(x: Tensor) -> Tensor:
    window = x.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).expand(x.shape[1], 1, 3, 3)
    smooth = x.clone()  # the border stays
    smooth[..., 1:-1, 1:-1] = F.conv2d(x, window, groups=x.shape[1])
    return smooth


def _stretched(x: Tensor, level: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _equalized(x: Tensor, level: Tensor) -> Tensor:
    """Every value by the share of the channel's pixels below it."""
    flat = (x.flatten(2) * 255).round()
    ranks = torch.searchsorted(flat.sort(2).values, flat)
    most = ranks.amax(2, keepdim=True)
    return torch.where(most > 0, ranks / most.clamp(min=1), x.flatten(2)).view_as(x)


def _posterized(x: Tensor, level: Tensor) -> Tensor:
    step = 2.0 ** (4 + (4 * level.abs()).floor())  # of 256: 4 bits are left, or fewer
    return ((x * 255).round() / step).floor() * step / 255


def _affine(rows: Callable[[Tensor, Tensor, Tensor], list[list[Tensor]]]) -> Callable[[Tensor, Tensor], Tensor]:
    """Images through an affine map of their coordinates (-1 to 1), two rows from the level; what comes in is grey."""

    def operation(x: Tensor, level: Tensor) -> Tensor:
        s = level.flatten()
        matrix = torch.stack([torch.stack(row, 1) for row in rows(s, torch.zeros_like(s), torch.ones_like(s))], 1)
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        return F.grid_sample(x - 0.5, grid, align_corners=False) + 0.5

    return operation


def _turned(s: Tensor, zero: Tensor, one: Tensor) -> list[list[Tensor]]:
    angle = s * math.radians(_TURN)
    return [[angle.cos(), -angle.sin(), zero], [angle.sin(), angle.cos(), zero]]


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AutoContrast": _stretched,
    "Equalize": _equalized,
    "Invert": lambda x, level: 1 - x,
    "Posterize": _posterized,
    "Solarize": lambda x, level: torch.where(255 * x < 256 * (1 - level.abs()) - 0.5, x, 1 - x),
    "SolarizeAdd": lambda x, level: torch.where(x < 0.5, x + _ADD * level.abs(), x),
    "Color": _blend(_grey),
    "Contrast": _blend(lambda x: _grey(x).mean((1, 2, 3), keepdim=True).expand_as(x)),
    "Brightness": _blend(torch.zeros_like),
    "Sharpness": _blend(_smooth),
    "Rotate": _affine(_turned),
    "ShearX": _affine(lambda s, zero, one: [[one, _SHEAR * s, _SHEAR * s], [zero, one, zero]]),
    "ShearY": _affine(lambda s, zero, one: [[one, zero, zero], [_SHEAR * s, one, _SHEAR * s]]),
    "TranslateX": _affine(lambda s, zero, one: [[one, zero, 2 * _SHIFT * s], [zero, one, zero]]),
    "TranslateY": _affine(lambda s, zero, one: [[one, zero, zero], [zero, one, 2 * _SHIFT * s]]),
}
"""Images 0 to 1 and levels ``(N, 1, 1, 1)`` from -1 to 1 to new images, which may leave 0 to 1."""
