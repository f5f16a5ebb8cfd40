"""Tables 2 and 4 of paper 1 with chance taken out: which of their statements are about networks, which about measures?

Widths differ between layers, and so does what unrelated features score: 0.3 to 0.65 for Procrustes. The rows "chance
taken out" of both tables' experiments are on a scale where chance is 0 and equality 1. Nothing is measured anew here;
the tables' statements are judged again on those rows.
"""

from dataclasses import replace

from ..estimates import decreases
from ..experiment import Experiment, Measured, Setting
from ..paper1 import dissimilarity
from ..reproduction import Reproduction
from ..verdicts import Claim, claim
from ..zoos import trained

_TABLES = {"table2-dissimilarity": "Table 2", "table4-constant-width": "Table 4"}
_CALIBRATED = ", chance taken out"


def _judge(found: Reproduction) -> list[Claim]:
    claims: list[Claim] = []
    for table in _TABLES.values():
        networks = trained(found, only=table)
        by = {g.partition(", ")[0]: e for g, e in found.table.items() if g.endswith(f"{table} with chance taken out")}
        own = dissimilarity.claims_of(by, networks, constant_width=table == "Table 4")
        claims += [replace(c, text=f"{table}, with chance taken out: {c.text}") for c in own]
        raw = found.table.get(f"g_relu_procrustes, {table} as it is", {})
        order = sorted(raw, key=lambda k: -raw[k].value)
        same = decreases({k: by["g_relu_procrustes"][k] for k in order})
        text = f"{table}: G_ReLU-Procrustes puts the layers in the same order with and without chance"
        claims.append(claim(text, same, above=0, trained=networks))
    return claims


def _measure(setting: Setting) -> Measured:
    rows, notes = [], []
    for one in dissimilarity.EXPERIMENTS:
        if setting.planned is not None and one.name in _TABLES:
            planned = one.plan(setting)
            setting.planned.zoos += planned.zoos
            setting.planned.jobs += planned.jobs
        elif one.name in _TABLES:
            found, table = one.measure(replace(setting, name=one.name)), _TABLES[one.name]  # finished jobs are found
            for row in found.rows:
                m = row.group.removesuffix(_CALIBRATED)
                if row.group.startswith("test accuracy"):
                    rows.append(replace(row, what=table))
                elif row.group.endswith(_CALIBRATED):
                    rows.append(replace(row, group=f"{m}, {table} with chance taken out"))
                elif row.group == "g_relu_procrustes":
                    rows.append(replace(row, group=f"{m}, {table} as it is", paper=None, spread=None))
            notes.append(f"{table}: {found.notes[0]}")
    notes.append("(score - c) / (1 - c) with c the 95 % quantile of scores after shuffling the examples of one side.")
    return Measured(rows, notes)


EXPERIMENTS = (
    Experiment(
        "open-chance", "Tables 2 and 4 with chance taken out", "left open by v2 Tables 2 and 4", _measure, _judge
    ),
)
