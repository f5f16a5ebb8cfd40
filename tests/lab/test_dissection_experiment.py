"""The paper's situations at small scale: targets, training, networks, and what is kept of a dissection."""

import pytest
import torch

from intertwine.dissection import Bases, Criterion, Dissection, dissect
from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.experiments.paper1.dissection_figure import SITUATIONS, detector_rows
from intertwine.lab.networks import PlainCNN
from intertwine.lab.training.concepts import dense_targets, place_accuracy, train_on_concepts


def test_targets_are_covered_shares():
    data = GeneratedConcepts(2, size=32)
    labels = torch.stack([data[i].labels for i in range(2)])
    targets = dense_targets(labels, len(data.concepts), (4, 4))
    for c in range(len(data.concepts)):
        on = (labels == c).any(1).float()
        assert torch.allclose(targets[:, c], on.unfold(1, 8, 8).unfold(2, 8, 8).mean((3, 4)))


def test_training_lowers_the_loss_and_is_repeatable():
    data = GeneratedConcepts(24, size=16)
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        model = PlainCNN(len(data.concepts), True)
        runs.append((train_on_concepts(model, data, epochs=12, seed=1), model))
    assert runs[0][0] == runs[1][0]
    assert runs[0][0][-1] < 0.5 * runs[0][0][0]
    assert not runs[0][1].training
    assert 0 < place_accuracy(runs[0][1], data) < 1


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_its_layers(name):
    situation = SITUATIONS[name]
    model = situation.build(7).eval()
    assert set(situation.places.values()) <= set(dict(model.named_modules()))
    assert ("inside" in situation.places) == ("CNN" not in name)
    output = situation.places["output"]
    assert situation.places.get("inside", f"{output}.").startswith(f"{output}.")
    with torch.no_grad():
        features = model.features(torch.rand(2, 3, 32, 32))
        assert model.dense(torch.rand(2, 3, 32, 32)).shape[:2] == (2, 7)
    assert bool((features >= 0).all()) == (name in ("plain CNN", "residual network"))


def test_without_its_last_relu_only_that_differs():
    with_relu, without = (PlainCNN(3, last).eval() for last in (True, False))
    without.load_state_dict(with_relu.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(with_relu.features(x), without.features(x).relu())
    assert torch.allclose(with_relu(x), with_relu.dense(x).mean((2, 3)))


def test_rows_are_means_over_rotations_of_one_network():
    """Shares, IoU and parts as they follow from the dissection itself, which counts in another way."""
    data, test = GeneratedConcepts(16, size=16), GeneratedConcepts(12, size=16, seed=1)
    torch.manual_seed(0)
    model = PlainCNN(len(data.concepts), True)
    train_on_concepts(model, data, epochs=1)
    found = dissect(
        model, "features.relu4", test, Bases((0, 1), 3), criterion=Criterion(0.02, empty="drop"), pictures=0
    )
    rows = detector_rows(found)
    by = {(r["statistic"], r.get("partner_layer", "")): r["value"] for r in rows}
    assert by["unchanged by G_ReLU", ""] == 1.0
    for count in found.powers():
        assert by[f"share of detectors, power {count.alpha:g}", ""] == pytest.approx(count.mean / found.units)
        for category in found.categories:
            (own,) = (c for c in found.powers(category) if c.alpha == count.alpha)
            assert by[f"detectors by category, power {count.alpha:g}", category] == pytest.approx(own.mean)
        concepts = [v for (s, _), v in by.items() if s == f"detectors by concept, power {count.alpha:g}"]
        assert len(concepts) == len(found.concepts) and sum(concepts) == pytest.approx(count.mean)
    best = [sum(a.iou) / len(a.iou) for a in found.arms if (a.arm.kind, a.arm.alpha) == ("rotation", 1)]
    assert by["best IoU, power 1", ""] == pytest.approx(sum(best) / 3)
    assert {r["draws"] for r in rows if r["statistic"].endswith("power 1")} == {3}


def test_elements_that_change_findings_are_seen(monkeypatch):
    monkeypatch.setattr(Dissection, "unchanged", False)
    test = GeneratedConcepts(8, size=16)
    found = dissect(PlainCNN(5, True), "features.relu4", test, Bases((0,), 1), criterion=Criterion(0.02, empty="drop"),
                    pictures=0)  # fmt: skip
    assert detector_rows(found)[0]["value"] == 0.0
