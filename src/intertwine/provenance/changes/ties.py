"""Tied tensors: one tensor under two names, before or after."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from .element_words import Finding


def tie_findings(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Tensors that were tied, or are tied no longer.

    Yields:
        One finding for each tensor.
    """
    before, after = ({n: x.data_ptr() for n, x in state.items() if x.numel()} for state in (a, b))
    said = {("untied", "were one tensor and are two now"): (before, after)}
    said |= {("tied", "were two tensors and are one now"): (after, before)}
    for (kind, words), (one, two) in said.items():
        first: dict[int, str] = {}
        for name in (n for n in before if n in after):
            other = first.setdefault(one[name], name)
            if two[other] != two[name]:
                yield Finding(kind, f"{name} and {other} {words}", (other, name))
