"""The page in a real browser."""

from pathlib import Path

import pytest
import torch
from torch import nn

import intertwine as iw

ONE = {"measures": ("g_relu_cka",)}  # one plot of each kind
pytestmark = pytest.mark.browser


def visible_plots(page):
    return page.locator(".plot:visible")


def test_every_plot_is_drawn_quietly(shown):
    page = shown
    assert visible_plots(page).count() == 4 + 4 + 1
    assert page.locator(".plot[data-drawn] .main-svg").count() > 0
    for k in range(visible_plots(page).count()):
        plot = visible_plots(page).nth(k)
        assert plot.get_attribute("data-drawn") == "true"
        assert plot.locator(".heatmaplayer image, .scatterlayer .js-line, .barlayer .point").count() > 0
    page.get_by_role("tab", name="Above chance").click()
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((p) => p.dataset.drawn)")
    assert visible_plots(page).count() == 9
    page.get_by_role("tab", name="Scores").first.click()
    assert page.said == []
    assert page.asked == [page.url]  # nothing but the file itself


def test_the_toolbar_waits_for_the_pointer_and_shares_nothing(shown):
    page = shown
    buttons = page.locator(".plot:visible").first.locator(".modebar-btn")
    titles = [buttons.nth(k).get_attribute("data-title") or "" for k in range(buttons.count())]
    assert any("png" in title.lower() for title in titles)
    assert not any("share" in title.lower() or "cloud" in title.lower() for title in titles)
    opacity = lambda: page.evaluate("getComputedStyle(document.querySelector('.plot .modebar-group')).opacity")
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # it fades
    assert opacity() == "0"
    page.locator(".plot:visible").first.hover()
    page.wait_for_timeout(500)
    assert opacity() == "1"


def test_the_toolbar_is_never_over_data_on_a_small_touch_screen(visit, made_comparison):
    page = visit(made_comparison(**ONE), viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visible_plots(page).count() == 3
    for k in range(visible_plots(page).count()):
        plot = visible_plots(page).nth(k)
        bar = plot.locator(".modebar").first
        assert bar.locator(".modebar-group").first.evaluate("e => getComputedStyle(e).opacity") == "0"
        above, below = bar.bounding_box(), plot.locator(".nsewdrag").first.bounding_box()
        assert above["y"] + above["height"] <= below["y"] + 1
        bar.locator(".modebar-btn").first.focus()
        group = bar.locator(".modebar-group").first.element_handle()
        page.wait_for_function("e => getComputedStyle(e).opacity === '1'", arg=group, timeout=5000)
        page.evaluate("document.activeElement.blur()")
    assert page.said == []


def test_hostile_names_stay_text(visit, made_comparison, hostile):
    layers = [*hostile, "plain.relu"]
    page = visit(made_comparison(layers, settings={"network_a": {"name": hostile[0]}}, **ONE))
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main b, main i").count() == 0
    assert hostile[0] in page.locator("h1").inner_text()
    ticks = page.locator(".plot").first.locator(".ytick text, .yaxislayer-above text").all_text_contents()
    assert "<b>bold</b>" in ticks
    assert "&lt;i&gt;" in ticks
    assert page.locator(".plot tspan[style*='bold']").count() == 0
    assert page.said == []


def test_hovering_names_the_layers(shown):
    page = shown
    page.locator(".plot").first.scroll_into_view_if_needed()
    box = page.locator(".plot").first.locator(".heatmaplayer").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 12, box["y"] + box["height"] / 12)
    page.wait_for_selector(".hoverlayer text")
    text = " ".join(page.locator(".hoverlayer text").all_text_contents())
    said = ("layer of A: layer0.relu", "layer of B: layer0.relu", "score: 0.65", "interval from: 0.6", "chance: 0")
    assert all(part in text for part in said), text


def test_long_figures_are_unpacked_and_fit_a_laptop_in_the_dark_and_on_paper(visit, made_comparison):
    page = visit(made_comparison([f"features.{i}.conv.relu" for i in range(40)], **ONE), color_scheme="dark")
    assert page.locator("figure script[type='text/plain']").count() >= 1  # long figures, unpacked
    assert page.locator(".plot[data-drawn] .heatmaplayer image").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ink = page.locator(".plot .ytick text, .plot .yaxislayer-above text").first.evaluate(
        "e => getComputedStyle(e).fill"
    )
    assert ink == "rgb(230, 233, 239)"
    assert page.pdf()[:4] == b"%PDF"
    assert page.said == []


def test_an_old_browser_is_told_so(visit, made_comparison):
    page = visit(made_comparison(), ready="#trouble:not([hidden])", script="delete window.DecompressionStream")
    assert "cannot unpack the plots" in page.locator("#trouble").inner_text()
    assert page.locator("table").first.is_visible()


def test_a_reader_goes_by_keys_sorts_and_takes_tables_along(shown):
    page = shown
    unnamed = "e => !(e.getAttribute('aria-label') || e.textContent).trim()"
    assert (
        page.locator("button, a, [role=button], [tabindex='0']").evaluate_all(f"all => all.filter({unnamed}).length")
        == 0
    )
    first, second = (page.get_by_role("tab").nth(k) for k in (0, 1))
    first.focus()
    page.keyboard.press("ArrowRight")
    assert second.get_attribute("aria-selected") == "true" and first.get_attribute("tabindex") == "-1"
    table = page.locator("table").first
    scores = lambda: [float(x) for x in table.locator("tbody tr td:nth-child(2)").all_text_contents()]
    table.get_by_role("button", name="Mean score").click()
    assert scores() == sorted(scores()) and table.locator("th[aria-sort=ascending]").count() == 1
    table.get_by_role("button", name="Mean score").click()
    assert scores() == sorted(scores(), reverse=True)
    with page.expect_download() as taken:
        page.get_by_role("button", name="CSV").first.click()
    header, best, *_ = Path(taken.value.path()).read_text().splitlines()
    assert header.startswith("Measure,Mean score of the same layer") and best.startswith("Orthogonal Procrustes,0.95")
    page.get_by_role("link", name="Layer by layer").click()
    assert page.locator("h2:target").inner_text() == "Layer by layer"


def test_names_come_as_there_is_room_for_them(visit, made_comparison):
    layers = ["stem", *(f"layer{s}.{i}.relu" for s in (1, 2) for i in range(40))]
    page = visit(made_comparison(layers, measures=("linear_cka", "g_relu_cka")))
    plot = page.locator(".plot").first
    names = lambda: plot.locator(".ytick text").all_text_contents()
    assert names() == ["stem", "layer1", "layer2"]
    plot.evaluate("p => Plotly.relayout(p, {'yaxis.range': [4.5, 0.5]})")
    page.wait_for_timeout(500)
    assert names() == [f"layer1.{k}.relu" for k in range(4)]
    page.get_by_role("button", name="Colours over these values only").first.click()
    assert plot.evaluate("p => p.data[0].zmax") < 1
    width = plot.bounding_box()["width"]
    page.get_by_role("button", name="Larger").first.click()
    page.wait_for_timeout(500)
    assert plot.bounding_box()["width"] > 1.5 * width
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.said == []


def test_the_drawn_network_says_what_is_pointed_at(visit):
    layer = lambda: [nn.Linear(4, 4), nn.ReLU()]
    sym = iw.symmetries(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), *layer(), *layer(), nn.Linear(4, 2)), torch.zeros(2, 3)
    )
    page = visit(sym)
    assert page.locator("svg .node").count() == 7 and page.locator("svg .frame").count() == 1
    page.locator("svg .node").nth(3).hover()
    assert "2, 4: linear" in page.locator(".about").inner_text()
    page.locator(".flow").first.focus()
    assert page.locator("svg .wire.dim").count() > 0 and "units of" in page.locator(".about").inner_text()
    page.locator("svg .node[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("0: linear")
    assert page.locator("script#plotly").count() == 0 and page.said == [] and page.asked == [page.url]
