"""The memory of a comparison: what does not fit is refused before the networks run."""

from collections.abc import Sequence
from typing import Any

from ..base import Measure
from .all_pairs.by_cka import SHARE, gram_size
from .all_pairs.by_procrustes import CROSS_SHARE, stack_sizes
from .all_pairs.one_by_one import pairwise_size
from .all_pairs.plan import Plan
from .layers import Layer, chunks
from .spatial_sizes import common_space


def check_memory(
    measures: Sequence[Measure[Any]], a: Sequence[Layer], b: Sequence[Layer], plan: Plan, memory: int
) -> None:
    """Refuse a comparison that some engine would refuse after the networks ran: all that decides is known before."""
    draws = plan.draws
    if any(m.engine == "grams" for m in measures):
        _fit([gram_size(draws.examples, (*a, *b))], memory)
    if any(m.engine == "crosses" for m in measures):
        for some, others in ((a, b), (b, a)):
            for layer in some:
                for space in {common_space(layer.space, other.space) for other in others}:
                    _fit(stack_sizes([layer], space, draws, memory), memory, CROSS_SHARE)
    _fit([pairwise_size(m, draws.examples) for m in measures], memory)


def _fit(sizes: Sequence[int], memory: int, share: int = SHARE) -> None:
    for _ in chunks(sizes, memory, share):
        pass
