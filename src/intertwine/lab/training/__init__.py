"""One training loop, the papers' recipes, and checkpoints with a card."""

from .accuracy import accuracy, choose_device
from .augment import augment
from .checkpoint import (
    Card,
    build_with,
    card_path,
    check_card,
    load_checkpoint,
    load_weights,
    read_card,
    save_checkpoint,
)
from .many import ManyTraining, member_path, train_many
from .mix import mix
from .precision import fast_precision
from .random_augment import random_augment
from .recipe import RECIPES, Recipe, recipe_for
from .train import Training, train

__all__ = [
    # training
    "train", "Training", "Recipe", "RECIPES", "recipe_for", "augment", "random_augment", "mix", "accuracy",
    "choose_device", "fast_precision",
    # many seeds at once
    "train_many", "ManyTraining", "member_path",
    # checkpoints
    "save_checkpoint", "load_checkpoint", "load_weights", "read_card", "build_with", "check_card", "card_path",
    "Card",
]  # fmt: skip
