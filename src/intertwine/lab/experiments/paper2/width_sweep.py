"""The rate at which the tangent kernel converges to the path kernel: paper 2, theorems 2.1, 3.1, 3.2 and 3.3."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....gates import GatedNetwork, dgn, neural_path_kernel, neural_tangent_kernel
from ....gates.kernels.wide_limits import bernoulli_, ensemble_tangent_kernel
from ...statistics import Estimate
from ..experiment import Experiment, Findings
from ..plan import Design, MeasuredJob, row

_INPUTS, _DEPTH, _BLOCKS = 4, 3, 2
_NEAR = 0.2


class Distance(MeasuredJob):
    """One draw of gates and signs: how far the value network's tangent kernel is from its limit."""

    family: str  # Which theorem; a name among ``_MODELS``
    width: int  # Of every hidden layer
    examples: int  # Number of examples: the side of the kernel matrices
    seed: int  # Of gates and signs; the inputs are the same for all draws

    def run(self, files: Path) -> list[dict[str, Any]]:
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
        return [row("error", float((tangent - limit).norm() / limit.norm()))]


def slope(widths: Sequence[int], errors: Sequence[Sequence[float]]) -> Estimate:
    """Slope of ``log error`` in ``log width`` by least squares over all draws, which are independent.

    Examples:
        >>> round(slope([16, 64, 256], [[0.41, 0.39], [0.2, 0.21], [0.1, 0.1]]).value, 2)
        -0.5
    """
    from scipy.stats import linregress

    points = [(math.log(w), math.log(e)) for w, draws in zip(widths, errors) for e in draws]
    fit = linregress(*zip(*points))
    return Estimate(float(fit.slope), float(fit.stderr), len(points) - 2, len(points))


def _fully_connected(width: int) -> nn.Module:
    sizes = [_INPUTS] + [width] * (_DEPTH - 1)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1, bias=False))


def _convolutions(width: int) -> nn.Module:
    conv = lambda a, b: nn.Conv1d(a, b, 3, padding=1, padding_mode="circular", bias=False)
    pool = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 1, bias=False)]
    return nn.Sequential(conv(1, width), nn.ReLU(), conv(width, width), nn.ReLU(), *pool)


def _residual(width: int) -> nn.Module:
    """The network of the paper's figure 1: between a first and a last part, blocks with ReLUs inside the branches."""

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


def _limit(family: str, network: nn.Module, x: Tensor, sigma: float) -> Tensor:
    if family == "residual" and isinstance(network, GatedNetwork):
        *inside, last = network.gates(x)
        return ensemble_tangent_kernel(x, [last.bool()], [[g.bool()] for g in inside], sigma=sigma, depth=1,
                                       outer_depth=2)  # fmt: skip
    kernel = neural_path_kernel(network, x)
    positions = math.prod(x.shape[2:]) if family == "convolutions" else 1
    return _DEPTH * sigma ** (2 * (_DEPTH - 1)) / positions**2 * kernel  # type: ignore[operator]


def _plan(plan: Design) -> None:
    s = plan.setting
    draws, examples = s.by_scale(12, 8, 16), 8
    most = s.by_scale((512, 128, 256), (4096, 512, 1024), (4096, 1024, 2048))
    for family, low, high in zip(_MODELS, (32, 16, 32), most):
        widths = [2**k for k in range(low.bit_length() - 1, high.bit_length())]
        for width, seed in itertools.product(widths, range(draws)):
            # draws of different widths share nothing: each is a network of its own
            plan.add(Distance(family=family, width=width, examples=examples, seed=seed), f"{family}, width {width}",
                     f"{width}/{seed}")  # fmt: skip
    plan.note(
        f"Relative Frobenius error of {examples} x {examples} kernels, {draws} draws of fixed random gates and signs "
        "by assumption 2.1 with sigma = 1 / sqrt(width) (times the window); intervals are over draws. The paper states "
        "the limit without a rate; a slope of -0.5 is what sums over independent units give."
    )


def _analyse(found: Findings) -> None:
    fits = {}
    for family in _MODELS:
        arms = [arm for arm in found.values.arms("error") if arm.startswith(f"{family}, ")]
        errors = {arm.partition(", ")[2]: found.values.sample("error", arm) for arm in arms}
        found.show(family, errors)
        widths = [int(name.removeprefix("width ")) for name in errors]
        fits[family] = slope(widths, [list(sample.means.values()) for sample in errors.values()])
    found.show("slope in width", fits)
    for family, fit in fits.items():
        found.state(f"{family}: the error falls like 1 / sqrt(width)", {"slope in width": fit}, above=-0.5 - _NEAR,
                    below=-0.5 + _NEAR, required=True)  # fmt: skip


_TITLE, _WHERE = "The tangent kernel tends to the path kernel", "paper 2, theorems 2.1, 3.1, 3.2, 3.3"
EXPERIMENTS = (Experiment("p2-width-sweep", _TITLE, _WHERE, _plan, _analyse),)
