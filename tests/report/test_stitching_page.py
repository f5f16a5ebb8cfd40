"""The page of stitched networks: curves with error bars, maps as drawn, hostile names; drawn in a real browser."""

from dataclasses import replace

import pytest
import torch
from page_blocks import figures
from torch import nn

from intertwine.report import load_result, page_of, render
from intertwine.report.pages.stitching import headline
from intertwine.stitching import Recipe, StitchingStudy, StitchOptions, stitch

HOSTILE = "<script>alert(1)</script>"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.outer, self.head = (nn.Linear(*s) for s in ((4, 8), (8, 8), (8, 8), (8, 3)))
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        x = self.relu1(self.stem(x))
        return self.head(x + self.outer(self.relu2(self.inner(x))))


@pytest.fixture(scope="module")
def study():
    torch.manual_seed(0)
    a, b, x = Block(), Block(), torch.randn(90, 4)
    data = [(part, a(part).argmax(1)) for part in x.split(30)]
    families, both = ["g_relu", "full", "rank-1", "rank-4"], [Recipe(epochs=3, head_start=1), "direct"]
    named = StitchOptions(names=(HOSTILE, "B"))
    found = stitch(a, b, ["relu1", "relu2"], families, loader=data, method=both, options=named)
    settings = {"networks": [{"name": HOSTILE}], "data": {"name": "made"}, "command": f"stitch {HOSTILE}"}
    return replace(found, settings={**found.settings, **settings})


def test_curves_have_a_point_and_an_error_bar_for_every_layer(study):
    curves = [f for f in figures(page_of(study)) if f.title.startswith("Stitching penalty")]
    assert len(curves) == 2  # trained, and in closed form
    for figure in curves:
        shown = [t for t in figure.spec["data"] if "name" in t]
        assert [t["name"] for t in shown] == ["g_relu", "full", "rank-1", "rank-4"]
        for trace in shown:
            assert len(trace["x"]) == len(trace["y"]) == len(trace["error_y"]["array"]) == 2
    row = study.select(method="task_loss", family="full").table().iloc[0]
    full = curves[0].spec["data"][2]
    assert full["y"][0] == pytest.approx(100 * row["penalty"], abs=1e-3)
    assert full["error_y"]["arrayminus"][0] == pytest.approx(100 * (row["penalty"] - row["low"]), abs=1e-3)


def test_maps_are_drawn_with_the_closed_form_on_the_diagonal(study):
    drawn = [f for f in figures(page_of(study)) if "g_relu" in f.title and "closed form" in f.title]
    assert [f.title.split(",")[0] for f in drawn] == ["relu1", "relu2*"]
    direct = study.select(layer="relu1", family="g_relu", method="direct")
    (figure,) = [f for f in figures(page_of(direct)) if "as in closed form" in f.title]
    live = figure.spec["data"][1]
    assert direct.stitchings[0].pairing["index"] != list(range(8))
    if direct.stitchings[0].agreement == 1.0:
        assert live["x"] == live["y"]


def test_headline_names_the_first_and_the_best_family(study):
    assert headline(study).startswith("Read through g_relu maps, A's features cost B")
    alone = study.select(family="full")
    assert "the least" not in headline(alone) and "less than through any other" not in headline(alone)


def test_one_stitching_has_a_page_and_files_are_read_back(study, tmp_path):
    one = study.stitchings[0]
    assert one.to_html(tmp_path / "one.html").stat().st_size > 1000
    for result in (one, study):
        path = result.save(tmp_path / f"{type(result).__name__}.json")
        assert render(page_of(load_result(path))) == render(page_of(type(result).load(path)))
    assert isinstance(load_result(tmp_path / "StitchingStudy.json"), StitchingStudy)


def test_hostile_names_stay_text(study):
    assert HOSTILE not in render(page_of(study))


@pytest.mark.browser
def test_a_browser_draws_every_figure(study, visit):
    page = visit(study)
    assert page.locator(".main-svg").count() >= 4
    assert "as in closed form" in page.content()
