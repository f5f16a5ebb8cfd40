"""Configuration of a pruned model: the sizes that its class builds it from, kept in step with its tensors."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import combinations
from typing import Any

import torch
from torch import nn

from .._random import seeded
from ..symmetry.folding.rewriter import Shapes, built, shapes

_MOST = 4  # settings that change together


Setting = tuple[tuple[str, ...], str, int]
"""One size: the names down to the part of the configuration that holds it, its name and its new value."""


def fitting(
    small: nn.Module, lengths: Iterable[tuple[int, int]], same: Callable[[nn.Module], bool], dtype: torch.dtype
) -> tuple[Setting, ...] | None:
    """The settings with which the class of a pruned model builds it; ``None`` where it has no words for its sizes.

    Args:
        small: The pruned model, with the configuration of the whole one.
        lengths: Old and new lengths of axes and of their factors.
        same: Whether a model is the same function as the pruned one.
        dtype: Of the model before it was widened.
    """
    wanted = shapes(small)
    before = _built(small, ())
    pruned = {name for name in wanted if wanted[name] != before.get(name)}
    useful = []
    for setting in dict.fromkeys(_candidates(small.config, set(lengths))):
        alone = _built(small, (setting,))
        changed = {name for name in {*alone, *before} if alone.get(name) != before.get(name)}
        if not alone or (changed and changed <= pruned):
            useful.append(setting)
    for count in range(min(len(useful), _MOST) + 1):
        for chosen in combinations(useful, count):
            if _built(small, chosen) == wanted and any(map(same, _rebuilt(small, chosen, dtype))):
                return chosen
    return None


def write(config: Any, settings: Iterable[Setting]) -> Any:
    """Write settings into a configuration, in place."""
    for path, name, value in settings:
        setattr(reduce(getattr, path, config), name, value)
    return config


def _candidates(config: Any, lengths: set[tuple[int, int]], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Sizes of an old length, and sizes left open, with each new length."""
    for name, value in vars(config).items():
        if name.startswith("_"):
            continue
        if hasattr(value, "to_dict"):
            yield from _candidates(value, lengths, (*path, name))
        elif type(value) is int or value is None:
            new = {b for a, b in lengths if a != b and (value is None or a == value)}
            yield from ((path, name, length) for length in sorted(new))


def _built(small: nn.Module, settings: tuple[Setting, ...]) -> Shapes:
    return built(small, lambda config: write(config, settings))


def _rebuilt(small: nn.Module, settings: tuple[Setting, ...], dtype: torch.dtype) -> Iterator[nn.Module]:
    """What a user gets who loads the pruned tensors into the configured class, as it is built and cast to a dtype.

    A cast model has rounded its tables, those of rotary embeddings for one, which are no part of a state dict.
    """
    wide = next(small.parameters()).dtype
    for own in (wide, dtype):
        with seeded(0):
            model: nn.Module = type(small)(write(copy.deepcopy(small.config), settings))
        model.to(own).to(wide).load_state_dict(small.state_dict())
        yield model.train(small.training)
