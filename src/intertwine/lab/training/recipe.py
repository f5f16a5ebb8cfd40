"""The training recipe of a network, as one value."""

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin

from torch import nn, optim


@dataclass(frozen=True)
class Recipe:
    """Settings of one training run; the defaults are the first paper's (v2 D.1).

    One difference: the papers choose the best epoch on their "validation" images, which were CIFAR-10's test set;
    here the validation split is part of the training set. Version 1's random resized crops are ``RECIPES["paper_v1"]``.

    Args:
        epochs: Passes over the training split; ignored if ``iterations`` are given.
        batch_size: Examples per step.
        learning_rate: Initial learning rate.
        optimizer: ``"adam"``, ``"adamw"`` or ``"sgd"`` (momentum 0.9), with PyTorch's other defaults.
        schedule: ``"drops"`` multiplies the rate by ``drop_factor`` at ``drops`` evenly spaced epochs;
            ``"cosine"`` lowers it to 0, step by step; ``"boundaries"`` multiplies it by ``factors[k]`` between the
            iterations ``boundaries[k - 1]`` and ``boundaries[k]``; ``"cyclic"`` lowers it linearly to 0, after
            ``warmup`` epochs of linear rise.
        drops: Number of drops: 50 epochs and 4 drops change the rate after epochs 10, 20, 30 and 40.
        drop_factor: Factor of each drop.
        weight_decay: Weight decay, as the optimizer defines it.
        label_smoothing: Share of the target that is spread evenly over all classes.
        warmup: Epochs over which the rate rises linearly to its scheduled value.
        mixup: Strength of mixup; 0 is none (see ``mix``).
        cutmix: Strength of CutMix; 0 is none.
        translate: Largest shift of images in pixels, each way; the border has the mean colour.
        flip: Whether images are mirrored left-right at random.
        crop: Smallest share of an image's area that a random crop keeps before resizing; 0 for none.
        automatic: Strength of RandAugment, 0 to 10 (see ``random_augment``); 0 is none.
        iterations: Length of the run in steps, whatever the size of the data; 0 counts ``epochs`` instead.
        boundaries: Iterations at which the rate changes, in increasing order.
        factors: Factors of ``learning_rate``, one more than there are boundaries.
        precision: ``"float32"``, or ``"bfloat16"`` for mixed precision (weights, losses and evaluation stay in
            float32): two to three times as fast if the hardware multiplies in it, far slower if it does not
            (see ``fast_precision``).
        threads: Threads of numerical work on a CPU, regardless of environment and machine: with another number,
            gradients of convolutions and long sums differ in the last digits. More are faster for large networks.

    Raises:
        ValueError: If a value is of another kind, or out of its range.
    """

    epochs: int = 50
    batch_size: int = 32
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    schedule: Literal["drops", "cosine", "boundaries", "cyclic"] = "drops"
    drops: int = 4
    drop_factor: float = 0.5
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    warmup: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    translate: int = 2
    flip: bool = True
    iterations: int = 0
    boundaries: tuple[int, ...] = ()
    factors: tuple[float, ...] = (1.0,)
    precision: Literal["float32", "bfloat16"] = "float32"
    threads: int = 1
    crop: float = 0.0
    automatic: float = 0.0

    def __post_init__(self) -> None:
        for name in ("boundaries", "factors"):  # a card stores them as lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for field in fields(self):
            given, options = getattr(self, field.name), get_args(field.type)
            if get_origin(field.type) is Literal:
                wrong, rule = given not in options, f"one of {', '.join(options)}"
            else:
                kind, rule = _KINDS.get(field.type, (tuple, "numbers"))
                wrong = not isinstance(given, kind) or isinstance(given, bool) != (field.type is bool)
            if wrong:
                raise ValueError(f"{field.name} must be {rule}. Got {given!r}.")
        for rule, (holds, names) in _RULES.items():
            for name in names:
                if not holds(given := getattr(self, name)):
                    raise ValueError(f"{name} must be {rule}. Got {given}.")
        grows = all(a < b for a, b in itertools.pairwise((0, *self.boundaries)))
        if not grows or len(self.factors) != len(self.boundaries) + 1 or min(self.factors) <= 0:
            raise ValueError(
                "boundaries must grow from above 0, and factors be positive and one more than boundaries. "
                f"Got {self.boundaries} and {self.factors}."
            )

    @property
    def one_by_one(self) -> bool:
        """Whether networks must be trained one by one, since a step cannot act on all of them at once."""
        return bool(self.mixup or self.cutmix or self.iterations or self.precision != "float32")

    def steps(self, steps_per_epoch: int) -> int:
        """Number of steps of the whole run."""
        return self.iterations or self.epochs * steps_per_epoch

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Learning rate of a step, counted from 0.

        Examples:
            >>> [Recipe().rate(epoch * 100, 100) for epoch in (0, 9, 10, 49)]
            [0.001, 0.001, 0.0005, 6.25e-05]
        """
        if self.schedule == "cosine":
            scheduled = self.learning_rate * (1 + math.cos(math.pi * step / self.steps(steps_per_epoch))) / 2
        elif self.schedule == "cyclic":
            begun = self.warmup * steps_per_epoch
            falling = max(self.steps(steps_per_epoch) - begun, 1)  # if a run ends before the peak, the rate only rises
            scheduled = self.learning_rate * min(1.0, 1 - (step - begun) / falling)
        elif self.schedule == "boundaries":
            scheduled = self.learning_rate * self.factors[bisect.bisect_right(self.boundaries, step)]
        else:
            phase = (step // steps_per_epoch) * (self.drops + 1) * steps_per_epoch // self.steps(steps_per_epoch)
            scheduled = self.learning_rate * self.drop_factor**phase
        rising = self.warmup * steps_per_epoch
        return scheduled * min(1.0, (step + 1) / rising) if rising else scheduled

    def make_optimizer(self, model: nn.Module) -> optim.Optimizer:
        """A new optimizer for all parameters of ``model``."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self.optimizer == "sgd":
            return optim.SGD(parameters, self.learning_rate, momentum=0.9, weight_decay=self.weight_decay)
        kind = optim.AdamW if self.optimizer == "adamw" else optim.Adam
        return kind(parameters, self.learning_rate, weight_decay=self.weight_decay)

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some settings changed; new ``epochs`` replace ``iterations``."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise TypeError(f"setting must be one of {', '.join(known)}. Got {name!r}.")
        if "epochs" in changes:
            changes.setdefault("iterations", 0)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, from which ``Recipe(**data)`` rebuilds the recipe.

        Settings added by later versions are left out if unused, so that names derived from the data do not change.
        """
        data = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in data.items() if value or name not in _ADDED}


_ADDED = ("automatic",)
_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "true or false"),
}  # fmt: skip
_RULES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 1": (lambda v: v >= 1, ("epochs", "threads")),
    "at least 2": (lambda v: v >= 2, ("batch_size",)),
    "at least 0": (lambda v: v >= 0, ("drops", "translate", "warmup", "iterations")),
    "at least 0 and finite": (lambda v: 0 <= v < math.inf, ("mixup", "cutmix", "weight_decay")),
    "from 0 to 1": (lambda v: 0 <= v <= 1, ("crop",)),
    "from 0 to 10": (lambda v: 0 <= v <= 10, ("automatic",)),
    "in [0, 1)": (lambda v: 0 <= v < 1, ("label_smoothing",)),
    "positive and finite": (lambda v: 0 < v < math.inf, ("learning_rate", "drop_factor")),
}

# Paper 2 says neither whether images were shifted or mirrored nor how long Table I trained: C4GAP's accuracy is typical
# of training without, and 200 epochs are those of its other small networks.
_GAP = Recipe(epochs=200, learning_rate=3e-4, drops=0, translate=0, flip=False)


RECIPES = {
    "paper": Recipe(),
    "paper_v1": Recipe(translate=0, crop=0.08),
    # A mirrored digit is no digit, and one pixel is a large part of an 8x8 image.
    "digits": Recipe(epochs=20, learning_rate=3e-3, translate=0, flip=False),
    # v2 D.4 names the parts; the numbers are Hassani et al.'s for CIFAR-10, who stop mixing images at epoch 175.
    "cct": Recipe(
        epochs=300, batch_size=128, learning_rate=5.5e-4, optimizer="adamw", schedule="cosine", weight_decay=0.06,
        label_smoothing=0.1, warmup=10, mixup=0.8, cutmix=1.0, translate=0, crop=0.8, automatic=9.0,
    ),
    # v2 F.3, the ResNet-50 without ReLU on the residual (resnet50:residual_relu=false) on ImageNet; the paper gives
    # neither the peak of the cycle nor the augmentation: two epochs and random resized crops are those of its loader.
    "resnet50_residual": Recipe(
        epochs=88, batch_size=512, learning_rate=1.7, optimizer="sgd", schedule="cyclic", weight_decay=1e-4,
        label_smoothing=0.1, warmup=2, translate=0, crop=0.35,
    ),
    # Paper 2, appendix C: Table I and figure 2.
    "c4gap": _GAP,
    "cnn_gap": _GAP,
    # Table III: C1GAP and the wide C4GAP; single members of the ensemble and the long run have 2,000 epochs.
    "c1gap": _GAP.but(learning_rate=1e-3),
    "c1gap_long": _GAP.but(learning_rate=1e-3, epochs=2000),
    # Table II, VGG-16 and ResNet-110: 64,000 iterations (164 epochs of 50,000 images; "32 epochs" in print contradicts
    # the schedule). Augmentation and weight decay are not printed; these are He et al.'s for CIFAR-10.
    "vgg_resnet": Recipe(
        iterations=64_000, batch_size=128, learning_rate=0.1, optimizer="sgd", schedule="boundaries",
        boundaries=(400, 32_000, 48_000), factors=(0.1, 1.0, 0.1, 0.01), weight_decay=1e-4, translate=4,
    ),
}  # fmt: skip


def recipe_for(shape: tuple[int, ...]) -> Recipe:
    """The recipe for inputs of a shape: the paper's for images from 24x24, else the one for digits."""
    return RECIPES["paper" if len(shape) == 3 and min(shape[1:]) >= 24 else "digits"]
