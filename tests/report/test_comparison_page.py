"""The page of a comparison, and what it says in words."""

import dataclasses
import json
import re

import pytest
import torch
from page_blocks import figures

from intertwine import report
from intertwine.similarity import measure_names
from intertwine.similarity.comparison.verdict import headline, lead, measure_title, paired, summarise


def traces(page, kind):
    return [trace for figure in figures(page) for trace in figure.spec["data"] if trace["type"] == kind]


def test_every_measure_has_a_heat_map_raw_and_calibrated(made_comparison):
    comparison = made_comparison()
    maps = traces(report.page_of(comparison), "heatmap")
    assert len(maps) == 2 * len(comparison.measures)
    shown = torch.tensor(maps[0]["z"], dtype=torch.float64)
    assert torch.allclose(shown, comparison.scores[lead(comparison)], atol=5e-5)
    assert len(maps[0]["customdata"][0][0]) == 5  # interval from, to, chance, p, calibrated


def test_without_chance_levels_nothing_is_calibrated(made_comparison):
    comparison = made_comparison(null=False)
    page = report.page_of(comparison)
    assert len(traces(page, "heatmap")) == len(comparison.measures)
    assert "chance" not in headline(comparison)
    report.render(page)


def test_curves_show_bands_chance_and_floor(made_comparison):
    names = [trace.get("name") for trace in traces(report.page_of(made_comparison()), "scatter")]
    assert names.count("same layer") == names.count("best match in B") == names.count("chance") == 4
    assert names.count("lowest possible") == 2  # of the Procrustes measures
    assert sum(t.get("fill") == "tonexty" for t in traces(report.page_of(made_comparison()), "scatter")) == 4


def test_different_layers_have_no_counterparts(made_comparison):
    comparison = made_comparison(layers_b=[f"features.{i}" for i in range(9)])
    assert not paired(comparison)
    names = [trace.get("name") for trace in traces(report.page_of(comparison), "scatter")]
    assert "same layer" not in names
    assert "counterpart" not in headline(comparison)
    assert summarise(comparison, "linear_cka").matched is None


def test_the_verdict_counts(made_comparison):
    comparison = made_comparison()
    summary = summarise(comparison, "g_relu_cka")
    assert (summary.matched, summary.beyond, summary.layers) == (6, 6, 6)
    assert summary.score == pytest.approx(0.65)
    assert headline(comparison) == (
        "By G-ReLU CKA, corresponding layers score 0.65 on average, where unrelated features would get 0.00. Every "
        "layer resembles its own counterpart most. All scores are beyond those of shuffled examples at the 5 % level. "
        "Untrained networks were not measured, so no word is given for how similar that is."
    )


def test_equal_networks_are_called_equal(made_comparison):
    ones = {m: torch.ones(6, 6, dtype=torch.float64) for m in made_comparison().measures}
    comparison = made_comparison(scores=ones)
    assert "compute the same features in every layer, up to permutations" in headline(comparison)
    assert summarise(comparison, "linear_cka").matched == 6


def test_a_kernel_of_one_is_no_equality_of_features(made_comparison):
    """Duplicated units leave the max kernel alone: a copy with other units doubled scores 1 by G-ReLU CKA."""
    ones = torch.ones(6, 6, dtype=torch.float64)
    scores = {**made_comparison().scores, "g_relu_cka": ones}
    said = headline(made_comparison(scores=scores))
    assert "does not tell the two networks apart" in said and "not the same up to" in said
    alone = made_comparison(measures=("g_relu_cka",), scores=scores)
    assert "does not tell" in headline(alone) and "same" not in headline(alone)


@pytest.mark.parametrize(("examples", "width", "told"), [(1000, 0.05, True), (4, None, False), (8, 0.9, False)])
def test_few_examples_tell_nothing(made_comparison, examples, width, told):
    comparison = made_comparison(examples=examples)
    fresh = {m: torch.full((2, 6, 6), 0.2, dtype=torch.float64) for m in comparison.measures}
    ends = [{m: None if width is None else s + sign * width for m, s in comparison.scores.items()} for sign in (-1, 1)]
    found = dataclasses.replace(comparison, untrained_pairs=fresh, low=ends[0], high=ends[1])
    assert ("cannot be told from" not in headline(found)) is told
    assert ("cannot be told from" not in found.headline) is told


def test_chance_is_called_chance(made_comparison):
    comparison = made_comparison()
    never = {m: torch.ones_like(s) for m, s in comparison.scores.items()}
    none = {m: torch.zeros_like(s) for m, s in comparison.scores.items()}
    unrelated = dataclasses.replace(comparison, null_p=never, calibrated=none)
    assert "no more similar than unrelated networks" in headline(unrelated)


def test_too_few_shuffles_are_no_sign_of_chance(made_comparison):
    """With 3 shuffles no p-value is below 1/4, however high the scores are."""
    comparison = made_comparison()
    quarter = {m: torch.full_like(s, 0.25) for m, s in comparison.scores.items()}
    few = dataclasses.replace(comparison, null_p=quarter, settings={"null": 3})
    assert summarise(few, "g_relu_cka").beyond is None
    assert headline(few).startswith("By G-ReLU CKA, corresponding layers score 0.65")
    assert "3 shuffles are too few" in headline(few)
    assert "too few" not in headline(dataclasses.replace(few, settings={"null": 19}))


def test_cells_without_a_score_do_no_harm(made_comparison):
    comparison = made_comparison()
    holes = {m: s.clone() for m, s in comparison.scores.items()}
    for scores in holes.values():
        scores[2] = torch.nan
    holed = dataclasses.replace(comparison, scores=holes)
    assert summarise(holed, "linear_cka").layers == 5
    assert "nan" not in headline(holed).lower()
    everywhere = {m: torch.full_like(s, torch.nan) for m, s in holes.items()}
    empty = dataclasses.replace(comparison, scores=everywhere)
    assert "No pair of layers could be compared" in headline(empty)
    report.render(report.page_of(empty))


def test_the_table_says_no_p_of_zero_and_the_untrained_level(made_comparison):
    comparison = made_comparison()
    small = {name: torch.full_like(p, 1e-5) for name, p in comparison.null_p.items()}
    small["linear_cka"] += 0.04
    level = {name: torch.full((3, *p.shape), 0.123) for name, p in small.items()}
    page = report.render(report.page_of(dataclasses.replace(comparison, null_p=small, untrained_pairs=level)))
    table = page.partition("All best matches as a table")[2].partition("</table>")[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table)
    assert cells[7:9] == ["0.123", "&lt;0.001"] and "0.040" in cells[8::11] and "0.000" not in cells[8::11]


def test_dead_channels_are_shown_or_said_to_be_absent(made_comparison):
    assert len(traces(report.page_of(made_comparison()), "bar")) == 2
    html = report.render(report.page_of(made_comparison(dead_a=(0,) * 6)))
    assert "No channel of either network is dead" in html


def test_facts_settings_and_versions_are_on_the_page(made_comparison):
    settings = {
        "null": 20,
        "network_a": {"name": "a.st", "parameters": "24,170"},
        "data": {"name": "digits"},
        "command": "x --y",
    }
    html = report.render(report.page_of(made_comparison(settings=settings)))
    for text in ("a.st", "24,170", "digits", "$ x --y", "2.99", "<dt>seed</dt><dd>7</dd>", "<dt>null</dt><dd>20</dd>"):
        assert text in html
    assert "network_a" not in html


def test_many_notes_are_folded_away(made_comparison):
    page = report.page_of(made_comparison(notes=tuple(f"note {i}" for i in range(50))))
    assert sum(b.kind == "paragraph" and b.tone == "note" for b in page.blocks) == 4
    assert "note 49" in report.render(page)


def test_a_page_from_saved_results_is_the_same_page(made_comparison, tmp_path):
    comparison = made_comparison()
    loaded = report.load_result(comparison.save(tmp_path / "results.json"))
    assert report.render(report.page_of(loaded)) == report.render(report.page_of(comparison))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"results must be an existing file"),
        ("{", r"results must be a complete JSON file"),
        ("[]", r"results must be a file that save\(\) wrote, of kind .*Comparison.*Got None"),
        ('{"kind": "Cake"}', r"Got 'Cake'"),
        ('{"kind": "Comparison"}', r"results must be a complete Comparison"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, text, message):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        report.load_result(path)


def test_a_hundred_layers_fit(made_comparison):
    layers = [f"features.{i}.attention.output.activation" for i in range(100)]
    random = {m: torch.rand(100, 100, dtype=torch.float64) for m in made_comparison().measures}
    every = ("scores", "low", "high", "chance", "null_p", "calibrated", "floor")
    comparison = made_comparison(layers, **dict.fromkeys(every, random))  # numbers that do not compress well
    assert len(report.render(report.page_of(comparison)).encode()) < 5_000_000


def test_titles_of_all_registered_measures():
    for name in measure_names():
        title = measure_title(name)
        assert title[0].isupper() or not title[0].isalpha() or title[0] == "k"
        assert "_" not in title


def test_figure_data_holds_no_angle_bracket(made_comparison, hostile):
    html = report.render(report.page_of(made_comparison(hostile)))
    found = re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    assert len(found) == 13
    for text in found:
        assert "<" not in text
        json.loads(text)


def test_the_caption_counts_the_untrained_pairs_of_each_measure(made_comparison):
    scores = made_comparison().scores
    pairs = {name: torch.stack([one] * 4) for name, one in scores.items()}
    pairs["g_relu_procrustes"][2:] = torch.nan  # not solved where work is bounded
    (table, *_) = [b for b in report.page_of(made_comparison(untrained_pairs=pairs)).blocks if b.kind == "table"]
    assert "(mean of 4 pairs, G-ReLU Procrustes of 2)" in table.caption
    assert "untrained" not in report.render(report.page_of(made_comparison(null=False)))
