"""What cannot be compared, or barely: it is named, left out, and harms nothing else."""

from math import factorial

import pytest
import torch
from made import Function, Made
from torch import nn

import intertwine as iw
from intertwine.similarity.comparison import layers
from intertwine.similarity.comparison.untrained import Redrawn

PARTS = ("error", "low", "high", "chance", "null_p", "calibrated", "floor")
X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))


def beside(seed, function):
    """Two layers, and beside them one that returns something else."""

    def run(m, x):
        x = m.one(x).relu()
        m.side(x)
        return m.two(x)

    torch.manual_seed(seed)
    return Made(run, one=nn.Linear(5, 8), side=Function(function), two=nn.Linear(8, 6))


SIDES = {
    "nan": (lambda x: x * torch.nan, "NaN or infinite values in it"),
    "infinite in one example": (lambda x: torch.where(torch.arange(len(x))[:, None] == 3, torch.inf, x), "NaN or infi"),
    "constant": (torch.ones_like, "all channels are constant"),
    "zero": (torch.zeros_like, "all channels are zero"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("exact", [True, False])
def test_a_bad_layer_is_named_and_left_out(side, exact):
    function, why = SIDES[side]
    a, b = beside(0, function), beside(1, function)
    found = iw.compare(a, b, X.split(100), ["one", "side", "two"], exact=exact)
    alone = iw.compare(a, b, X.split(100), ["one", "two"], found.measures, exact=exact)
    for name in "AB":
        assert any(f"No score for layer 'side' of {name}: {why}" in note for note in found.notes)
    for m in found.measures:
        torch.testing.assert_close(found.scores[m][::2, ::2], alone.scores[m], atol=1e-6, rtol=1e-5)
        for part in ("scores", *PARTS):
            if (matrix := getattr(found, part)[m]) is not None:
                assert matrix[1].isnan().all() and matrix[:, 1].isnan().all(), part
    assert found.summary().startswith("1 of 3 layers have no score: the notes say why. ")
    row = next(line for line in found.summary().splitlines() if line.startswith("side"))
    assert set(row.split()[1:]) == {"-"}
    assert found.to_html()
    many = iw.compare_many({"a": a, "b": b}, X.split(100), ["one", "side", "two"])
    assert many.scores["linear_cka"].isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert many.agreement()[:, 0, 1].isnan().tolist() == [False, True, False] and " of 2 known)" in many.agreeing()
    for part in (many.error, many.chance, many.null_p):
        assert part["linear_cka"][1].isnan().all() and not part["linear_cka"][0].isnan().any()


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_is_known_of_a_pair_without_a_score(exact):
    apart = nn.Sequential(nn.Identity())  # every example its own channel: their kernel has no spread
    found = iw.compare(apart, nn.Sequential(nn.Linear(80, 4)), [torch.eye(80)], "0", "linear_cka", exact=exact)
    said = f"features must tell examples apart{'.' if exact else ': exact=True scores'}"
    assert found.scores["linear_cka"].isnan().all() and said in found.notes[-1]
    for part in PARTS:
        known = getattr(found, part)["linear_cka"]
        assert known is None or known.isnan().all(), part
    assert found.best("linear_cka")["layer_b"].isna().all()


@pytest.mark.parametrize("function", [lambda x: None, lambda x: x[:, :0]])
def test_a_layer_of_no_output(function):
    a, b = beside(0, function), beside(1, function)
    plain = iw.compare(a, b, [X], ["*"], "linear_cka")
    assert plain.layers_a == ("one", "relu", "two", "")
    assert iw.compare_many({"a": a, "b": b}, [X], ["*"]).layers == plain.layers_a
    with pytest.raises(ValueError, match=r"Got 'side' \(Function\), which did not run .* or an empty one"):
        iw.compare(a, b, [X], ["one", "side"], "linear_cka")


def test_a_model_that_is_itself_the_layer_has_a_name_for_people():
    torch.manual_seed(0)
    a, b = nn.Linear(5, 4), nn.Linear(5, 4)
    found = iw.compare(a, b, [X])
    assert found.layers_a == ("",) and "the model itself" in found.summary() and "the model itself" in found.to_html()
    with torch.no_grad():
        b.weight.fill_(torch.nan)
    assert any(note.startswith("No score for B itself: NaN") for note in iw.compare(a, b, [X]).notes)
    assert "the model itself" in iw.compare_many({"a": a, "b": nn.Linear(5, 4)}, [X]).summary()


@pytest.mark.parametrize("exact", [True, False])
def test_no_p_value_is_below_one_of_all_orders(exact):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
    resampling = iw.similarity.Resampling(null=300, bootstrap=0, untrained=0)
    found = iw.compare(net, net, [X[:5]], resampling=resampling, exact=exact)
    for m in found.measures:
        assert found.null_p[m].min() >= (1 - 1e-12) / factorial(5), m
        assert found.best_p[m].min() >= (1 - 1e-12) / factorial(5), m


def test_no_pair_of_networks_has_a_score():
    found = iw.compare_many({name: beside(seed, lambda x: x) for seed, name in enumerate("ab")}, [torch.ones(20, 5)])
    assert found.summary().startswith("No pair of 2 networks could be compared by Linear CKA; the notes say why")
    assert found.to_html()


def test_three_examples_are_refused():
    with pytest.raises(ValueError, match=r"at least 4 examples\. Got 3"):
        iw.compare_many({"a": nn.Linear(5, 4), "b": nn.Linear(5, 4)}, [X[:3]])


@pytest.mark.parametrize(("batch", "most", "total"), [(100, None, 200), (10, None, 200), (7, 150, 150)])
def test_progress_counts_the_examples_that_come(monkeypatch, batch, most, total):
    shown = []

    def track(items, what, total, enabled, size):
        for item in items:
            if "Reading" not in what:
                shown.append((total, size(item)))
            yield item

    monkeypatch.setattr(layers, "track", track)
    monkeypatch.setattr("intertwine.similarity.comparison.compare._BRIEF", (30, 30, 0))
    net, other = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Sequential(nn.Linear(5, 6), nn.ReLU())
    reading = iw.features.Reading(max_examples=most)
    for b, networks, untrained in ((net, 1, 3), (other, 2, 6)):  # three pairs that share no network
        shown.clear()
        iw.compare(net, b, X.split(batch), exact=False, reading=reading)
        own, part = networks * total, total // 4  # untrained networks run alone, on a part
        assert {expected for expected, _ in shown} == {own, part}
        assert sum(count for _, count in shown) == own + untrained * part


def test_control_c_in_the_pass_of_untrained_networks_keeps_the_scores(monkeypatch):
    class Stopped(nn.Sequential):
        def forward(self, x):
            raise KeyboardInterrupt

    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
    monkeypatch.setattr(Redrawn, "__call__", lambda self, seed: Stopped(nn.Linear(5, 8), nn.ReLU()))
    found = iw.compare(net, net, X.split(50), exact=False, resampling=iw.similarity.Resampling(seed=9173))
    assert found.scores["linear_cka"].item() > 0.999 and not found.untrained
    assert any("Interrupted: no untrained networks" in note for note in found.notes)
