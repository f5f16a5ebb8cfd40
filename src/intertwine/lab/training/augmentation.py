"""Random augmentation of a batch: translation, mirroring, resized crops, RandAugment, mixup and CutMix."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._random import begin, mixed
from ..data import Batches, DataSplits
from .recipe import Recipe

_ROUNDS, _CHANCE, _SPREAD, _MOST = 2, 0.5, 0.5, 10.0
_LUMA = (0.299, 0.587, 0.114)  # of ITU-R 601
_TURN, _SHEAR, _SHIFT, _ENHANCE, _ADD = 30.0, 0.3, 0.45, 0.9, 110 / 255


def augment(x: Tensor, translate: int, flip: bool, crop: float = 0.0) -> Tensor:
    """A batch with every image cropped, shifted by up to ``translate`` pixels each way, and mirrored half of the time.

    Pixels shifted in from outside are 0, the mean colour of inputs whose channel means were subtracted. Images are
    ``(N, C, H, W)``, normalised; ``crop`` is the smallest share of an image that a random crop keeps before resizing.
    If there is nothing to do, ``x`` itself is returned. Random numbers come from torch's global generator.

    Raises:
        ValueError: If ``x`` is not a batch of images.

    Examples:
        >>> augment(torch.ones(8, 3, 5, 5), translate=2, flip=True).shape
        torch.Size([8, 3, 5, 5])
    """
    if crop:
        x = resized(x, draw_crops(len(x), crop))
    if not translate and not flip:
        return x
    if x.ndim != 4:
        raise ValueError(
            f"x must be a batch of images (N, C, H, W). Got shape {tuple(x.shape)}. Set translate=0, flip=False."
        )
    n, channels, h, w = x.shape
    shifts = torch.randint(0, 2 * translate + 1, (2, n, 1))
    columns = torch.arange(w).expand(n, w)
    if flip:
        columns = torch.where(torch.rand(n, 1) < 0.5, w - 1 - columns, columns)
    rows = (shifts[0] + torch.arange(h))[:, None, :, None].to(x.device)
    columns = (shifts[1] + columns)[:, None, None, :].to(x.device)
    examples = torch.arange(n, device=x.device)[:, None, None, None]
    of_channels = torch.arange(channels, device=x.device)[None, :, None, None]
    return F.pad(x, (translate,) * 4)[examples, of_channels, rows, columns]


def draw_crops(n: int, least: float) -> Tensor:
    """Random boxes ``(n, 4)``: height, width, top and left as shares of the image, with ``least`` to all of its area.

    Their aspect ratios are 3/4 to 4/3 (Szegedy et al. 2015); boxes that do not fit are adjusted.
    """
    area, aspect, top, left = torch.rand(4, n)
    area, ratio = least + (1 - least) * area, ((2 * aspect - 1) * math.log(4 / 3)).exp()
    height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    return torch.stack([height, width, top * (1 - height), left * (1 - width)], 1)


def resized(x: Tensor, boxes: Tensor) -> Tensor:
    """Boxes ``(N, 4)`` of images ``(N, C, H, W)``, resized to the images' size by bilinear interpolation."""
    height, width, top, left = boxes.to(x).T
    zero = torch.zeros_like(height)
    across = torch.stack([width, zero, 2 * left + width - 1], 1)
    down = torch.stack([zero, height, 2 * top + height - 1], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def mix(x: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """A batch with every example mixed with another one of it, by mixup or CutMix.

    With weight ``l`` from Beta(a, a), mixup gives ``l x_i + (1 - l) x_j``; CutMix replaces one rectangle of about
    ``1 - l`` of the area by that of the other image. Targets are mixed in the proportion actually used. The method and
    weight are chosen once per batch. Sources: Zhang et al. 2018 (arXiv:1710.09412), Yun et al. 2019
    (arXiv:1905.04899); paper 1 trains its transformers with both (v2 D.4).

    Inputs are ``(N, C, *S)``, labels ``(N,)``; ``mixup`` and ``cutmix`` are the ``a`` of each, and 0 disables it; with
    both, half of the batches use either. Targets ``(N, classes)`` sum to 1. Random numbers are torch's global ones.

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
    if not cut:
        mixed_x = weight * x + (1 - weight) * x[other]
    else:  # a rectangle with the image's proportions at a random centre, clipped at the border
        (h, w), side, mixed_x = x.shape[-2:], (1 - weight) ** 0.5, x.clone()
        ends = []
        for size in (h, w):
            length, centre = round(size * side), int(torch.randint(size, ()))
            ends += [max(centre - length // 2, 0), min(centre - length // 2 + length, size)]
        top, bottom, left, right = ends
        mixed_x[..., top:bottom, left:right] = x[other][..., top:bottom, left:right]
        weight = 1 - (bottom - top) * (right - left) / (h * w)  # the remaining share
    return mixed_x, weight * targets + (1 - weight) * targets[other]


def random_augment(x: Tensor, strength: float) -> Tensor:
    """Images changed by two of 15 operations each, applied with probability 1/2.

    Each operation draws its strength from a normal distribution of deviation 0.5 around ``strength``, and a random
    sign. Sources: Cubuk et al. 2020 (arXiv:1909.13719), with the operations and ranges of Hassani et al. 2021, with
    which paper 1 trains its transformers (v2 D.4): ``rand-m9-mstd0.5-inc1``.

    Images are ``(N, C, H, W)``, 0 to 1, and the strength is 0 to 10. Random numbers are torch's global ones.

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
    """An operation that moves images towards another image, or away from it."""
    return lambda x, level: other(x) + (x - other(x)) * (1 + _ENHANCE * level)


def _grey(x: Tensor) -> Tensor:
    weights = x.new_tensor(_LUMA if x.shape[1] == len(_LUMA) else [1 / x.shape[1]] * x.shape[1])
    return (x * weights[:, None, None]).sum(1, keepdim=True).expand_as(x)


def _smooth(x: Tensor) -> Tensor:
    window = x.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).expand(x.shape[1], 1, 3, 3)
    smooth = x.clone()  # the border stays unchanged
    smooth[..., 1:-1, 1:-1] = F.conv2d(x, window, groups=x.shape[1])
    return smooth


def _stretched(x: Tensor, level: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _equalized(x: Tensor, level: Tensor) -> Tensor:
    """Every value replaced by the share of the channel's pixels below it."""
    flat = (x.flatten(2) * 255).round()
    ranks = torch.searchsorted(flat.sort(2).values, flat)
    most = ranks.amax(2, keepdim=True)
    return torch.where(most > 0, ranks / most.clamp(min=1), x.flatten(2)).view_as(x)


def _posterized(x: Tensor, level: Tensor) -> Tensor:
    step = 2.0 ** (4 + (4 * level.abs()).floor())  # of 256: at most 4 bits remain
    return ((x * 255).round() / step).floor() * step / 255


def _affine(rows: Callable[[Tensor, Tensor, Tensor], list[list[Tensor]]]) -> Callable[[Tensor, Tensor], Tensor]:
    """An operation by an affine map of coordinates (-1 to 1), with two rows given by the level; gaps become grey."""

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
"""Maps from images in 0 to 1 and levels ``(N, 1, 1, 1)`` in -1 to 1 to new images, which may leave 0 to 1."""


@dataclass(frozen=True)
class Augmented:
    """Batches of normalised images, cropped, shifted and mirrored by torch's global generator: see ``augment``."""

    batches: Batches
    translate: int
    flip: bool
    crop: float = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.batches:
            yield augment(inputs, self.translate, self.flip, crop=self.crop), labels


class StepBatches:
    """The batches of every step, as each seed's own run sees them: order of examples, augmentation and mixing."""

    def __init__(self, data: DataSplits, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self._recipe, self._classes = list(seeds), recipe, len(data.classes)
        self._device, self._batches = device, Batches(data.train.to(device), data.mean, data.std, recipe.batch_size)
        self._examples, size = len(data.train), recipe.batch_size
        # batch norm cannot normalise a single example, so a last batch of one is left out
        self.per_epoch = max(self._examples // size + (self._examples % size > 1), 1)
        self._epoch, self._orders = -1, []  # type: int, list[Tensor]

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(k, B, C, *S)`` and targets ``(k, B)``, or ``(k, B, classes)`` if examples are mixed.

        Torch's global generator is left in the state from which the seed's augmentation, mixing and dropout draw.
        """
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generators = (torch.Generator().manual_seed(mixed(seed, "order", epoch)) for seed in self.seeds)
            self._epoch, self._orders = epoch, [torch.randperm(self._examples, generator=g) for g in generators]
        size, recipe = self._recipe.batch_size, self._recipe
        index = torch.stack([order[place * size : (place + 1) * size] for order in self._orders])
        inputs, targets = self._batches.batch(index.flatten())
        own = []
        for seed, part in zip(self.seeds, inputs.unflatten(0, index.shape), strict=True):
            begin(mixed(seed, "step", step), self._device)
            if recipe.automatic:  # RandAugment works on a scale of 0 to 1
                mean, std = (part.new_tensor(v)[:, None, None] for v in (self._batches.mean, self._batches.std))
                part = (random_augment((part * std + mean).clamp(0, 1), recipe.automatic) - mean) / std
            own.append(augment(part, recipe.translate, recipe.flip, crop=recipe.crop))
        inputs = torch.cat(own)
        if recipe.mixup or recipe.cutmix:
            inputs, targets = mix(inputs, targets, self._classes, recipe.mixup, recipe.cutmix)
        return inputs.unflatten(0, index.shape), targets.unflatten(0, index.shape)
