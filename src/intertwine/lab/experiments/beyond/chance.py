"""Tables 2 and 4 of paper 1 with chance taken out: which of their statements are about networks, which about measures?

Widths differ between layers, and so does what unrelated features score: 0.3 to 0.65 for Procrustes. The rows "chance
taken out" of both tables' experiments are on a scale where chance is 0 and equality 1. Nothing is measured anew here;
the tables' statements are checked again on those rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..experiment import Experiment, Setting
from ..registry import experiment
from ..reproduction import Claim, Reproduction, Row

__all__ = ["EXPERIMENTS", "claims_of"]

_TABLES = {"table2-dissimilarity": "Table 2", "table4-constant-width": "Table 4"}
_CALIBRATED = ", chance taken out"


def claims_of(
    table: str, scores: Mapping[str, Sequence[float]], calibrated: Mapping[str, Sequence[float]]
) -> list[Claim]:
    """The statements of a table, judged on calibrated scores.

    Args:
        table: Its name.
        scores: Mean scores by measure, layer by layer.
        calibrated: The same with chance taken out.
    """
    relu, rotated = calibrated["g_relu_procrustes"], calibrated["orthogonal_procrustes"]
    lowest, raw = relu.index(min(relu)), scores["g_relu_procrustes"]
    kept = {m: calibrated[m][-2] / max(calibrated[m][0], 1e-9) for m in ("g_relu_cka", "linear_cka")}
    order = lambda values: sorted(range(len(values)), key=lambda k: values[k])
    return [
        Claim(
            f"{table}: G_ReLU-Procrustes is below orthogonal Procrustes in every layer, with chance taken out too",
            all(r < o for r, o in zip(relu, rotated)),
            ", ".join(f"{r:.2f} and {o:.2f}" for r, o in zip(relu, rotated)),
        ),
        Claim(
            f"{table}: similarity still falls with depth, and rises again in the last layer",
            0 < lowest < len(relu) - 1,
            ", ".join(f"{r:.2f}" for r in relu),
        ),
        Claim(
            f"{table}: CKA still decays faster under G_ReLU than under rotations",
            kept["g_relu_cka"] < kept["linear_cka"],
            f"the last but one layer keeps {kept['g_relu_cka']:.2f} of the first, against {kept['linear_cka']:.2f}",
        ),
        Claim(
            f"{table}: G_ReLU-Procrustes puts the layers in the same order with and without chance",
            order(relu) == order(raw),
            f"raw {', '.join(f'{r:.2f}' for r in raw)}",
        ),
    ]


def _run(setting: Setting) -> Reproduction:

    rows: list[Row] = []
    claims: list[Claim] = []
    notes: list[str] = []
    for name, table in _TABLES.items():
        found = experiment(name).run(replace(setting, name=name))  # finished jobs are not run again
        means: dict[str, list[float]] = {}
        for row in found.rows:
            means.setdefault(row.group, []).append(row.ours or 0.0)
        scores = {group: values for group, values in means.items() if not group.endswith(_CALIBRATED)}
        calibrated = {group.removesuffix(_CALIBRATED): means[group] for group in means if group.endswith(_CALIBRATED)}
        claims += claims_of(table, scores, calibrated)
        rows += [
            replace(row, group=f"{row.group.removesuffix(_CALIBRATED)}, {table} with chance taken out")
            for row in found.rows
            if row.group.endswith(_CALIBRATED)
        ]
        notes.append(f"{table}: {found.notes[0]}")
    notes.append("(score - c) / (1 - c) with c the 95 % quantile of scores after shuffling the examples of one side.")
    return Reproduction(_NAME, _TITLE, _PAPERS, setting.scale, rows, claims, notes=notes)


_NAME, _TITLE, _PAPERS = "open-chance", "Tables 2 and 4 with chance taken out", "left open by v2 Tables 2 and 4"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run),)
