"""Measures on many narrow and on few wide features, beside the way that does not look at the shape.

Linear CKA of fewer channels than examples against its Gram matrices, canonical correlations of fewer rows than channels
against the second moments of the channels, and the time of every registered measure. Process time in one thread, best
of several.

    python benchmarks/measures.py
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from _timing import best_of, describe, verdict

from intertwine.similarity import CKA, measure, measure_names
from intertwine.similarity.measures import canonical as _factors

LONG, WIDE = (2000, 64), (100, 512)


def milliseconds(work: Callable[[], object]) -> float:
    """Process time of the fastest of nine runs."""
    return 1e3 * best_of(work, 9, clock=time.process_time)


def by_grams(name: str, x: torch.Tensor, y: torch.Tensor) -> float:
    """Milliseconds of a CKA by its Gram matrices, however few the features are."""
    m = CKA(measure(name).kernel)
    return milliseconds(lambda: m.score(m.gram_side(x), m.gram_side(y)))


def by_moments(name: str, x: torch.Tensor, y: torch.Tensor) -> float:
    """Milliseconds of a CCA that decomposes second moments of channels, however many there are."""
    with patch.object(_factors, "prod", lambda size: 10**9):  # as if there were many rows
        return milliseconds(lambda: measure(name)(x, y))


def compare(name: str, shape: tuple[int, int], slower: Callable[..., float], budget: float) -> bool:
    """One line: both ways, and whether the ratio is met."""
    x, y = torch.randn(shape), torch.randn(shape)
    slow, fast = slower(name, x, y), milliseconds(lambda: measure(name)(x, y))
    line = f"{name} of {shape}: {slower.__name__} {slow:.1f} ms, as it is {fast:.1f} ms, {slow / fast:.1f} x"
    print(f"{line}   budget >= {budget:.0f}   {verdict(slow / fast, budget)}")
    return slow / fast >= budget


def main() -> None:
    """Run from the command line."""
    torch.set_num_threads(1)
    print(describe())
    met = [compare(name, LONG, by_grams, 10) for name in ("linear_cka", "channel_normalized_cka")]
    met += [compare(name, WIDE, by_moments, 5) for name in ("svcca", "pwcca")]
    x, y = torch.randn(LONG), torch.randn(LONG)
    for name in measure_names():
        spent = best_of(partial(measure(name), x, y), 2, clock=time.process_time)
        print(f"{name:<40}{spent * 1e3:10.1f} ms")
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
