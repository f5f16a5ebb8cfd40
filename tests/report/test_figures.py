"""Plots as plain data: plotly accepts every attribute, and nothing of the user's becomes markup."""

import json
import math
import re

import pytest

from intertwine.report import Figure, Series, bars, heatmap, lines, scatter
from intertwine.report.figures import label, stages

NAMES = ["0", "1", "<b>2</b>"]


def every_figure():
    yield heatmap(
        [[0.1, math.nan, 1.0]] * 3, NAMES, NAMES, row_title="A", column_title="B", hover={"p": [[0.5] * 3] * 3}
    )
    yield heatmap([[0.5] * 30] * 30, [f"layer{i}" for i in range(30)], [f"layer{i}" for i in range(30)])
    yield lines(NAMES, [Series("s", [0.1, None, 0.3], [0.0] * 3, [0.5] * 3), Series("chance", [0.1] * 3, dash="dash")])
    yield bars(NAMES, {"A": [1, 2, 3], "B": [0, math.inf, 1]})
    yield scatter(NAMES, [[0.0, 1.0], [math.nan, 2.0], [3.0, -1.0]])


@pytest.mark.parametrize("figure", list(every_figure()), ids=lambda f: f.spec["data"][0]["type"])
def test_plotly_knows_every_attribute(figure):
    import plotly.graph_objects as go

    assert isinstance(figure, Figure)
    go.Figure(figure.spec)  # raises on an unknown attribute or a wrong value


@pytest.mark.parametrize("figure", list(every_figure()), ids=lambda f: f.spec["data"][0]["type"])
def test_plain_json_without_nan(figure):
    json.dumps(figure.spec, allow_nan=False)


def test_plotly_would_have_complained():
    import plotly.graph_objects as go

    with pytest.raises(ValueError):
        go.Figure({"data": [{"type": "heatmap", "zz": 1}], "layout": {}})


def test_names_stay_text_and_numbers_stay_names():
    axis = heatmap([[0.0] * 3] * 3, NAMES, NAMES).spec["layout"]["yaxis"]
    assert axis["ticktext"] == ["0", "1", "&lt;b&gt;2&lt;/b&gt;"]
    assert axis["tickvals"] == [0, 1, 2]


def test_long_names_are_cut_in_the_middle_before_they_are_escaped():
    cut = label("<" * 100, 10)
    assert cut == "&lt;" * 5 + "…" + "&lt;" * 4


def test_long_names_keep_what_tells_them_apart():
    names = [f"vit.encoder.layers.{k}.mlp.activation_fn" for k in range(12)]
    short = lambda names: bars(names, {"A": [0] * len(names)}).spec["layout"]["meta"]["xaxis"]["names"]
    assert short(names)[:2] == ["…0.mlp.activation_fn", "…1.mlp.activation_fn"]
    assert len(set(short(names))) == 12
    assert short(names[:1]) == ["vit.encode…vation_fn"]
    assert short(["a.b", "a.c"]) == ["a.b", "a.c"]


def test_dollar_signs_are_no_formula():
    assert "$" not in label("$x$")


def test_many_names_stand_in_a_few_stages():
    deep = [f"layers.{i}.mlp" for i in range(80)]
    wide = ["stem", *(f"layer{s}.{i}.relu" for s in (1, 2) for i in range(30))]
    assert stages(deep)[:2] == [(0, "layers.0–4"), (5, "layers.5–9")]
    assert stages(wide) == [(0, "stem"), (1, "layer1"), (31, "layer2")]
    whole = ["model.embed", *(f"model.{name}" for name in deep), "model.norm", "lm_head"]
    assert stages(whole)[:3] == [(0, "model.embed"), (1, "layers.0–9"), (11, "layers.10–19")]
    assert stages([]) == [] and stages(["a", "a"]) == [(0, "a")]
    figure = heatmap([[0.5] * 61] * 61, wide, wide)
    assert figure.spec["layout"]["meta"]["yaxis"]["stages"] == [[0, "stem"], [1, "layer1"], [31, "layer2"]]
    assert len(figure.spec["layout"]["shapes"]) == 4 and figure.spec["data"][0]["xgap"] == 0


def test_numbers_are_rounded():
    assert heatmap([[1 / 3, 1e-6 / 3]], ["a"], ["b", "c"]).spec["data"][0]["z"] == [[0.33333, 3.3333e-07]]


def test_small_numbers_in_cells_keep_their_digits():
    cells = lambda high: heatmap([[1.234e-4]], ["a"], ["b"], limits=(0.0, high)).spec["layout"]["annotations"]
    assert [cells(high)[0]["text"] for high in (1.0, 1e-3)] == ["0.00", "0.00012"]


def luminance(colour):
    """Relative luminance of ``#rrggbb`` or ``rgb(r, g, b)``, as WCAG 2 defines it."""
    parts = [int(colour[k : k + 2], 16) for k in (1, 3, 5)] if colour[0] == "#" else re.findall(r"[\d.]+", colour)
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (float(p) / 255 for p in parts)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_numbers_in_cells_are_easy_to_read():
    from plotly.colors import sample_colorscale

    for k in range(101):
        (note,) = heatmap([[k / 50 - 1]], ["a"], ["b"], limits=(-1, 1)).spec["layout"]["annotations"]
        assert note["text"] == f"{k / 50 - 1 + 0.0:.2f}"
        (cell,) = sample_colorscale("Viridis", k / 100)
        dark, light = sorted([luminance(cell), luminance(note["font"]["color"])])
        assert (light + 0.05) / (dark + 0.05) >= 4.5, k


def test_cells_without_a_value_and_large_heat_maps_have_no_numbers():
    assert heatmap([[None, 0.5]], ["a"], ["b", "c"]).spec["layout"]["annotations"][0]["x"] == 1
    many = [str(k) for k in range(20)]
    assert heatmap([[0.5] * 20] * 20, many, many).spec["layout"]["annotations"] == []


def test_equal_values_have_a_colour():
    trace = heatmap([[1.0]], ["a"], ["b"], limits=(1.0, 1.0)).spec["data"][0]
    assert trace["zmin"] < 1.0 == trace["zmax"]


def test_curves_beyond_the_limits_are_seen():
    low, high = lines(["a"], [Series("s", [-0.4])]).spec["layout"]["yaxis"]["range"]
    assert low < -0.4
    assert high > 1


def test_no_curves_no_names():
    assert lines([], []).spec["data"] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: heatmap([[1.0]], ["a", "b"], ["c"]),
        lambda: heatmap([[1.0]], ["a"], ["c"], hover={"p": [[1.0, 2.0]]}),
        lambda: lines(["a"], [Series("s", [1.0, 2.0])]),
        lambda: lines(["a"], [Series("s", [1.0], [1.0, 2.0], [3.0])]),
        lambda: bars(["a"], {"g": []}),
    ],
)
def test_wrong_lengths_are_refused(make):
    with pytest.raises(ValueError, match=r"must have .* Got"):
        make()
