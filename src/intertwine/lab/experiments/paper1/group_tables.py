"""The exact statements: groups of activations (Table 1), sizes of families (E.7), GELU's error (E.2.1)."""

from ..experiment import Experiment, Measured, Setting
from ..reproduction import Row
from ..verdicts import fact

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
_WIDTHS = (16, 64, 128, 256, 512)


def _table_1(setting: Setting) -> Measured:
    import torch

    from ....groups import Intertwiner, intertwiner, table
    from ....groups.activations.known import named_activation
    from ....groups.activations.laws import equivariance_gap

    generator = torch.Generator().manual_seed(setting.seed)

    claims = []
    for name, wanted in TABLE_1.items():
        (row,) = table((name,))
        found = intertwiner(name)
        assert isinstance(found, Intertwiner)  # no gated activation is in the table
        element = found.group_for(5).random(generator)
        gap = equivariance_gap(named_activation(name).function, element.matrix(), found.phi(element).matrix())
        claims.append(
            fact(
                f"{name}: {wanted[0]}, phi(A) = {wanted[1]}",
                (row.group, row.phi) == wanted and gap < 1e-9,
                f"largest relative |sigma(A x) - phi(A) sigma(x)| of a random element: {gap:.1e}",
            )
        )
    return Measured(claims=claims)


def _counts(setting: Setting) -> Measured:
    from ....groups.capacity import g_relu_dim, log_count_g_relu, log_count_rank, rank_dim, rank_outnumbers, threshold

    eps, rows = 2.0**-10, list[Row]()
    for n in _WIDTHS:
        rows.append(Row("dim G_ReLU", float(g_relu_dim(n)), float(n), tolerance=0, group=f"{n} channels"))
        for rank in (1, 2, 4):
            exact = float(2 * n * rank - rank**2)
            rows.append(Row(f"dim rank {rank}", float(rank_dim(n, rank)), exact, tolerance=0, group=f"{n} channels"))
        rows.append(Row("log #G_ReLU", log_count_g_relu(n, eps, 1.0), group=f"{n} channels"))
        rows.append(Row("log #rank 1", log_count_rank(n, 1, eps, 1.0), group=f"{n} channels"))
        rows.append(Row("grid points from which rank 1 is larger", threshold(n), group=f"{n} channels"))
    larger = all(rank_outnumbers(n, r, 2.0 / n, 1.0) for n in _WIDTHS for r in (1, 2, 4))
    claims = [fact("on n grid points or more, every rank outnumbers G_ReLU", larger)]
    return Measured(
        rows, ["Counted on 2048 points for each coordinate, with the exact log n!; see groups.capacity."], claims=claims
    )


def _gelu(setting: Setting) -> Measured:
    import torch

    from ....groups import gelu_error, table
    from ....groups.activations.gelu import ASYMPTOTIC_SLOPE

    scales = torch.tensor(list(GELU), dtype=torch.float64)
    rows = [
        Row(f"a = {a:g}", float(e), group="root-mean-square of GELU(a x) - a GELU(x)")
        for a, e in zip(GELU, gelu_error(scales))
    ]
    x = torch.randn(400_000, generator=torch.Generator().manual_seed(setting.seed), dtype=torch.float64)
    f = torch.nn.functional.gelu
    sampled = [float((f(a * x) - a * f(x)).square().mean().sqrt()) for a in scales]
    worst = max(abs(s - row.ours) for s, row in zip(sampled, rows) if row.ours is not None)
    far = float(gelu_error(1e6)) / 1e6
    off = max(abs(float(e) - wanted) for e, wanted in zip(gelu_error(scales), GELU.values()))
    line = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    gap = (f(line) - line.relu()).abs()
    near, beyond = (float(gap[where].max()) for where in (line.abs() < 5, line.abs() >= 5))
    (row,) = table(("gelu",))
    claims = [
        fact("GELU and ReLU differ near 0 only (Fig. 17a)", beyond < 1e-5 < 0.1 < near,
             f"by up to {near:.2f} within 5 standard deviations, {beyond:.0e} beyond"),
        fact("GELU's group holds permutations only", row.group == "permutation matrices", row.group),
        fact("the closed form is the integral", off < 5e-5, f"largest difference {off:.1e}"),
        fact("sampling, as the paper does, gives the closed form", worst < 0.01, f"{worst:.1e}"),
        fact("the error vanishes at a = 1, not beside it", float(gelu_error(1.0)) < 1e-7 < float(gelu_error(0.9))),
        fact("it grows linearly", abs(far - ASYMPTOTIC_SLOPE) < 1e-6, f"slope {far:.5f}"),
    ]  # fmt: skip
    return Measured(rows, claims=claims)


EXPERIMENTS = (
    Experiment(
        "table1-groups",
        "Intertwiner groups of activations",
        "v2 Table 1 (v1 Fig. 4)",
        _table_1,
        None,
        ("smoke",),
        False,
    ),
    Experiment(
        "e7-counts", "How many maps a family of stitching layers holds", "v2 E.7", _counts, None, ("smoke",), False
    ),
    Experiment("fig17-gelu", "How far GELU is from homogeneous", "v2 E.2.1, Fig. 17", _gelu, None, ("smoke",), False),
)
