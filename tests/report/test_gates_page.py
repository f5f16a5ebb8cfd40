"""The page of a network taken apart: what is on it, hostile names, drawn in a real browser."""

import io
from dataclasses import replace

import pytest
import torch
from page_blocks import every_block
from torch import nn

from intertwine.gates import dlgn, effective_maps, examine
from intertwine.report import load_result, page_of, render
from intertwine.report.pages.gates import input_picture, signed_picture, spread

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def study():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(),
        nn.Linear(8, 3),
    ).eval()  # fmt: skip
    x, labels = torch.randn(45, 1, 6, 6), torch.arange(45) % 3
    features = effective_maps(dlgn(model), x[:1], positions="centre")
    found = examine(model, x, labels, [HOSTILE, "b", "c"], kernel_examples=12)
    found = replace(found, features=features, model=HOSTILE)
    accuracies = [
        {"network": HOSTILE, "gates": "its own", "value network is given": "x", "test accuracy": 0.9, "parameters": 5},
        {"network": "DLGN(x, 1)", "gates": "of a linear network", "value network is given": "1",
         "test accuracy": 0.875, "parameters": 10, "epochs": 2},
        {"network": "DGN(x, x)", "gates": "learnt", "value network is given": "x", "test accuracy": None,
         "parameters": 10, "epochs": 0},
    ]  # fmt: skip
    other = {"name": "B", "npk alignment": 0.5, "spaces": [
        {"space": "0.weight[0]", "layers": ["1"], "agreement": 0.9, "before": 0.5, "ambiguous": 0}]}  # fmt: skip
    settings = {**found.settings, "accuracies": accuracies, "other": other, "command": "intertwine gates", "data": {}}
    return replace(found, settings=settings)


def kinds(study):
    return [block.kind for block in every_block(page_of(study).blocks)]


def test_everything_is_on_the_page(study):
    seen = kinds(study)
    assert seen.count("wall") == 3  # two layers of features and the input
    assert seen.count("figure") == 1 + 1 + 2 + 2 + 1 + 2  # accuracies, rates, kernels, base kernels, alignment, shared
    text = render(page_of(study))
    assert "87.50%" in text and "not trained" in text and "Beside B" in text
    assert HOSTILE not in text


def test_headline_says_what_was_measured(study):
    said = study.verdict
    assert "90.0% of test examples, its best gated version (DLGN(x, 1)) on 87.5%" in said
    assert f"{study.alignments['path kernel']['tangent kernel']:.2f}" in said
    assert "gated version" not in replace(study, settings={}).verdict


def test_a_study_comes_back_and_has_the_same_page(study, tmp_path):
    again = load_result(study.save(tmp_path / "results.json"))
    assert render(page_of(again)) == render(page_of(study))
    assert str(again) == str(study)


def test_deep_networks_have_tabs_forspread_layers():
    names = [f"layer{i}" for i in range(19)]
    assert spread(names[:3]) == names[:3]
    assert spread(names, 3) == ["layer0", "layer9", "layer18"]
    assert len(spread(names)) == 6 and spread(names)[0] == "layer0" and spread(names)[-1] == "layer18"


def test_inputs_that_are_no_images_have_no_pictures(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    study = examine(model, torch.randn(60, 5), torch.arange(60) % 3, kernel_examples=12)
    assert "wall" not in kinds(study)
    assert study.to_html(tmp_path / "page.html").stat().st_size > 1000


def test_pictures_show_signs_and_sizes():
    import base64

    import numpy as np
    from PIL import Image

    read = lambda text: np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), dtype=int)
    weights = torch.tensor([[[1.0, -1.0], [0.0, 0.5]]])
    pixels = read(signed_picture(weights))
    assert pixels.shape == (128, 128, 3)
    red, blue, white = pixels[32, 32], pixels[32, 96], pixels[96, 32]
    assert red[0] > red[2] + 80 and blue[2] > blue[0] + 80 and white.min() > 230
    grey = read(input_picture(weights))
    assert grey[32, 32].min() > 240 and grey[32, 96].max() < 15


@pytest.mark.browser
def test_the_page_in_a_browser(study, visit):
    page = visit(study)
    assert page.evaluate("[...document.querySelectorAll('.wall img')].every((i) => i.naturalWidth > 100)")
    page.get_by_role("tab", name="1", exact=True).first.click()
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((p) => p.dataset.drawn || !p.offsetParent)")
    assert page.locator(".plot:visible").count() == 1 + 1 + 2 + 1 + 1 + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    assert page.said == []
