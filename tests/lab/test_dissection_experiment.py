"""The paper's situations at small scale: targets, training, the summary's intervals."""

import pytest
import torch

from intertwine.dissection import Bases, Criterion
from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.experiments.paper1.dissection import (
    SITUATIONS,
    PlainCNN,
    dense_targets,
    dissect_situations,
    place_accuracy,
    summarise,
    train_on_concepts,
)


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
        runs.append((train_on_concepts(model, data, epochs=4, batch_size=8, seed=1), model))
    assert runs[0][0] == runs[1][0]
    assert runs[0][0][-1] < 0.5 * runs[0][0][0]
    assert not runs[0][1].training
    assert 0 < place_accuracy(runs[0][1], data) < 1


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_every_situation_has_its_layers(situation):
    model = situation.build(7).eval()
    modules = dict(model.named_modules())
    assert situation.output in modules
    assert situation.inside is None or situation.inside in modules
    with torch.no_grad():
        features = model.features(torch.rand(2, 3, 32, 32))
        assert model.dense(torch.rand(2, 3, 32, 32)).shape[:2] == (2, 7)
    assert bool((features >= 0).all()) == (situation.name in ("cnn", "relu"))


def test_the_whole_experiment_in_small():
    train, test = GeneratedConcepts(16, size=16), GeneratedConcepts(12, size=16, seed=1)
    found = dissect_situations(
        train, test, seeds=(0, 1), situations=SITUATIONS[:1], bases=Bases((0, 1)), epochs=1,
        criterion=Criterion(0.02, empty="drop"), pictures=0,
    )  # fmt: skip
    assert set(found) == {("cnn", "output")}
    rows = summarise(found)
    assert [r["alpha"] for r in rows] == [0, 1]
    for row in rows:
        assert row["networks"] == 2
        assert row["share"].low <= row["share"].value <= row["share"].high
        assert row["g_relu_unchanged"]
    shares = [[c.mean / d.units for c in d.counts() if c.kind == "rotation"] for d in found["cnn", "output"]]
    assert rows[0]["share"].value == pytest.approx(sum(s[0] for s in shares) / 2)
    change = rows[0]["change"]
    assert change.low <= change.value <= change.high and change.models == 2
    alone = summarise({k: v[:1] for k, v in found.items()})[0]["change"]
    assert alone.low is None and alone.high is None  # one network decides nothing
    assert change.value == pytest.approx(sum(s[1] - s[0] for s in shares) / 2)
