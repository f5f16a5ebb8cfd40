"""Formulas of the site in a real browser: a font of their own, and wide ones scroll where the screen is small."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.browser
DOCS = Path(__file__).parent.parent / "docs"
WIDE = r" + ".join([r"\sum_{i=1}^{n} \frac{a_i b_i c_i}{\sqrt{x_i^2 + y_i^2}}"] * 5)


def formulas():
    pytest.importorskip("latex2mathml", reason="needs the extra [docs]")
    pytest.importorskip("mkdocs", reason="needs the extra [docs]")
    spec = importlib.util.spec_from_file_location("formulas", DOCS / "site" / "formulas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(tmp_path, browser):
    said = SimpleNamespace(file=SimpleNamespace(src_path="test.md"))
    text = (
        f'<p>In a line <span class="arithmatex">\\(x^2\\)</span> and <span class="arithmatex">\\({WIDE}\\)</span></p>'
        f'<div class="arithmatex">\\[{WIDE}\\]</div>'
    )
    body = formulas().on_page_content(text, said)
    style = (DOCS / "stylesheets" / "site.css").as_uri()
    head = f'<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="{style}">'
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html>{head}<body class=md-typeset>{body}")
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    opened.goto((tmp_path / "page.html").as_uri())
    opened.evaluate("document.fonts.ready")
    yield opened
    opened.close()


def test_a_font_of_mathematics_and_formulas_that_scroll(page):
    loaded = "[...document.fonts].filter((f) => f.family.includes('Site Math')).map((f) => f.status)"
    assert page.evaluate(loaded) == ["loaded"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for kind in ("div.formula", "span.formula"):
        sizes = page.locator(kind).first.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert sizes[0] > sizes[1] > 300
        start = page.locator(f"{kind} > math").first.bounding_box()["x"]
        assert start >= page.locator(kind).first.bounding_box()["x"] - 1  # nothing is lost on the left
