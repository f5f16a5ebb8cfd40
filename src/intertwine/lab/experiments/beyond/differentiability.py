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

import torch
from torch import Tensor

from ....groups import Permutation
from ....groups.activations.laws import span_representation
from ...runs import Job
from ..estimates import of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim, fact

_TERMS = 40
_MIXED, _MOVED, _FACT = "A with two entries in a row", "A a permutation", "exact arithmetic"
_LEAST = 0.01  # a residual that is surely not rounding


def _weierstrass(x: Tensor) -> Tensor:
    """``sum 2^-k cos(3^k pi x)``: continuous, nowhere differentiable."""
    return sum((0.5**k * torch.cos(torch.pi * 3**k * x) for k in range(_TERMS // 2)), torch.zeros_like(x))


def _takagi(x: Tensor) -> Tensor:
    """``sum 2^-k |2^k x - nearest integer|``: continuous, nowhere differentiable."""
    return sum((0.5**k * (2**k * x - (2**k * x).round()).abs() for k in range(_TERMS)), torch.zeros_like(x))


def _cantor(x: Tensor) -> Tensor:
    """Cantor's function with its integer steps: monotone, not differentiable on an uncountable set."""
    whole, rest = x.floor(), x - x.floor()
    total, flat = torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    for k in range(1, _TERMS):
        digit = (3 * rest).floor().clamp(max=2)
        rest = 3 * rest - digit
        total += torch.where(flat | (digit == 0), 0.0, 0.5**k)
        flat |= digit == 1
    return whole + total


def _jumping(x: Tensor) -> Tensor:
    """``x`` plus its number of wholes, reversed: jumps at every integer."""
    return x - 2 * x.floor()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Weierstrass": _weierstrass,
    "Takagi": _takagi,
    "Cantor": _cantor,
    "jumping": _jumping,
    "affine": lambda x: 3 * x,
}
_CONTROL = "affine"


class Passed(Job):
    """How far matrices are from passing through an activation."""

    function: str  # One of ``FUNCTIONS``
    size: int  # Of the matrices
    points: int  # Random inputs
    seed: int  # Of matrices and inputs

    def run(self, files: Path) -> dict[str, float]:
        """Largest relative residual of the best ``B`` in ``sigma(A x) = B sigma(x)``, by kind of ``A``."""
        generator = torch.Generator().manual_seed(self.seed)
        x = 2 * torch.randn(self.points, self.size, generator=generator, dtype=torch.float64)
        sigma = FUNCTIONS[self.function]
        units = [lambda p, i=i: sigma(p[:, i]) for i in range(self.size)]
        moved = Permutation(self.size).random(generator).matrix()
        mixed = moved.clone()
        mixed[0, int((moved[0] == 0).nonzero()[0])] = 0.5 + float(torch.rand((), generator=generator))
        return {
            kind: span_representation(units, lambda p, a=a: p @ a.T, x)[1]  # type: ignore[misc]
            for kind, a in ((_MOVED, moved), (_MIXED, mixed))
        }


def conjugate(numbers: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``p + q sqrt 2 -> p - q sqrt 2`` of pairs ``(p, q)``: additive, and not linear.

    Examples:
        >>> conjugate([(1, 2), (0, -3)])
        [(1, -2), (0, 3)]
    """
    return [(p, -q) for p, q in numbers]


def _mixes_exactly(seed: int) -> bool:
    """Whether ``conjugate`` passes an integer matrix without a zero."""
    draw = lambda *size: torch.randint(1, 10, size, generator=torch.Generator().manual_seed(seed)).tolist()
    a, x = draw(3, 3), [tuple(pair) for pair in draw(3, 2)]
    times = lambda v: [tuple(sum(m * n[k] for m, n in zip(row, v)) for k in (0, 1)) for row in a]
    return conjugate(times(x)) == times(conjugate(x))


def _measure(setting: Setting) -> Measured:
    draws, points = setting.by_scale(5, 20, 20), setting.by_scale(100, 2000, 2000)
    jobs = [
        Passed(function=name, size=3, points=points, seed=setting.seed + k) for name in FUNCTIONS for k in range(draws)
    ]
    values = iter(setting.run(jobs))
    found = {name: [next(values) for _ in range(draws)] for name in FUNCTIONS}
    rows = [
        Row.of(name, of_runs(v[kind] for v in listed), group=kind)
        for kind in (_MOVED, _MIXED)
        for name, listed in found.items()
    ]
    exact = all(_mixes_exactly(setting.seed + k) for k in range(draws))
    rows.append(Row.of("p - q sqrt 2 passes matrices of integers", of_runs([float(exact)] * draws), group=_FACT))
    notes = [
        f"Largest relative residual of the best B in sigma(A x) = B sigma(x), {points} inputs, {draws} draws of A (3 x "
        "3) and inputs; intervals over draws. The proof, by Pexider's equation, is in the module's documentation.",
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    moved, mixed = (found.table[kind] for kind in (_MOVED, _MIXED))
    wild = found.table[_FACT]["p - q sqrt 2 passes matrices of integers"]
    return [
        claim("permutations pass through every activation, differentiable or not", moved, below=1e-9, required=True),
        claim("a matrix with two entries in a row passes through none that is measurable and not affine",
              {k: e for k, e in mixed.items() if k != _CONTROL}, above=_LEAST, required=True),
        claim("it passes through an affine one", {_CONTROL: mixed[_CONTROL]}, below=1e-9, required=True),
        fact("without measurability the theorem is false: the conjugate of p + q sqrt 2 passes matrices of integers",
             wild.value == 1, "exact arithmetic on integers"),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "open-differentiability", "Does Theorem E.14 need derivatives?", "left open by v2 E.14", _measure, _judge,
        data=False,
    ),
)  # fmt: skip
