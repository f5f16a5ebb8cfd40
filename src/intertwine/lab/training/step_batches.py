"""Batches of a training step: the same for one seed, however many networks are trained together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..._random import mixed
from ..data import Batches, DataSplits
from .augment import augment
from .mix import mix
from .random_augment import random_augment
from .recipe import Recipe


class StepBatches:
    """For every step the batch that each seed's own run sees: its order of examples, augmentation and mixing.

    Args:
        data: Splits.
        recipe: Settings; mixup and CutMix are for one seed.
        seeds: One for each network.
        device: Where batches go.
    """

    def __init__(self, data: DataSplits, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self._recipe, self._classes = list(seeds), recipe, len(data.classes)
        self._batches = Batches(data.train.to(device), data.mean, data.std, recipe.batch_size)
        self._examples, size = len(data.train), recipe.batch_size
        # batch norm cannot normalise one example, so that a last batch of one is left out
        self.per_epoch = max(self._examples // size + (self._examples % size > 1), 1)
        self._epoch, self._orders = -1, []  # type: int, list[Tensor]

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(k, B, C, *S)`` and targets ``(k, B)``, or ``(k, B, classes)`` where examples are mixed.

        Torch's global generator is left where the seed's augmentation and mixing, and then dropout, draw from it.
        """
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._orders = epoch, [self._order(seed, epoch) for seed in self.seeds]
        size, recipe = self._recipe.batch_size, self._recipe
        index = torch.stack([order[place * size : (place + 1) * size] for order in self._orders])
        inputs, targets = self._batches.batch(index.flatten())
        own = []
        for seed, part in zip(self.seeds, inputs.unflatten(0, index.shape), strict=True):
            torch.manual_seed(mixed(seed, "step", step))
            part = self._automatic(part) if recipe.automatic else part
            own.append(augment(part, recipe.translate, recipe.flip, crop=recipe.crop))
        inputs = torch.cat(own)
        if recipe.mixup or recipe.cutmix:
            inputs, targets = mix(inputs, targets, self._classes, recipe.mixup, recipe.cutmix)
        return inputs.unflatten(0, index.shape), targets.unflatten(0, index.shape)

    def _automatic(self, x: Tensor) -> Tensor:
        """RandAugment, which works on the scale 0 to 1."""
        mean, std = (x.new_tensor(v)[:, None, None] for v in (self._batches.mean, self._batches.std))
        return (random_augment((x * std + mean).clamp(0, 1), self._recipe.automatic) - mean) / std

    def _order(self, seed: int, epoch: int) -> Tensor:
        return torch.randperm(self._examples, generator=torch.Generator().manual_seed(mixed(seed, "order", epoch)))
