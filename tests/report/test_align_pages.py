"""Pages of alignments and barriers: what they hold, hostile names, and the page in a browser."""

import pytest
import torch
from page_blocks import figures
from torch import nn

import intertwine as iw
from intertwine.merging import Barrier, Curve
from intertwine.report import page_of, render


def made_barrier(names=("a", "b", "c"), batch_norms=True):
    pairs = [(names[i], names[j]) for i in range(len(names)) for j in range(i)]
    ratios = tuple(k / 4 for k in range(5))
    curves = []
    for k in range(len(pairs)):
        for path, height in (("direct", 1.0 + 0.1 * k), ("aligned", 0.1)):
            for recalibrated in (False, True) if batch_norms else (False,):
                loss = tuple(0.2 + height * t * (1 - t) * 4 for t in ratios)
                curves.append(Curve(k, path, recalibrated, loss, tuple(1 - 0.3 * x for x in loss)))
    settings = {"networks": [{"name": n} for n in names], "data": {"name": "digits"}, "command": "intertwine barrier"}
    return Barrier(ratios, tuple(pairs), tuple(curves), "weights", "linear", 100, settings)


@pytest.fixture(scope="module")
def alignment():
    torch.manual_seed(0)
    a, b = (nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 12), nn.ReLU(), nn.Linear(12, 2)) for _ in "ab")
    return iw.align(a, b, torch.zeros(2, 4), kinds={"permutation"})


def test_a_page_of_an_alignment_shows_where_units_went(alignment):
    page = page_of(alignment)
    drawn = {figure.title: figure for figure in figures(page)}
    dots = [figure for figure in figures(page) if "place in A" in str(figure.spec)]
    order = alignment.transformation["0.weight[0]"].permutation
    assert list(dots[0].spec["data"][0]["y"]) == order.tolist()
    cosines = drawn["How well units fit, space by space"].spec["data"][0]["z"]
    best = alignment.quality["0.weight[0]"].max().item()
    assert cosines[0][0] == pytest.approx(best, abs=1e-4) and [len(row) for row in cosines] == [2] * 12
    assert f"{alignment.after:.3g}" in page.blocks[0].text
    assert "<h1>Two networks in one basis</h1>" in render(page)


def test_networks_without_units_to_move_have_a_page():
    found = iw.align(nn.Linear(4, 2), nn.Linear(4, 2), torch.zeros(2, 4))
    assert "0 spaces, 0 units" in render(page_of(found))


def test_a_page_of_a_barrier_shows_curves_and_intervals():
    page = page_of(made_barrier())
    loss, accuracy = figures(page)
    assert [trace["name"] for trace in loss.spec["data"] if "name" in trace] == [
        "direct", "direct, batch norms recalibrated", "aligned", "aligned, batch norms recalibrated",
    ]  # fmt: skip
    assert accuracy.title.startswith("Accuracy")
    assert "9% of it" in page.blocks[0].text
    text = render(page)
    assert "1.100" in text and "Pair by pair" in text and "intertwine barrier" in text


def test_one_pair_and_no_alignment_have_pages():
    one = made_barrier(("a", "b"), batch_norms=False)
    assert "Pair by pair" not in render(page_of(one))
    direct = Barrier(one.ratios, one.pairs, one.curves[:1], None, "linear", 10)
    assert "without alignment" in render(page_of(direct))
    aligned = Barrier(one.ratios, one.pairs, one.curves[1:], "transport", "linear", 10)
    assert "after alignment" in render(page_of(aligned))


def test_hostile_names_stay_text(hostile):
    text = render(page_of(made_barrier((hostile[0], "b"))))
    assert hostile[0] not in text


@pytest.mark.browser
def test_every_plot_is_drawn_quietly(alignment, visit):
    """Of the alignment; a barrier's page has curves alone, as that of stitched networks."""
    page = visit(alignment)
    assert page.locator(".plot[data-drawn] .main-svg").count() >= 6
    assert page.said == []
