"""Options of resampling, and the copies of two networks with fresh weights that it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..._evaluation import check_module
from ..._words import check_whole
from .untrained import untrained as drawn_anew

Untrained = int | tuple[nn.Module | Sequence[nn.Module], nn.Module | Sequence[nn.Module]]
Copies = tuple[list[nn.Module], list[nn.Module]]


@dataclass(frozen=True)
class Resampling:
    """What is drawn at random to judge a score: shuffles, halves of the examples, fresh weights.

    Attributes:
        null: Shuffles of the examples for chance levels, p-values and calibrated scores; 0 for none.
        bootstrap: Random halves of the examples for the intervals, drawn without replacement; 0 for none.
        untrained: How many copies of each network get fresh weights, from seeds of their own, by the models' own code;
            every copy of A is compared with every copy of B: 4 pairs from 2 copies. 0 goes without, and so does
            ``null=0``. Or networks built as A and B are: ``(a0, b0)`` or ``([a0, a1], [b0, b1])``.
        seed: Seed of all of these: the same seed gives the same numbers.

    Raises:
        TypeError: If networks are asked for by anything but a number or modules.
        ValueError: If a number is negative, ``bootstrap`` is 1, or networks are not given for both sides.
    """

    null: int = 20
    bootstrap: int = 20
    untrained: Untrained = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("null", "bootstrap", "untrained", "seed"):
            value = getattr(self, name)
            if name == "untrained" and isinstance(value, tuple | list):
                given(value)
                continue
            check_whole(name, value)
            if name != "seed" and value < 0:
                raise ValueError(f"{name} must be 0 or more. Got {value}.")
        if self.bootstrap == 1:
            raise ValueError("bootstrap must be 0 or at least 2: one half has no spread. Got 1.")


RESAMPLING = Resampling()
NO_RESAMPLING = Resampling(0, 0, 0)


def given(untrained: Any) -> Copies:
    """The untrained networks that a caller built."""
    if len(untrained) != 2:
        raise ValueError(f"untrained must be (a0, b0): one built as A and one as B. Got {len(untrained)}.")
    a, b = ([one] if isinstance(one, nn.Module) else list(one) for one in untrained)
    for model in (*a, *b):
        check_module(model, "untrained")
    if not a or not b:
        raise ValueError("untrained must hold networks built as A and as B. Got none of one of them.")
    return a, b


def untrained_copies(a: nn.Module, b: nn.Module, resampling: Resampling, memory: int) -> tuple[Copies, list[str]]:
    """Networks with fresh weights, built as A and as B, in so many bytes; or none, and why."""
    asked, seed = resampling.untrained, resampling.seed
    if not isinstance(asked, int):
        return given(asked), []
    sizes = [sum(x.numel() * x.element_size() for x in model.parameters()) for model in (a, b)]
    if not asked or not resampling.null or not any(sizes):
        return ([], []), []
    copies = max(1, min(asked, memory // sum(sizes)))
    drawn = [[drawn_anew(m, copies * (2 * seed + k) + i) for i in range(copies)] for k, m in enumerate((a, b))]
    failed = [
        f"{name} cannot be drawn anew, {x}" for name, some in zip("AB", drawn) for x in some if isinstance(x, str)
    ]
    if failed:
        return ([], []), [
            f"No untrained networks stand beside these: {failed[0]}. Give freshly built ones, "
            "Resampling(untrained=([a0, a1], [b0, b1])), to see how much of the similarity comes from training."
        ]
    few = f"{copies} untrained of {asked} asked for stand beside each network: more would not fit in memory."
    built_a, built_b = ([x for x in some if isinstance(x, nn.Module)] for some in drawn)
    return (built_a, built_b), [few] if copies < asked else []
