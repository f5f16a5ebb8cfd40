"""The exact statements: groups of activations (Table 1), sizes of families (E.7), GELU's error (E.2.1)."""

from pathlib import Path
from typing import Any

import torch

from ....groups import Intertwiner, capacity, gelu_error, intertwiner, table
from ....groups.activations import named_activation
from ....groups.intertwiner_laws import ASYMPTOTIC_SLOPE, equivariance_gap
from ...statistics import Estimate
from ..experiment import Experiment, Findings
from ..plan import Design, MeasuredJob, row
from ..reproduction import Row

# Table 1 of version 2 (Fig. 4 of version 1): activation -> group and phi, in the words of groups.table
TABLE_1 = {
    "identity": ("all invertible matrices", "A"),
    "sigmoid": ("permutation matrices", "A"),
    "relu": ("matrices P D, D with positive entries", "A"),
    "leaky_relu:0.01": ("matrices P D, D with positive entries", "A"),
    "rbf": ("matrices P D, D with entries -1 and 1", "abs(A)"),
    "power:2": ("matrices P D, D with nonzero entries", "abs(A)^2 (every entry)"),
}
# The integral of E.22 by quadrature, rounded; the paper shows a curve without numbers
GELU = {0.25: 0.0650, 0.5: 0.0687, 1.0: 0.0, 2.0: 0.1767, 4.0: 0.4762, 10.0: 1.2611}
_WIDTHS, _RANKS = (16, 64, 128, 256, 512), (1, 2, 4)
_ERROR, _FAR = "root-mean-square of GELU(a x) - a GELU(x)", 1e6


class Groups(MeasuredJob):
    """Each activation's group: whether it is the printed one, and how well a random element satisfies its law."""

    seed: int  # Of the element

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows by activation: largest relative ``|sigma(A x) - phi(A) sigma(x)|``, and 1 if the group is another."""
        generator, rows = torch.Generator().manual_seed(self.seed), []
        for name, wanted in TABLE_1.items():
            (said,) = table((name,))
            found = intertwiner(name)
            assert isinstance(found, Intertwiner)  # no gated activation is in the table
            element = found.group_for(5).random(generator)
            gap = equivariance_gap(named_activation(name).function, element.matrix(), found.phi(element).matrix())
            told = {"gap": gap, "other than printed": (said.group, said.phi) != wanted}
            rows += [row(what, float(value), layer=name) for what, value in told.items()]
        return rows


class Counts(MeasuredJob):
    """Dimensions and sizes of families of stitching layers."""

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows by width: dimensions, logarithms of sizes, and whether each rank outnumbers G_ReLU."""
        c, eps, rows = capacity, 2.0**-10, []
        for n in _WIDTHS:
            told: dict[str, Any] = {
                "dim G_ReLU": c.g_relu_dim(n), **{f"dim rank {r}": c.rank_dim(n, r) for r in _RANKS},
                "log #G_ReLU": c.log_count_g_relu(n, eps, 1.0), "log #rank 1": c.log_count_rank(n, 1, eps, 1.0),
                "grid points from which rank 1 is larger": c.threshold(n),
                "every rank is larger": min(c.rank_outnumbers(n, r, 2.0 / n, 1.0) for r in _RANKS),
            }  # fmt: skip
            rows += [row(what, float(value), layer=f"{n} channels") for what, value in told.items()]
        return rows


class GeluError(MeasuredJob):
    """GELU's error under scales, in closed form and sampled."""

    seed: int  # Of the sample

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Errors by scale, and how far GELU is from ReLU near 0 and beyond."""
        f = torch.nn.functional.gelu
        x = torch.randn(400_000, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        rows = []
        for a in (*GELU, 0.9, _FAR):
            rows.append(row("error", float(gelu_error(a)), layer=f"a = {a:g}"))
            if a in GELU:
                sampled = (f(a * x) - a * f(x)).square().mean().sqrt()
                rows.append(row("sampled", float(sampled), layer=f"a = {a:g}"))
        line = torch.linspace(-12, 12, 4801, dtype=torch.float64)
        gap = (f(line) - line.relu()).abs()
        (said,) = table(("gelu",))
        told: dict[str, Any] = {"near": gap[line.abs() < 5].max(), "beyond": gap[line.abs() >= 5].max(),
                "permutations only": said.group == "permutation matrices"}  # fmt: skip
        return [*rows, *(row(what, float(value)) for what, value in told.items())]


def _analyse_groups(found: Findings) -> None:
    for name, (group, phi) in TABLE_1.items():
        numbers = {what: Estimate(found.values.number(s, layer=name), 0.0) for what, s in
                   (("largest relative |sigma(A x) - phi(A) sigma(x)| of a random element", "gap"),
                    ("groups other than printed", "other than printed"))}  # fmt: skip
        found.state(f"{name}: {group}, phi(A) = {phi}", numbers, below=1e-9, required=True)


def _plan_counts(plan: Design) -> None:
    plan.add(Counts())
    plan.note("Counted on 2048 points for each coordinate, with the exact log n!; see groups.capacity.")


def _analyse_counts(found: Findings) -> None:
    for n in _WIDTHS:
        group = f"{n} channels"
        exact = {"dim G_ReLU": n, **{f"dim rank {r}": 2 * n * r - r**2 for r in _RANKS}}
        for what in (*exact, "log #G_ReLU", "log #rank 1", "grid points from which rank 1 is larger"):
            ours, paper = found.values.number(what, layer=group), exact.get(what)
            how = {} if paper is None else {"paper": float(paper), "tolerance": 0.0}
            found.rows.append(Row(what, ours, group=group, **how))
    larger = min(found.values.number("every rank is larger", layer=f"{n} channels") for n in _WIDTHS)
    found.fact("on n grid points or more, every rank outnumbers G_ReLU", larger, above=0.5)
    found.notes.append(
        "All numbers come from formulas: equal dimensions show that groups.capacity has the paper's, "
        "n and 2 n r - r^2. A separate test (5 channels) checks that these are ranks of Jacobians."
    )


def _analyse_gelu(found: Findings) -> None:
    of = lambda what, a: found.values.number(what, layer=f"a = {a:g}")
    found.show(_ERROR, {f"a = {a:g}": Estimate(of("error", a), 0.0) for a in GELU})
    near, beyond = found.values.number("near"), found.values.number("beyond")
    found.fact("GELU and ReLU differ near 0 only (Fig. 17a): beyond 5 standard deviations 10,000 times less",
               beyond / near, below=1e-4)  # fmt: skip
    found.fact("GELU's group holds permutations only", found.values.number("permutations only"), above=0.5)
    found.fact("the closed form is the integral", max(abs(of("error", a) - e) for a, e in GELU.items()), below=5e-5)
    worst = max(abs(of("sampled", a) - of("error", a)) for a in GELU)
    found.fact("sampling, as the paper does, gives the closed form", worst, below=0.01)
    found.fact("the error vanishes at a = 1, not beside it", of("error", 1.0) / of("error", 0.9), below=1e-5)
    found.fact("it grows linearly", abs(of("error", _FAR) / _FAR - ASYMPTOTIC_SLOPE), below=1e-6)


EXPERIMENTS = (
    Experiment("table1-groups", "Intertwiner groups of activations", "v2 Table 1 (v1 Fig. 4)",
               lambda plan: plan.add(Groups(seed=plan.setting.seed)), _analyse_groups, ("smoke",)),
    Experiment("e7-counts", "How many maps a family of stitching layers holds", "v2 E.7", _plan_counts, _analyse_counts,
               ("smoke",)),
    Experiment("fig17-gelu", "How far GELU is from homogeneous", "v2 E.2.1, Fig. 17",
               lambda plan: plan.add(GeluError(seed=plan.setting.seed)), _analyse_gelu, ("smoke",)),
)  # fmt: skip
