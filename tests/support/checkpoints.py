"""Checkpoints of built-in networks with cards, as training on digits writes them."""

import torch

from intertwine.lab import data, networks, training


def save_with_card(path, model=None, spec="mlp:widths=8-8", seed=0, **metrics):
    """Write a network with its card, built from name and seed unless it is given; returns the path."""
    torch.manual_seed(seed)
    model, digits = networks.build(spec) if model is None else model, data.load("digits")
    facts = {"mean": digits.mean, "std": digits.std, "classes": digits.classes, "shape": digits.shape}
    card = training.Card(architecture=spec, data="digits", seed=seed, metrics=metrics, **facts)
    training.save_checkpoint(path, model, card)
    return path
