"""Differentiability in Theorem E.14 of paper 1: is it needed for the group of an activation to be monomial?

A footnote says that it is "probably not necessary". It is not, but something is. Let ``sigma(A x) = B sigma(x)`` and
let a row of ``A`` have nonzero entries ``a, b``. With the other coordinates held,

    sigma(a s + b t + c) = beta sigma(s) + gamma sigma(t) + delta    for all s, t,

which is Pexider's equation: ``sigma`` is an additive function plus a constant. An additive function that is measurable,
or bounded on an interval, is linear. So for every measurable ``sigma`` that is not affine rows have one nonzero entry:
no derivative is needed. Without measurability the theorem is false: ``sigma(p + q sqrt 2) = p - q sqrt 2`` is additive
on ``Q(sqrt 2)`` (and extends to all numbers by a Hamel basis), and passes every matrix of rational numbers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intertwine.groups import Permutation
from intertwine.lab.experiments import Design, Experiment, Findings
from intertwine.lab.runs import Job

TERMS, LEAST = 40, 0.01  # of the sums; a residual that is surely not rounding
MIXED, MOVED, EXACT = "A with two entries in a row", "A a permutation", "p - q sqrt 2 passes integer matrices"


def weierstrass(x: Tensor) -> Tensor:
    """``sum 2^-k cos(3^k pi x)``: continuous, nowhere differentiable."""
    return sum((0.5**k * torch.cos(torch.pi * 3**k * x) for k in range(TERMS // 2)), torch.zeros_like(x))


def takagi(x: Tensor) -> Tensor:
    """``sum 2^-k |2^k x - nearest integer|``: continuous, nowhere differentiable."""
    return sum((0.5**k * (2**k * x - (2**k * x).round()).abs() for k in range(TERMS)), torch.zeros_like(x))


def cantor(x: Tensor) -> Tensor:
    """Cantor's function with its integer steps: monotone, not differentiable on an uncountable set."""
    whole, rest = x.floor(), x - x.floor()
    total, flat = torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    for k in range(1, TERMS):
        digit = (3 * rest).floor().clamp(max=2)
        rest = 3 * rest - digit
        total += torch.where(flat | (digit == 0), 0.0, 0.5**k)
        flat |= digit == 1
    return whole + total


AFFINE = "affine"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Weierstrass": weierstrass,
    "Takagi": takagi,
    "Cantor": cantor,
    "jumping": lambda x: x - 2 * x.floor(),
    AFFINE: lambda x: 3 * x,
}


class Passed(Job):
    """How far matrices are from passing through an activation."""

    function: str  # One of ``FUNCTIONS``
    points: int  # Random inputs
    seed: int  # Of matrices and inputs

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Largest relative residual of the best ``B`` in ``sigma(A x) = B sigma(x)``, by kind of ``A`` (3 x 3)."""
        generator, sigma = torch.Generator().manual_seed(self.seed), FUNCTIONS[self.function]
        x = 2 * torch.randn(self.points, 3, generator=generator, dtype=torch.float64)
        moved = Permutation(3).random(generator).matrix()
        mixed = moved.clone()
        mixed[0, int((moved[0] == 0).nonzero()[0])] = 0.5 + float(torch.rand((), generator=generator))
        rows = [{"statistic": EXACT, "value": float(mixes_exactly(self.seed))}]
        for kind, a in ((MOVED, moved), (MIXED, mixed)):
            here, there = sigma(x), sigma(x @ a.T)
            off = there - here @ torch.linalg.lstsq(here, there).solution
            rows.append({"statistic": kind, "value": float(off.abs().max() / there.abs().max())})
        return rows


def conjugate(numbers: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``p + q sqrt 2 -> p - q sqrt 2`` of pairs ``(p, q)``: additive, and not linear."""
    return [(p, -q) for p, q in numbers]


def mixes_exactly(seed: int) -> bool:
    """Whether ``conjugate`` passes an integer matrix without a zero."""
    draw = lambda *size: torch.randint(1, 10, size, generator=torch.Generator().manual_seed(seed)).tolist()
    a, x = draw(3, 3), [tuple(pair) for pair in draw(3, 2)]
    times = lambda v: [tuple(sum(m * n[k] for m, n in zip(row, v)) for k in (0, 1)) for row in a]
    return conjugate(times(x)) == times(conjugate(x))


def _plan(plan: Design) -> None:
    s = plan.setting
    draws, points = s.by_scale(5, 20, 20), s.by_scale(100, 2000, 2000)
    for name in FUNCTIONS:
        for k in range(s.seed, s.seed + draws):
            plan.add(Passed(function=name, points=points, seed=k), name, k)
    plan.note(f"Relative residual of the best B in sigma(A x) = B sigma(x), {points} inputs, {draws} draws of A and "
              "inputs. The proof, by Pexider's equation, stands in front of the study's code.")  # fmt: skip


def _analyse(found: Findings) -> None:
    by = {kind: {name: found.values.sample(kind, name) for name in FUNCTIONS} for kind in (MOVED, MIXED, EXACT)}
    for kind in (MOVED, MIXED):
        found.show(kind, by[kind])
    every = lambda kind, *names: [x for name in names or FUNCTIONS for x in by[kind][name].means.values()]
    found.fact("permutations pass through every activation, differentiable or not", max(every(MOVED)), below=1e-9)
    found.fact("a matrix with two entries in a row passes through none that is measurable and not affine",
               min(every(MIXED, *(n for n in FUNCTIONS if n != AFFINE))), above=LEAST)  # fmt: skip
    found.fact("it passes through an affine one", max(every(MIXED, AFFINE)), below=1e-9)
    found.fact("without measurability the theorem is false: the conjugate of p + q sqrt 2 passes integer matrices",
               min(every(EXACT)), above=0.5)  # fmt: skip


_TITLE = "Does Theorem E.14 need derivatives?"
STUDIES = (Experiment("open-differentiability", _TITLE, "left open by v2 E.14", _plan, _analyse),)
