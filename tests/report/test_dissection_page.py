"""The page of a dissection: headline, curves, wall of pictures, hostile names; drawn in a real browser."""

from dataclasses import replace

import pytest
import torch
from page_blocks import every_block
from torch import nn

from intertwine.dissection import Bases, Concept, Criterion, TensorConcepts, dissect
from intertwine.report import load_result, page_of, render, write_page

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, 3, 16, 16), dtype=torch.uint8, generator=g)
    blocks = torch.randint(-1, 4, (10, 2, 4, 4), generator=g)
    concepts = [Concept(HOSTILE, "kind"), Concept("b", "kind"), Concept("c", "<b>"), Concept("d", "<b>")]
    data = TensorConcepts(images, blocks.repeat_interleave(4, 2).repeat_interleave(4, 3), concepts, name="made <i>")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
    found = dissect(model, "1", data, Bases(seeds=2), pictures=3, criterion=Criterion(quantile=0.1))
    return replace(found, model=HOSTILE)


def test_the_page_has_curves_bars_and_a_wall_for_each_basis(found):
    seen = [block.kind for block in every_block(page_of(found).blocks)]
    assert seen.count("wall") == 3
    assert seen.count("figure") == 3


def test_headline_follows_the_interval(found):
    assert "of 6 units" in found.verdict
    assert {"falls": "loses", "rises": "gains", "undecided": "no clear difference"}[found.trend] in found.verdict
    arms = [a for a in found.arms if a.arm.alpha == 0 or a.arm.kind == "g_relu"]
    assert "No rotation was asked for" in replace(found, arms=tuple(arms)).verdict
    one = [a for a in found.arms if a.arm.seed == 0 and a.arm.kind == "rotation"]
    assert "one rotation tried" in replace(found, arms=tuple(one)).verdict


def test_headline_words_for_all_trends(found):
    def with_iou(own, turned):
        ious = [(own if a.arm.alpha == 0 else turned,) * 8 for a in found.arms]
        arms = [replace(a, iou=iou, concept=tuple(range(8))) for a, iou in zip(found.arms, ious)]
        turns = [a for a in arms if a.arm.kind == "rotation" and a.arm.alpha]
        eight = replace(found, channels=tuple(range(8)), concepts=found.concepts * 2)
        return replace(eight, arms=(*arms, *turns)).verdict  # four rotations: two equal ones decide nothing

    assert "loses detectors" in with_iou(0.5, 0.01)
    assert "gains detectors" in with_iou(0.01, 0.5)
    assert "no clear difference" in with_iou(0.5, 0.5)


def test_prediction_command_and_failed_equality_are_shown(found):
    said = replace(found, settings={**found.settings, "prediction": "so and so", "command": "intertwine dissect x"})
    text = render(page_of(said))
    assert "so and so" in text
    assert "intertwine dissect x" in text
    broken = [replace(a, iou=(0.9,) * 6) if a.arm.kind == "g_relu" else a for a in found.arms]
    assert "NOT as they are" in render(page_of(replace(found, arms=tuple(broken))))


def test_names_are_escaped_and_the_page_is_small(found, tmp_path):
    path = write_page(found, tmp_path / "page.html")
    text = path.read_text()
    assert HOSTILE not in text
    assert path.stat().st_size < 5_000_000
    saved = found.save(tmp_path / "results.json")
    assert render(page_of(load_result(saved))) == text


@pytest.mark.browser
def test_pictures_and_plots_appear_in_a_browser(found, visit):
    page = visit(found, viewport={"width": 1280, "height": 800})
    sizes = page.eval_on_selector_all(".wall img", "images => images.map(i => i.naturalWidth)")
    plots = page.eval_on_selector_all(".plot", "plots => plots.map(p => p.querySelectorAll('svg').length)")
    assert page.said == [] and all(url.startswith(("file:", "data:", "blob:")) for url in page.asked)
    assert len(sizes) >= 9 and min(sizes) > 50 and min(plots) > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
