"""The frame of experiments, and those that need nothing but the library, at smoke scale."""

import json
from dataclasses import replace

import pytest
import torch

from intertwine.lab.experiments import Claim, Map, Reproduction, Row, Setting, experiment, experiments, reproduce
from intertwine.lab.experiments.experiment import Experiment, measure
from intertwine.lab.experiments.paper1 import demonstrations as demonstrations_file
from intertwine.lab.experiments.paper1 import group_tables
from intertwine.lab.experiments.paper1.dissimilarity import map_numbers
from intertwine.lab.runs.store import machine
from intertwine.lab.statistics import Estimate, Sample
from intertwine.report import page_of, render
from intertwine.report.pages.reproduce import all_page, panels, reproduction_page

EXACT = ("table1-groups", "e7-counts", "fig17-gelu", "demonstrations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduction")


def page(name, folder):
    return experiment(name).page(reproduce(name, Setting(folder=folder)))


@pytest.mark.parametrize("name", EXACT)
def test_exact_statements_hold(name, folder):
    """The other experiments run at smoke scale in ``make smoke``, which compares their values with those kept."""
    found = page(name, folder)
    assert found.passed
    assert all(claim.held for claim in found.claims)
    assert all(claim.required for claim in found.claims)


def test_a_broken_group_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setitem(group_tables.TABLE_1, "relu", ("permutation matrices", "A"))
    assert not page("table1-groups", tmp_path).passed


def test_imbalance_is_what_positive_scales_change():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2, 2], [0, 0, 1]]))
        first.bias.copy_(torch.tensor([2.0, 0]))
        second.weight.copy_(torch.tensor([[3.0, 2.0]]))
    assert demonstrations_file.imbalance(first, second).item() == pytest.approx((9 + 4 - 9) + (4 - 1))


def test_what_is_said_of_a_map():
    """Blocks whose insides differ, on a diagonal that falls; every number by hand."""
    layers = ("relu", "layer1.0.relu1", "layer1.0.relu2")
    scores = [[0.9, 0.1, 0.2], [0.1, 0.5, 0.1], [0.2, 0.3, 0.7]]
    of = lambda names, rows: {(a, b): Sample.of({("0", "1"): rows[i][j]}) for i, a in enumerate(names)
                              for j, b in enumerate(names)}  # fmt: skip
    found = map_numbers(layers, of(layers, scores))
    assert {name: sample.mean for name, sample in found.items()} == pytest.approx({
        "equal depth - other": 2.1 / 3 - 1.0 / 6, "early - late": 0.2, "lost by the last but one": 0.4,
        "outside blocks - inside": 0.2,
    })  # fmt: skip
    six, diagonal = tuple(f"relu{k}" for k in range(6)), (0.9, 0.7, 0.6, 0.6, 0.5, 0.1)  # thirds of two layers
    thirds = map_numbers(six, of(six, [[v * (i == j) for j in range(6)] for i, v in enumerate(diagonal)]))
    assert thirds["early - late"].mean == pytest.approx(0.8 - 0.3)
    two = ("relu1", "relu2")
    assert "outside blocks - inside" not in map_numbers(two, of(two, [[1.0, 0.0], [0.0, 1.0]]))


# --- the frame -----------------------------------------------------------------------------------


def test_the_callers_random_numbers_stay_as_they_were(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    for name in ("fig17-gelu", "table1-groups"):
        reproduce(name, Setting(folder=tmp_path))
    assert torch.equal(torch.rand(3), wanted)


def test_every_experiment_has_words_and_scales():
    for name, e in experiments().items():
        assert e.name == name
        assert e.title
        assert e.papers
        assert e.scales[0] == "smoke"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="experiment must be one of table1-groups"):
        experiment("table99")


def page_scale(name, setting):
    return reproduce(name, setting).facts["scale"]


def test_values_say_which_machine_gave_them(folder):
    assert reproduce("table1-groups", Setting("smoke", folder, device="cpu")).facts["machine"] == machine("cpu")


def test_a_scale_that_an_experiment_lacks_is_its_largest(folder):
    assert page_scale("e7-counts", Setting("paper", folder)) == "smoke"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("x", None, 0.5), "not run"),
        (Row("x", 0.5), ""),
        (Row("x", 0.5, 0.5), "equal"),
        (Row("x", 0.52, 0.5, tolerance=0.05), "equal"),
        (Row("x", 0.56, 0.5, tolerance=0.05), "differs"),
        (Row("x", 0.56, 0.5, 0.4, 0.7), "paper inside our interval"),
        (Row("x", 0.56, 0.5, 0.55, 0.7), "ours is higher"),
        (Row("x", 0.4, 0.5, 0.35, 0.45), "ours is lower"),
    ],
    ids=str,
)
def test_verdicts_of_rows(row, verdict):
    assert row.verdict == verdict


def made(**changes):
    rows = [Row("a", 0.5, 0.4, 0.3, 0.6, group="g"), Row.of("b", Estimate(0.1, 0.03, 3, 4), (0.5, 0.1), "g")]
    claims = [Claim("it falls", True, "0.5 > 0.1"), Claim("it rises", False), Claim("unclear", None)]
    options = {"rows": rows, "claims": claims, "comparable": True, "notes": ["few networks"], "facts": {"seed": 1}}
    return Reproduction("made-up", "Made up", "v2 Fig. 99", "small", **{**options, **changes})


def test_a_reproduction_judges_itself():
    assert made().verdict == "1 of 3 claims hold, 1 does not, 1 cannot be told; 1 of 2 numbers agree with the paper's"
    ran = Claim("what is frozen stayed", True, required=True, check=True)  # of the run: no statement
    assert made(claims=[*made().claims, ran]).verdict == made().verdict
    assert not made(claims=[replace(ran, held=False)]).passed
    assert "other networks or data" in made(comparable=False).verdict
    assert made().passed
    assert not made(claims=[Claim("must", False, required=True)]).passed
    assert not made(claims=[Claim("must", None, required=True)]).passed
    assert not made(rows=[Row("x", 1.0, 2.0, tolerance=0.1)]).passed


def test_it_saves_loads_and_becomes_a_table_and_a_page(tmp_path):
    found = made()
    loaded = Reproduction.load(found.save(tmp_path / "r.json"))
    assert loaded.to_dict() == json.loads(json.dumps(found.to_dict()))
    frame = found.to_frame()
    assert list(frame["difference"].round(3)) == [0.1, -0.4]
    text = render(page_of(found))
    said = ("it falls", "does not hold", "cannot be told", "few networks", "paper inside our interval", "v2 Fig. 99")
    assert all(words in text for words in said)
    assert "not to be compared" not in text


def test_the_page_of_all_counts_and_names_what_failed():
    text = render(all_page([made(), made(claims=[Claim("must", False, required=True)])], {"other": "no data <here>"}))
    assert "1 of 3 checked statements hold, 2 of 4 comparable numbers agree with the papers&#39;" in text
    assert "1 experiment failed" in text
    assert "what must hold does NOT" in text
    assert "no data &lt;here&gt;" in text


@pytest.mark.parametrize(
    ("points", "ordered"),
    [
        (("relu1", "relu2"), True),
        (("relu", "layer1.0.relu1", "layer2.1.relu1*"), True),
        (("width 32", "width 64"), True),
        (("a = 0.25", "a = 10"), True),
        (("DNN", "DGN(x, 1)"), False),
        (("linear_cka", "rsa"), False),
        (("relu1", "DNN"), False),
    ],
)
def test_only_points_with_an_order_are_joined(points, ordered):
    rows = [Row(point, 0.5, None, 0.4, 0.6) for point in points] + [
        Row("relu9" if ordered else "NTK", 0.5, None, 0.4, 0.6)
    ]
    found = Reproduction("name", "Title", "v2 Table 2", "smoke", rows=rows)
    assert panels(found)[0].ordered == ordered
    assert reproduction_page(found)


def test_maps_are_kept_and_drawn(tmp_path):
    found = made(maps=(Map("cka", ("relu1", "relu2"), ((1.0, 0.25), (0.25, 1.0))),))
    loaded = Reproduction.load(found.save(tmp_path / "r.json"))
    assert loaded.maps == found.maps
    assert "cka" in render(reproduction_page(loaded))


def test_networks_that_are_not_trained_together_are_jobs_of_their_own(tmp_path):
    def plan(design):
        short = design.setting.recipe().but(epochs=1)
        design.zoo("together", "mlp:widths=4", 3, short)
        design.zoo("one by one", "mlp:widths=4", 3, short.but(mixup=0.1))

    asked = Experiment("two-zoos", "", "", plan, lambda found: None)
    values, failed = measure([asked], Setting("smoke", tmp_path))
    assert not failed
    assert {arm: len(values["two-zoos"].sample("accuracy", arm).numbers) for arm in ("together", "one by one")} == {
        "together": 3, "one by one": 3,
    }  # fmt: skip
    assert len(list((tmp_path / "runs" / "networks" / "results").glob("*.json"))) == 1 + 3
