"""Verdicts of ``same`` on networks whose code, names or shapes differ."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._words import counted
from ...errors import CaptureError
from ...testing import outputs, relative_error, tolerance
from ..judgement.verdict import APART, DIFFERENT, PART, SAME, UNTOLD, Match
from .correspond import SETTINGS, Correspondence, correspond, in_code_of


def other_code(
    a: nn.Module, b: nn.Module, example_inputs: Any, example_inputs_b: Any, same: Callable[..., Match]
) -> Match:
    """The verdict on B's weights in A's code, where the programs correspond; else where they part."""
    found = correspond(a, b, example_inputs, example_inputs_b)
    if not found:
        return _unlike(a, b, example_inputs, example_inputs_b, found)
    match = same(a, in_code_of(a, b, found), example_inputs)
    said = [*found.looked_through]
    if found.renamed:
        said.append(f"{counted(found.renamed, 'entry')} of {len(found.entries)} under other names or in other forms")
    reason = "; ".join([match.reason, *said])
    if found.part:
        reason = f"{found.verdict}, at {found.part}; {reason}"
    verdict = PART if found.part and match.verdict == SAME else match.verdict
    return replace(match, verdict=verdict, reason=reason, correspondence=found)


def _unlike(a: nn.Module, b: nn.Module, inputs: Any, inputs_b: Any, found: Correspondence) -> Match:
    """The verdict on programs that do not correspond: the outputs' shapes, or other settings that they show, tell."""
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    with suppress(RuntimeError, TypeError, ValueError, NotImplementedError, CaptureError):
        ours, theirs = outputs(a, inputs), outputs(b, inputs if inputs_b is None else inputs_b)
    shapes = [[tuple(x.shape) for x in side] for side in (ours, theirs)]
    verdict, reason = APART, found.reason
    if len(ours) == len(theirs) and shapes[0] != shapes[1]:
        verdict = DIFFERENT
        reason = f"other architectures: the outputs have shapes {shapes[0]} and {shapes[1]}; {reason}"
    elif found.verdict == SETTINGS and found.error is not None:
        alike = bool(ours) and shapes[0] == shapes[1] and relative_error(ours, theirs) <= tolerance(torch.float32)
        verdict = UNTOLD if alike else DIFFERENT
        reason += "; yet both give the same outputs here: weights may make up for them" * alike
    far = float("inf")
    return Match(verdict, far, far, None, reason, correspondence=found)


def other_settings(a: nn.Module, b: nn.Module, example_inputs: Any) -> str:
    """In which settings, or where, two programs with the same weights part; nothing where they do not."""
    with suppress(CaptureError):
        found = correspond(a, b, example_inputs)
        return "" if found else found.reason
    return ""
