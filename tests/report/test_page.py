"""Pages hold everything, escape everything, and ask nobody for anything."""

import base64
import gzip
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine import report
from intertwine._result import Result
from intertwine.report import Details, Facts, Grid, Heading, Listing, Page, Paragraph, Table, Tabs, heatmap, render
from intertwine.report.page import packed_plotly

EVIL = "</script><script>alert(1)</script>&<!--\"'"


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def evil_blocks():
    return [
        Heading(EVIL),
        *(Paragraph(EVIL, tone) for tone in ("plain", "verdict", "note")),
        Listing(EVIL),
        Facts({EVIL: EVIL}, EVIL),
        Table([EVIL], [[EVIL]], EVIL),
        Grid([Paragraph(EVIL)]),
        Tabs({EVIL: [Paragraph(EVIL)], "two": []}, EVIL),
        Details(EVIL, [Paragraph(EVIL)]),
        heatmap([[0.5]], [EVIL], [EVIL], title=EVIL, caption=EVIL, row_title=EVIL, column_title=EVIL, name=EVIL),
    ]


def test_everything_is_escaped_everywhere():
    empty, evil = Tags(render(Page("", []))), Tags(render(Page(EVIL, evil_blocks(), EVIL)))
    scripts = [attrs for tag, attrs in evil.tags if tag == "script"]
    figures = [attrs for attrs in scripts if attrs.get("type") == "application/json"]
    assert len(figures) == 1
    plotly = 1  # which the empty page does not hold
    assert len(scripts) == 1 + plotly + sum(tag == "script" for tag, _ in empty.tags)
    assert sum(text.strip() == EVIL for text in evil.text) >= 20


def test_figures_survive_as_json():
    figure = heatmap([[0.5]], [EVIL], [EVIL])
    text = re.search(r'<script type="application/json">(.*?)</script>', render(Page("t", [figure])), re.S).group(1)
    assert not set("<>&") & set(text)
    assert json.loads(text) == figure.spec


def test_nothing_is_fetched():
    html = render(Page("t", evil_blocks()))
    for tag, attrs in Tags(html).tags:
        assert tag not in ("img", "iframe", "object", "embed")
        assert "src" not in attrs
        assert attrs.get("href", "data:,").startswith("data:")
    assert "default-src 'none'" in html
    style = re.search(r"<style>(.*?)</style>", html, re.S).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_the_installed_one_and_small_enough():
    from importlib.resources import files

    code = gzip.decompress(base64.b64decode(packed_plotly()))
    assert code == (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    assert len(render(Page("t", []))) < 3_000_000


def test_tables_show_numbers_flags_and_gaps():
    table = Table(["x"], [[0.12345], [1234], [True], [None], [float("nan")], ["s"], [-0.001]], digits=2)
    assert [table.cell(row[0]) for row in table.rows] == ["0.12", "1,234", "yes", "", "", "s", "0.00"]
    with pytest.raises(ValueError, match=r"rows must have 1 cells.*Got 2"):
        Table(["x"], [[1, 2]])


@dataclass(frozen=True)
class Strange(Result):
    """A result without a page of its own."""

    text: str = EVIL

    def _rows(self):
        return [{"name": self.text, "value": 0.5}]

    def summary(self):
        return self.text


def test_any_result_has_a_page(tmp_path):
    path = Strange().to_html(tmp_path / "deep" / "page.html")
    tags = Tags(path.read_text())
    assert "Strange" in tags.text
    assert EVIL in tags.text


def test_only_results_have_pages(tmp_path):
    with pytest.raises(TypeError, match=r"result must be a result of intertwine.*Got dict"):
        report.write_page({}, tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"path must end in \.html\. Got"):
        report.write_page(Strange(), tmp_path / "page.pdf")
    assert list(tmp_path.iterdir()) == []


def test_every_page_says_which_networks_it_is_of():

    a, b = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval() for _ in "ab")
    x = torch.zeros(2, 3)
    for found in (iw.align(a, b, x), iw.same(a, b, x), iw.lineage(a, b, x), iw.diff(a, b, x)):
        page = report.page_of(found)
        assert page.of == ["A: Sequential, 26 parameters", "B: Sequential, 26 parameters"]
        assert page.blocks[0].tone == "verdict" and page.blocks[1].kind == "figure"  # what is seen first
        assert page.of[1] in render(page)
    assert report.page_of(iw.symmetries(a, x)).of == ["Sequential, 26 parameters"]
    assert "26 parameters" not in repr(iw.symmetries(a, x))


def test_pages_without_plots_are_small():
    assert 'id="plotly"' not in render(Page("t", [Paragraph("p"), Grid([Table(["a"], [[1]])])]))


def test_columns_without_content_are_left_out_and_numbers_are_aligned():
    rows = [["a", 1.5, "", None], ["b", None, "", float("nan")]]
    tags = Tags(render(Page("T", [Table(["name", "score", "note", "p"], rows)]))).tags
    heads = [dict(attrs).get("class") for tag, attrs in tags if tag == "th"]
    assert heads == [None, "number"]
    assert len(Table(["name", "note"], []).shown.columns) == 2


def test_tables_without_a_caption_are_told_apart_by_heading_and_number():
    table = report.Table(("a",), ((1,),))
    made = report.render(report.Page("Page", [report.Heading("First"), table, table, report.Heading("Second"), table]))
    labels = re.findall(r'role="region" tabindex="0" aria-label="([^"]*)"', made)
    assert labels == ["First, table 1", "First, table 2", "Second, table 3"]
