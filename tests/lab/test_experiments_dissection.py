"""Detectors against rotations: concept sets, claims that can hold and fail, what is listed as not run."""

import numpy as np
import pytest
from PIL import Image

from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.data.concepts import concept_sets
from intertwine.lab.experiments import Setting, experiment, reproduce
from intertwine.lab.experiments.paper1 import dissection_figure
from intertwine.lab.experiments.paper1.dissection_figure import DissectedNetwork


def test_sets_are_split_without_overlap(tmp_path):
    train, test = concept_sets("generated", (5, 3), 16)
    assert (len(train), len(test)) == (5, 3)
    assert not (train[0].image == test[0].image).all()
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "labels.txt").write_text("sky\nroad\n")
    for i in range(8):
        Image.fromarray(np.full((9, 12, 3), 20 * i, np.uint8)).save(tmp_path / "images" / f"{i}.png")
        Image.fromarray(np.full((9, 12), i % 2, np.uint8)).save(tmp_path / "masks" / f"{i}.png")
    train, test = concept_sets(f"masks:{tmp_path}", (100, 100), 16)
    shades = [{int(part[i].image.max()) for i in range(len(part))} for part in (train, test)]
    assert shades[1] == {0, 80}
    assert not shades[0] & shades[1]
    assert len(shades[0]) == 6
    assert train[0].image.shape == (3, 90, 120)


def test_splits_of_a_set_are_used(monkeypatch):
    asked = []

    def load_concepts(spec, split, **options):
        asked.append(split)
        return GeneratedConcepts(4, size=16)

    monkeypatch.setattr("intertwine.lab.data.concepts.load_concepts", load_concepts)
    train, test = concept_sets("parquet:x+colours", (3, 9), 16)
    assert (len(train), len(test)) == (3, 4)
    concept_sets("broden:x", (3, 9), 16)
    assert asked == ["train", "test", "train", "val"]


def one_network(**changes):
    how = {"situation": "residual network", "concepts": "generated", "images": (8, 6), "side": 16, "epochs": 1,
           "rotations": (0, 1), "rotation_seeds": 1, "quantile": 0.02, "iou": 0.04, "seed": 0,
           "device": "cpu"}  # fmt: skip
    return DissectedNetwork(**(how | changes))


def test_one_network(tmp_path):
    """Rows of both places; every setting changes one of the numbers, so that a fingerprint sees it."""
    rows = one_network().run(tmp_path)
    assert {r["layer"] for r in rows if "layer" in r} == {"output", "inside"}
    values = lambda **change: [r["value"] for r in one_network(**change).run(tmp_path)]
    assert values() == [r["value"] for r in rows]
    for change in ({"seed": 1}, {"epochs": 2}, {"images": (9, 6)}, {"quantile": 0.05}, {"iou": 0.01}, {"side": 20},
                   {"rotation_seeds": 2}, {"situation": "plain CNN"}):  # fmt: skip
        assert values(**change) != values(), change


def test_papers_size_says_what_to_put_where_before_any_work(tmp_path):
    with pytest.raises(
        ValueError, match=r"must have Broden.*--concepts broden:FOLDER.*--data imagenet:DIR --recipe resnet50_residual"
    ):
        reproduce("fig3-dissection", Setting("paper", tmp_path))
    assert not list(tmp_path.iterdir())


def test_every_situation_is_dissected_from_several_seeds():
    plan = experiment("fig3-dissection").planned(Setting("small", concepts="parquet:FILE"))
    seeds = {s: {t.job.seed for t in plan.tasks if t.columns["arm"] == s} for s in dissection_figure.SITUATIONS}
    assert list(map(len, seeds.values())) == [33, 33, 33, 79, 33]  # where 33 could not tell, 79 others are judged
    assert {(t.job.quantile, t.job.iou, t.job.concepts) for t in plan.tasks} == {(0.02, 0.08, "parquet:FILE")}
