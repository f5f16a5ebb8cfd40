"""IoU of all units with all concepts against the pixel-by-pixel reference."""

import pytest
import torch

from intertwine.dissection import TensorConcepts
from intertwine.dissection.maps import LabelledMaps
from intertwine.dissection.overlap import Tally


def tallied(concept_set, maps, thresholds, batch_size=4, memory=None):
    tally = Tally(concept_set, thresholds, memory)
    for batch in concept_set.batches(batch_size):
        part = maps[list(batch.index)]
        tally.update(LabelledMaps(part, batch.labels, batch.image_labels, batch.index))
    return tally


@pytest.mark.parametrize(
    ("size", "q"), [((4, 5), 0.3), ((12, 10), 0.7), ((6, 5), 0.97), ((1, 1), 0.7), ((24, 20), 0.97)]
)
def test_iou_equals_the_direct_count(concept_set, slow_iou, size, q):
    maps = torch.randn(9, 5, *size, generator=torch.Generator().manual_seed(0))
    thresholds = maps.transpose(0, 1).flatten(1).double().quantile(q, dim=1)
    found = tallied(concept_set, maps, thresholds).iou()
    assert torch.equal(found, slow_iou(concept_set, maps, thresholds))


def test_batching_and_memory_do_not_matter(concept_set):
    maps = torch.randn(9, 5, 3, 4)
    thresholds = torch.full((5,), 0.4)
    whole = tallied(concept_set, maps, thresholds, batch_size=9)
    small = tallied(concept_set, maps, thresholds, batch_size=2, memory=1)
    for name in ("intersection", "unit_area", "concept_area"):
        assert torch.equal(getattr(whole, name), getattr(small, name))


def test_a_perfect_unit_and_a_dead_unit(concept_set):
    labels = torch.stack([concept_set[i].labels for i in range(9)])
    on = (labels == 2).any(1)
    maps = torch.stack([on.double(), torch.zeros_like(on, dtype=torch.float64)], 1)
    tally = tallied(concept_set, maps, torch.zeros(2))
    assert float(tally.iou()[0, 2]) == 1
    assert not tally.iou()[1].any()
    assert int(tally.concept_area[2]) == int(on.sum())


def test_images_without_the_category_do_not_count(concept_set):
    # a unit that is on everywhere: its area for scenes is that of the images that have a scene
    tally = tallied(concept_set, torch.ones(9, 1, 2, 2), torch.zeros(1))
    with_scene = int((torch.stack([concept_set[i].image_labels for i in range(9)]) >= 0).sum())
    assert tally.unit_area[0].tolist()[2] == with_scene * 120


def test_a_constant_map_at_its_threshold_stays_off():
    # bilinear weights that do not sum to 1 exactly must not lift a constant map over itself

    images = torch.zeros(1, 3, 113, 97, dtype=torch.uint8)
    concept_set = TensorConcepts(images, torch.zeros(1, 113, 97, dtype=torch.long), ["all"])
    maps = torch.rand(1, 50, 1, 1, dtype=torch.float64).expand(1, 50, 7, 5)
    tally = tallied(concept_set, maps, maps[0, :, 0, 0])
    assert not tally.intersection.any()


def test_too_large_label_maps_are_refused(concept_set):
    tally = Tally(concept_set, torch.zeros(1))
    labels = torch.zeros(1, 1, 1, 1, dtype=torch.long).expand(1, 2, 4096, 4096)
    with pytest.raises(ValueError, match=r"fewer than 2\^24 pixels"):
        tally.update(LabelledMaps(torch.zeros(1, 1, 2, 2), labels, torch.zeros(1, 1).long(), (0,)))
