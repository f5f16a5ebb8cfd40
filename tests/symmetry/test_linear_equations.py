"""Sums of words over F2 against all sums, one by one."""

import random
from functools import reduce
from itertools import combinations
from operator import xor

import pytest

from intertwine.symmetry.detection.equations import BinarySpan

BITS = 5


@pytest.mark.parametrize("seed", range(5))
def test_a_span_is_the_set_of_all_sums(seed):
    draw = random.Random(seed)
    words = [draw.randrange(1 << BITS) for _ in range(6)]
    span = BinarySpan(words)
    sums = {reduce(xor, some, 0) for count in range(7) for some in combinations(words, count)}
    assert len(sums) == 1 << span.rank
    for x in range(1 << BITS):
        rest, made = span.reduced(x)
        assert x ^ rest == reduce(xor, (w for k, w in enumerate(words) if made >> k & 1), 0)
        assert rest == min(x ^ s for s in sums)  # so that all words of a coset leave the same


@pytest.mark.parametrize("seed", range(5))
def test_values_solve_the_equations_that_agree(seed):
    draw = random.Random(seed)
    span, kept = BinarySpan(), []
    for _ in range(8):
        word, right = draw.randrange(1 << BITS), draw.randrange(2)
        kept += [(word, right)] if span.add(word, right) else []
    values = sum(span.reduced(1 << bit)[1] << bit for bit in range(BITS))
    assert len(kept) == span.rank
    assert all((word & values).bit_count() % 2 == right for word, right in kept)
