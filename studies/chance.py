"""Tables 2 and 4 of paper 1 with chance taken out: which of their statements are about networks, which about measures?

Widths differ between layers, and so does what unrelated features score: 0.3 to 0.65 for Procrustes. Nothing is measured
anew here: the tables' own jobs also give scores on a scale where chance is 0 and equality 1, ``(score - c) / (1 - c)``
with ``c`` the 95 % quantile of scores after shuffling the examples of one side. The tables' statements on layers are
judged again on those.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from intertwine.lab.experiments import Design, Experiment, Findings, experiment
from intertwine.lab.statistics import Sample

TABLES = {"Table 2": "table2-dissimilarity", "Table 4": "table4-constant-width"}
CHANCE = ", chance taken out"
RELU, ROTATED, RELU_CKA, CKA = "g_relu_procrustes", "orthogonal_procrustes", "g_relu_cka", "linear_cka"


def _plan(plan: Design) -> None:
    for table, name in TABLES.items():
        own = experiment(name).planned(plan.setting)
        plan.zoos += [replace(zoo, arm=table) for zoo in own.zoos]
        for task in own.tasks:
            if task.columns["partner"]:
                plan.add(task.job, table, task.columns["network"], task.columns["partner"])
    plan.baseline()


def _analyse(found: Findings) -> None:
    for table in TABLES:
        by = {m: found.values.by_layer(m + CHANCE, table) for m in (RELU, ROTATED, RELU_CKA, CKA)}
        for m, one in by.items():
            found.show(f"{m}, {table} with chance taken out", one)
        _state(found, table, by)
    found.accuracies()


def _state(found: Findings, table: str, by: Mapping[str, Mapping[str, Sample]]) -> None:
    guard, (*before, last), constant = found.guard(table), list(by[RELU]), table == "Table 4"
    state = lambda text, effects: found.state(f"{table}, with chance taken out: {text}", effects, above=0, guard=guard)
    two = {"G_ReLU": by[RELU], "orthogonal": by[ROTATED]}
    if not constant:  # whose own text claims neither
        state("distinct networks are less similar by G_ReLU- than by orthogonal Procrustes in every layer",
              {k: by[ROTATED][k] - by[RELU][k] for k in by[RELU]})  # fmt: skip
    state("both Procrustes similarities fall with depth, up to the last layer but one",
          {f"{name}, {b}": one[a] - one[b] for name, one in two.items() for a, b in pairwise(before)})  # fmt: skip
    rises = {name: one[last] - one[before[-1]] for name, one in two.items() if name == "orthogonal" or not constant}
    state(f"{'orthogonal Procrustes rises' if constant else 'both rise'} again in the last layer", rises)
    lost = {m: by[m][before[0]] - by[m][before[-1]] for m in (RELU_CKA, CKA)}
    state("CKA decays more with depth under G_ReLU than under rotations", lost[RELU_CKA] - lost[CKA])
    raw = found.values.by_layer(RELU, table, diagonal=True)
    order = sorted(raw, key=lambda k: -raw[k].mean)
    same = {f"{a} above {b}": by[RELU][a] - by[RELU][b] for a, b in pairwise(order)}
    state("G_ReLU-Procrustes puts the layers in the order in which it puts them with chance", same)


_TITLE = "Tables 2 and 4 with chance taken out"
STUDIES = (Experiment("open-chance", _TITLE, "left open by v2 Tables 2 and 4", _plan, _analyse),)
