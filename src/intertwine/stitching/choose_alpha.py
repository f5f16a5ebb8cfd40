"""Choice of alpha, the weight of ``-|P|_F``, on a part of the *training* data (paper 1, v2 D.5)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._random import mixed
from ..features.batches import check_repeatable, repeatable, size
from ..groups import Group
from .closed_form import Moments
from .families import family_of, takes
from .options import RECIPES, Recipe, StitchOptions, recipe_of
from .pair import Cut
from .penalty import accuracies, labels_of, recalibrate
from .stitched import Stitched
from .train_layers import train_layers

__all__ = ["ALPHAS", "AlphaChoice", "InMemory", "choose_alpha", "split_examples"]

ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class AlphaChoice:
    """The result of a cross-validation."""

    alpha: float  # The alpha with the best accuracy on the held-out part; the smallest of several
    accuracies: dict[float, float | None]  # Accuracy on the held-out part, by alpha; ``None`` if training diverged
    network: Stitched  # The stitched network of that alpha, trained on the other part and recalibrated there
    held_out: int  # Number of examples in the held-out part

    def __repr__(self) -> str:
        found = ", ".join(f"{a:g}: {'diverged' if v is None else f'{v:.1%}'}" for a, v in self.accuracies.items())
        return f"alpha {self.alpha:g}, accuracy on {self.held_out} held-out training examples by alpha: {found}"


class InMemory:
    """Examples in memory as repeatable batches, optionally shuffled by torch's global random numbers at every pass."""

    def __init__(self, inputs: tuple[Tensor, ...], labels: Tensor, batch_size: int, shuffle: bool) -> None:
        self.inputs, self.labels = inputs, labels
        self.batch_size, self.shuffle = batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        n = len(self.labels)
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for index in order.to(self.labels.device).split(self.batch_size):
            inputs = tuple(t[index] for t in self.inputs)
            yield inputs if len(inputs) > 1 else inputs[0], self.labels[index]


def split_examples(
    loader: Iterable[Any], share: float = 0.8, *, batch_size: int = 32, seed: int = 0
) -> tuple[InMemory, InMemory]:
    """Split the examples of a loader of batches ``(inputs, labels, ...)`` at random into two parts, both in memory.

    The first, a ``share`` of them, is shuffled at every pass; the other is held out.

    Raises:
        ValueError: If a part would be empty, or a batch has no labels or keyword inputs.
    """
    check_repeatable(loader)
    if not 0 < share < 1:
        raise ValueError(f"share must be above 0 and below 1. Got {share}.")
    fields: list[list[Tensor]] = []
    labels = []
    for batch in repeatable(loader, seed):
        labels.append(labels_of(batch))
        inputs = batch[0] if isinstance(batch, tuple | list) else None
        parts = inputs if isinstance(inputs, tuple | list) else (inputs,)
        if not all(isinstance(part, Tensor) and len(part) == size(batch) for part in parts):
            raise ValueError(
                "batches must be (inputs, labels) with tensors of examples to be split. "
                f"Got {type(batch).__name__}. Choose alpha by hand for other batches."
            )
        fields.append(list(parts))
    whole, target = tuple(torch.cat(parts) for parts in zip(*fields)), torch.cat(labels)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed)).to(target.device)
    first = round(share * len(target))
    if not 0 < first < len(target):
        raise ValueError(f"both parts must hold an example. Got {len(target)} examples, share {share}.")
    one, two = order[:first], order[first:]
    make = lambda index, shuffle: InMemory(tuple(t[index] for t in whole), target[index], batch_size, shuffle)
    return make(one, True), make(two, False)


def choose_alpha(
    cut: Cut,
    family: str | Group,
    loader: Iterable[Any],
    *,
    alphas: Sequence[float] = ALPHAS,
    recipe: Recipe | str | None = None,
    share: float = 0.8,
    moments: Moments | None = None,
    seed: int = 0,
    options: StitchOptions | None = None,
) -> AlphaChoice:
    """Choose alpha by the accuracy on a held-out fifth of the training data; test data is never seen.

    One layer for each alpha is trained, all at once behind one trunk, on the other four fifths: 5 epochs and no head
    start, as in the paper. Every layer is rounded, and batch norm recalibrated on the four fifths, before it is judged.

    Training starts at the closed form for ``moments``, or without them at random, as in the paper. The ``seed`` fixes
    the split, the starts and the training order. Skip connections stay as they are; of the options, only the tail's
    batch norm, other settings of the family and progress count. The data is held in memory.

    Raises:
        ValueError: If the family has no alpha, there is nothing to try, or skip connections are mapped.
        RuntimeError: If training diverged for every alpha.
    """  # noqa: DOC502 - raised by training
    options = options or StitchOptions()
    if not alphas:
        raise ValueError("alphas must hold at least one. Got none.")
    if not takes(family, "alpha"):
        raise ValueError(f"family must have a setting alpha. Got {family!r}. Use g_relu, for example.")
    if len(cut.mapped) > 1:
        raise ValueError(
            "cut must leave skip connections as they are for alpha to be chosen (skip='a' or skip='b'). Got "
            "skip='mapped': give alpha as a number."
        )
    chosen = replace(RECIPES["v1"], epochs=5, head_start=0) if recipe is None else recipe_of(recipe)
    part, held_out = split_examples(loader, share, batch_size=chosen.batch_size, seed=seed)
    networks = []
    for alpha in alphas:
        settings = {**options.settings, "channel_dim": cut.tap.channel_dim, "alpha": alpha}
        layer = family_of(family, cut.tap.c_in, cut.tap.c_out, seed=seed, **settings)
        if moments is not None:
            layer.start(moments)
        networks.append(cut.stitch(layer.to(cut.device), tail_norm=options.tail_norm))
    trained = train_layers(networks, part, chosen, seed=seed, progress=options.progress)
    recalibrate(networks, repeatable(part, mixed(seed, "recalibration")), progress=options.progress)
    reached = accuracies(networks, held_out, progress=options.progress)
    found = {a: None if t.stopped_at else r for a, t, r in zip(alphas, trained, reached)}
    best = min((a for a in found if found[a] is not None), key=lambda a: (-(found[a] or 0.0), a))
    return AlphaChoice(best, found, networks[list(alphas).index(best)], len(held_out.labels))
