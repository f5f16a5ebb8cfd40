"""One training loop, the papers' recipes, and checkpoints with a card."""

from .accuracy import accuracy, choose_device, fast_precision
from .augmentation import Augmented, augment, mix, random_augment
from .checkpoint import (
    Card,
    build_with,
    card_path,
    check_card,
    digest,
    load_checkpoint,
    load_weights,
    plain_names,
    read_card,
    save_checkpoint,
)
from .recipe import RECIPES, Recipe, recipe_for
from .train import ManyTraining, Training, member_path, train, train_many

__all__ = [
    # training
    "train", "Training", "Recipe", "RECIPES", "recipe_for", "augment", "Augmented", "random_augment", "mix", "accuracy",
    "choose_device", "fast_precision",
    # many seeds at once
    "train_many", "ManyTraining", "member_path",
    # checkpoints
    "save_checkpoint", "load_checkpoint", "load_weights", "read_card", "build_with", "check_card", "card_path",
    "Card", "digest", "plain_names",
]  # fmt: skip
