"""The rate at which the tangent kernel tends to the path kernel: paper 2, theorems 2.1, 3.1, 3.2 and 3.3."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ....gates import GatedNetwork, dgn, neural_path_kernel, neural_tangent_kernel
from ....gates.kernels import ensemble_tangent_kernel
from ....gates.networks import bernoulli_
from ...runs import Job
from ..estimates import Estimate, of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim

Family = Literal["fully connected", "convolutions", "residual"]

_INPUTS, _DEPTH, _BLOCKS = 4, 3, 2
_SLOPES, _NEAR = "slope in width", 0.2


class Distance(Job):
    """One draw of gates and signs: how far the value network's tangent kernel is from its limit."""

    family: Family  # Which theorem
    width: int  # Of every hidden layer
    examples: int  # Side of the kernels
    seed: int  # Of gates and signs; the inputs are the same for all draws

    def run(self, files: Path) -> float:
        """Relative Frobenius error ``|NTK - limit| / |limit|``; norms of matrices, since entries may be near 0."""
        shape = (1, 6) if self.family == "convolutions" else (_INPUTS,)
        x = torch.randn(self.examples, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = _MODELS[self.family](self.width).double()
        network = dgn(model, regime="fixed_random", seed=2 * self.seed).eval()
        window = 3 if self.family == "convolutions" else 1
        sigma = 1 / math.sqrt(self.width * window)
        bernoulli_(network.value, sigma, self.seed)
        names = [f"value.{name}" for name, _ in network.value.named_parameters()]
        tangent = neural_tangent_kernel(network, x, kind="trace", parameters=names)
        limit = _limit(self.family, network, x, sigma)
        return float((tangent - limit).norm() / limit.norm())


def slope(widths: Sequence[int], errors: Sequence[Sequence[float]]) -> Estimate:
    """Slope of ``log error`` in ``log width`` by least squares over all draws, which are independent.

    Examples:
        >>> print(slope([16, 64, 256], [[0.4, 0.4], [0.2, 0.2], [0.1, 0.1]]))
        -0.5
    """
    from scipy.stats import linregress, t

    points = [(math.log(w), math.log(e)) for w, draws in zip(widths, errors) for e in draws]
    fit = linregress(*zip(*points))
    half = float(t.ppf(0.975, len(points) - 2) * fit.stderr)
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half, len(points) - 1)


def _fully_connected(width: int) -> nn.Module:

    sizes = [_INPUTS] + [width] * (_DEPTH - 1)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1, bias=False))


def _convolutions(width: int) -> nn.Module:

    conv = lambda a, b: nn.Conv1d(a, b, 3, padding=1, padding_mode="circular", bias=False)
    pool = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 1, bias=False)]
    return nn.Sequential(conv(1, width), nn.ReLU(), conv(width, width), nn.ReLU(), *pool)


def _residual(width: int) -> nn.Module:
    """The paper's figure 1: blocks whose ReLUs are inside the branches, between a first and a last part."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(_INPUTS, width, bias=False), nn.Linear(width, 1, bias=False)
            self.branches = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(_BLOCKS))

        def forward(self, x: Tensor) -> Tensor:
            """Map inputs ``(N, 4)`` to ``(N, 1)``."""
            x = self.first(x)
            for branch in self.branches:
                x = x + branch(x.relu())
            return self.last(x.relu())

    return Residual()


_MODELS = {"fully connected": _fully_connected, "convolutions": _convolutions, "residual": _residual}


def _limit(family: Family, network: nn.Module, x: Tensor, sigma: float) -> Tensor:

    if family == "residual" and isinstance(network, GatedNetwork):
        *inside, last = network.gates(x)
        return ensemble_tangent_kernel(x, [last.bool()], [[g.bool()] for g in inside], sigma=sigma, depth=1,
                                       outer_depth=2)  # fmt: skip
    kernel = neural_path_kernel(network, x)
    positions = math.prod(x.shape[2:]) if family == "convolutions" else 1
    return _DEPTH * sigma ** (2 * (_DEPTH - 1)) / positions**2 * kernel  # type: ignore[operator]


def _sweep(setting: Setting) -> Measured:
    draws, examples = setting.by_scale(12, 8, 16), 8
    doubled = lambda low, high: tuple(2**k for k in range(int(math.log2(low)), int(math.log2(high)) + 1))
    widths: dict[Family, tuple[int, ...]] = {
        "fully connected": doubled(32, setting.by_scale(512, 4096, 4096)),
        "convolutions": doubled(16, setting.by_scale(128, 512, 1024)),
        "residual": doubled(32, setting.by_scale(256, 1024, 2048)),
    }
    rows, slopes = list[Row](), list[Row]()
    jobs = [
        Distance(family=family, width=width, examples=examples, seed=seed)
        for family, chosen in widths.items()
        for width in chosen
        for seed in range(draws)
    ]
    values = iter(setting.run(jobs))
    for family, chosen in widths.items():
        errors = [list(itertools.islice(values, draws)) for _ in chosen]
        rows += [Row.of(f"width {w}", of_runs(found), group=family) for w, found in zip(chosen, errors)]
        slopes.append(Row.of(family, slope(chosen, errors), group=_SLOPES))
    note = (
        f"Relative Frobenius error of {examples} x {examples} kernels, {draws} draws of fixed random gates and signs "
        "by assumption 2.1 with sigma = 1 / sqrt(width) (times the window); intervals are over draws. The paper states "
        "the limit without a rate; a slope of -0.5 is what sums over independent units give."
    )
    return Measured([*rows, *slopes], [note])


def _judge(found: Reproduction) -> list[Claim]:
    return [
        claim(
            f"{family}: the error falls like 1 / sqrt(width)",
            {_SLOPES: fit},
            above=-0.5 - _NEAR,
            below=-0.5 + _NEAR,
            required=True,
        )
        for family, fit in found.table[_SLOPES].items()
    ]


EXPERIMENTS = (
    Experiment(
        "p2-width-sweep", "The tangent kernel tends to the path kernel", "paper 2, theorems 2.1, 3.1, 3.2, 3.3", _sweep,
        _judge, data=False,
    ),
)  # fmt: skip
