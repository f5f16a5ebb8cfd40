"""Keep values here, and make all pages from them: ``python results/build.py [DIR/SCALE/NAME/values.parquet ...]``.

Values that ``intertwine reproduce`` wrote are kept as ``SCALE/NAME.parquet``. Of the values that are kept, and of
nothing else, this writes the page ``SCALE/NAME.md`` with its pictures, and of all of them the index ``README.md``; the
documentation shows them. Those of the scale smoke are fingerprints: by them results are valid or older than their code.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from intertwine._io import write_atomically, write_text
from intertwine.lab.experiments import SCALES, Claim, Map, Reproduction, Row, Values, experiments
from intertwine.report.pages.reproduce import Panel, panels

HERE = Path(__file__).parent
OLDER = "This result is older than its code: at smoke scale, today's gives other values."
_INTRODUCTION = """# Results

Every table and figure of both papers that was run here, with the paper's numbers where its text has them, and its
statements judged. The scale `small` is of other networks, fewer of them and less training than the papers': there only
the statements speak, not the numbers (mathematics is exact at any scale). CIFAR-10 is a **JPEG copy** (quality 75) of
the original images, which costs a few points of accuracy throughout.

`SCALE/NAME.parquet` holds every measured number, one row each; pages, intervals and verdicts follow from it alone
(`python results/build.py`, or `intertwine reproduce NAME --scale small --reanalyse --out results`). To judge a
statement yourself:

```python
import pandas as pd
from scipy import stats
values = pd.read_parquet("results/small/p2-table2.parquet")        # arm, network, partner, layer, statistic, value ...
values = values[values.statistic == "accuracy"]
by = values.groupby(["arm", "network"]).value.mean().unstack()     # one number for each network (mean over test blocks)
dnn, dgn = by.loc["vgg16 DNN"].dropna(), by.loc["vgg16 DGN(x, x)"].dropna()
print(dnn.mean() - dgn.mean())                                     # "DGN(x, x) loses about 3 points at most: below 4"
print(stats.ttest_ind(dnn - 0.04, dgn, equal_var=False, alternative="less").pvalue)   # networks alone, without images
```

A statement *holds* where its one-sided test says so at 5 %, adjusted for all statements of its page (Holm); it *does
not hold* where the opposite is that sure; otherwise it *cannot be told*, and the table below says how many networks
would tell it. The design of each test stands in the code of its experiment, which was committed before the run: numbers
by network where arms share networks (paired), Welch's test where they do not, all pairs with a jackknife over networks,
two one-sided tests where a paper says "equal", and the error of the test images added to accuracies. How often such
tests are wrong on planted data stands in `docs/statement-levels.md`. A statement about networks that do no
better than a trivial baseline, that did not train (by their accuracy, or by less than 80 % of the way from that
baseline to what the same networks reach that were trained longer), or that are all at the ceiling cannot be told.
"""


def main(files: Sequence[str]) -> None:
    """Keep new values; write all pictures and pages."""
    for file in files:
        values = Values.load(file)
        keep(values, HERE, str(values.frame["experiment"].iloc[0]))
    found = kept()
    for r in found:
        draw(r, HERE / r.scale / f"{r.name}.svg")
        if r.maps:
            draw_maps(r.maps, HERE / r.scale / f"{r.name}-maps.svg")
    for name, text in pages(found).items():
        write_text(HERE / name, text)


def keep(values: Values, home: Path, name: str) -> None:
    """Write values to the folder of their scale."""
    values.save(home / str(values.facts["scale"]) / f"{name}.parquet")


def kept() -> list[Reproduction]:
    """What is kept, in the order of ``intertwine reproduce``: mathematics at smoke scale, all else at larger ones."""
    found = []
    for scale in reversed(SCALES):
        for name, one in experiments().items():
            path = HERE / scale / f"{name}.parquet"
            if path.is_file() and (scale != "smoke" or tuple(one.scales) == ("smoke",)):
                found.append(one.page(Values.load(path)))
    return found


def is_older(r: Reproduction) -> bool:
    """Whether a result names another fingerprint than the one that is kept beside it."""
    path = HERE / "smoke" / f"{r.name}.parquet"
    return r.scale != "smoke" and path.is_file() and Values.load(path).digest() != r.facts.get("fingerprint")


def pages(found: Sequence[Reproduction]) -> dict[str, str]:
    """The index and a page for each result as Markdown, by file."""
    return {
        "README.md": index(found),
        **{f"{r.scale}/{r.name}.md": page(r, OLDER if is_older(r) else "") for r in found},
    }


def index(found: Sequence[Reproduction]) -> str:
    """What there is, by paper, with verdicts, and what cannot be told."""
    parts = [_INTRODUCTION, counts(found) + "\n"]
    for title, chosen in (
        ("Paper 1", lambda p: not p.startswith("paper 2")),
        ("Paper 2", lambda p: p.startswith("paper 2")),
    ):
        parts += [f"## {title}\n", table(["what", "papers", "scale", "hours", "verdict"], [
            [f"[{r.title}]({r.scale}/{r.name}.md)", r.papers, _where(r), f"{r.facts.get('hours', 0):.2f}",
             r.verdict + "; **older than its code**" * is_older(r)]
            for r in found if chosen(r.papers)
        ])]  # fmt: skip
        missing = [e for e in experiments().values() if chosen(e.papers) and e.name not in {r.name for r in found}]
        if missing:
            parts.append("\nNot run yet: " + "; ".join(f"{e.title} ({e.papers}, `{e.name}`)" for e in missing) + ".")
        parts.append("")
    return "\n".join([*parts, untold(found), hours(found), ""])


def counts(found: Sequence[Reproduction]) -> str:
    """How many statements hold, do not, and cannot be told."""
    verdicts = Counter(c.verdict for r in found for c in r.statements)
    words = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}
    said = ", ".join(f"{verdicts[verdict]} {word}" for verdict, word in words.items())
    return f"Of {sum(verdicts.values())} statements {said}."


def untold(found: Sequence[Reproduction]) -> str:
    """The statements that cannot be told, each with the networks and hours that would tell it."""
    rows = []
    for r in found:
        for c in r.statements:
            if c.held is None:
                needed, hours = "", ""
                if c.needed and c.networks:
                    needed = f"{c.needed} (had {c.networks})"
                    hours = f"{r.facts.get('hours', 0) * c.needed / c.networks:.1f}"
                rows.append([f"[{r.name}]({r.scale}/{r.name}.md)", c.text, c.detail, c.why, needed, hours])
    head = ["experiment", "statement", "effect and interval", "why", "networks needed", "hours needed"]
    words = "Networks are those that tell it with power 0.8 if the numbers are what they seem; empty where none would."
    return f"## What cannot be told\n\n{words}\n\n{table(head, rows)}" if rows else ""


def hours(found: Sequence[Reproduction]) -> str:
    """What ``--dry-run`` said before the first run (``planned.csv``), and what each run took."""
    with (Path(__file__).parent / "planned.csv").open(encoding="utf-8", newline="") as file:
        planned = list(csv.DictReader(file, delimiter=";"))
    took = {r.name: float(r.facts.get("hours", 0)) for r in found}
    rows = [[p["experiment"], p["networks"], p["jobs"], p["MiB"], p["hours"],
             f"{took[p['experiment']]:.2f}" if p["experiment"] in took else ""] for p in planned]  # fmt: skip
    said, true = (sum(float(row[k] or 0) for row in rows if row[5]) for k in (4, 5))
    words = (
        "Hours of one process: said by `--dry-run` before the first run (0 where no job could be timed), and taken. "
        "Networks that experiments share are counted by each. "
        f"Those that were run: {said:.1f} hours said, {true:.1f} taken."
    )
    head = ["experiment", "networks", "jobs", "MiB", "hours said before", "hours taken"]
    return f"\n## Hours\n\n{words}\n\n{table(head, rows)}"


def _where(r: Reproduction) -> str:
    """Scale and data."""
    concepts = str(r.facts.get("concepts", ""))
    data = "CamVid" if concepts.startswith("parquet") else str(r.facts.get("data", ""))
    return ", ".join(filter(None, [r.scale, {"cifar10": "CIFAR-10"}.get(data, data)]))


def page(r: Reproduction, note: str = "", values: str = "") -> str:
    """One experiment.

    Args:
        r: Its analysis.
        note: What stands in front of the other notes.
        values: Where its values lie, from the page.
    """
    values = values or f"{r.name}.parquet"
    parts = [
        f"# {r.title}",
        f"[All results](../README.md) · {r.papers} · scale `{r.scale}` · [values]({values})",
        f"**{r.verdict[:1].upper()}{r.verdict[1:]}.**",
    ]
    if r.claims:
        head = ["statement", "here", "judged by", "p", "p (Holm)"]
        parts.append(table(head, [[c.text, _said(c), c.detail, _p(c.p), _p(c.adjusted)] for c in r.claims]))
    layout = panels(r)
    if any(panel.measured for panel in layout):
        parts.append(f"![{r.title}]({r.name}.svg)")
    if r.maps:
        parts.append(f"![{r.title}: maps]({r.name}-maps.svg)")
    parts += [folded(panel) if panel.measured else panel_table(panel) for panel in layout]
    parts.append("\n".join(f"- {line}" for line in filter(None, [note, *r.notes])))
    facts = ", ".join(f"{key} {value}" for key, value in r.facts.items())
    return "\n\n".join([*filter(None, parts), f"Made with: {facts}.\n"])


def _said(c: Claim) -> str:
    return c.verdict + f": {c.why}" * bool(c.why) + " (a check of the run, no statement)" * c.check


def _p(p: float | None) -> str:
    return "" if p is None else "< 1e-4" if p < 1e-4 else f"{p:.2g}"


def folded(panel: Panel) -> str:
    """Numbers that a picture shows already."""
    title = f"Numbers: {panel.title}" if panel.title else "Numbers"
    return f'<details markdown="1"><summary>{title}</summary>\n\n{panel_table(panel)}\n\n</details>'


def panel_table(panel: Panel) -> str:
    """Points down, groups across, the paper's numbers beside ours."""
    columns: dict[str, list[str]] = {panel.title: list(panel.points)}
    for name, rows in panel.groups.items():
        if any(row.paper is not None for row in rows):
            columns[f"{name} paper".strip()] = [row.printed for row in rows]
        columns[f"{name} ours".strip()] = [row.shown for row in rows]
    return table(list(columns), list(zip(*columns.values())))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    safe = lambda cells: "| " + " | ".join(str(c).replace("|", "&#124;") for c in cells) + " |"
    return "\n".join([safe(head), "|" + "---|" * len(head), *map(safe, rows)])


def draw(r: Reproduction, path: Path) -> None:
    """All panels that are series, side by side; the paper's numbers dashed."""
    drawn_panels = [panel for panel in panels(r) if panel.measured]
    if not drawn_panels:
        return
    columns = min(len(drawn_panels), 2)
    lines = -(-len(drawn_panels) // columns)

    def drawn(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(lines, columns, figsize=(6 * columns, 4 * lines), squeeze=False)
        for ax in axes.flat[len(drawn_panels) :]:
            ax.axis("off")
        for panel, ax in zip(drawn_panels, axes.flat):
            _panel(ax, panel, r.title)
        return figure

    _write(path, drawn)


def _panel(ax: Any, panel: Panel, title: str) -> None:
    for k, (name, rows) in enumerate(panel.groups.items()):
        shift = 0.0 if panel.ordered else (k - (len(panel.groups) - 1) / 2) * min(0.12, 0.7 / len(panel.groups))
        _series(ax, rows, name, shift, panel.ordered)
    ax.set_xticks(range(len(panel.points)), panel.points, rotation=60, ha="right", fontsize=7)
    ax.set_title(panel.title or (next(iter(panel.groups)) if len(panel.groups) == 1 else title), fontsize=9)
    ax.grid(alpha=0.3)
    if len(ax.get_legend_handles_labels()[0]) > 1:
        ax.legend(fontsize=7, framealpha=0.5)


def draw_maps(maps: Sequence[Map], path: Path) -> None:
    """Layer-by-layer matrices side by side, the first layer at the lower left as in the papers."""

    def drawn(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(1, len(maps), figsize=(4 * len(maps), 4), squeeze=False)
        for one, ax in zip(maps, axes.flat):
            shown = ax.imshow(one.values, origin="lower", cmap="magma")
            at = range(len(one.layers))
            ax.set_xticks(at, one.layers, rotation=90, fontsize=5)
            ax.set_yticks(at, one.layers, fontsize=5)
            ax.set_title(one.title, fontsize=8)
            figure.colorbar(shown, ax=ax, shrink=0.7)
        return figure

    _write(path, drawn)


def _write(path: Path, drawn: Callable[[Any], Any]) -> None:
    """The same picture from the same numbers, with letters as letters."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure = drawn(pyplot)
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="svg", metadata={"Date": None}))
    pyplot.close(figure)


def _series(ax: Any, rows: Sequence[Row], name: str, shift: float, ordered: bool) -> None:
    """One group: a line with a band where points have an order, else points with bars; the paper's numbers beside."""
    at = [k + shift for k in range(len(rows))]
    ours = [row.ours for row in rows]
    style = "-o" if ordered else "o"
    (line,) = ax.plot(at, ours, style, markersize=3 if ordered else 5, label=name or "ours")
    if all(row.low is not None and row.high is not None for row in rows):
        low, high = [row.low for row in rows], [row.high for row in rows]
        if ordered:
            ax.fill_between(at, low, high, alpha=0.15, lw=0)
        else:
            ax.vlines(at, low, high, color=line.get_color(), lw=1)
    known = [(x, row.paper) for x, row in zip(at, rows) if row.paper is not None]
    if known:
        ax.plot(*zip(*known), "--" if ordered else "_", color=line.get_color(), lw=1, markersize=12,
                label=f"{name}, paper".lstrip(", "))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
