"""A small labelled set with several planes and whole-image labels, and a small network."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intertwine.dissection import Concept, TensorConcepts


@pytest.fixture
def concept_set():
    """Three categories; the labels of whole images belong to a category of their own, missing in some images."""
    g = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (9, 3, 12, 10), dtype=torch.uint8, generator=g)
    blocks = torch.randint(-1, 5, (9, 2, 3, 2), generator=g)
    labels = blocks.repeat_interleave(4, 2).repeat_interleave(5, 3)
    labels[4] = -1  # one image without any pixel label
    scenes = torch.randint(5, 7, (9, 1), generator=g)
    scenes[::3] = -1
    concepts = [
        Concept("red", "colour"), Concept("blue", "colour"), Concept("wheel", "part"), Concept("door", "part"),
        Concept("roof", "part"), Concept("street", "scene"), Concept("forest", "scene"),
    ]  # fmt: skip
    return TensorConcepts(images, labels, concepts, scenes, name="made")


@pytest.fixture
def network():
    """A small ReLU CNN whose maps are smaller than the labels."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU())


def _slow_iou(concept_set, maps, thresholds):
    """IoU ``(U, C)`` pixel by pixel in plain Python, from full maps ``(N, U, h, w)``."""
    units, concepts = maps.shape[1], len(concept_set.concepts)
    result = torch.zeros(units, concepts, dtype=torch.float64)
    for c, concept in enumerate(concept_set.concepts):
        same = {i for i, other in enumerate(concept_set.concepts) if other.category == concept.category}
        for u in range(units):
            both = either = 0
            for n in range(len(concept_set)):
                sample = concept_set[n]
                height, width = sample.labels.shape[1:]
                named = set(sample.labels.flatten().tolist()) | set(sample.image_labels.tolist())
                if not named & same:
                    continue
                up = F.interpolate(maps[n : n + 1, u : u + 1].double(), (height, width), mode="bilinear")[0, 0]
                for i in range(height):
                    for j in range(width):
                        unit_on = bool(up[i, j] > thresholds[u] + abs(thresholds[u]) * 2.0**-30)
                        here = set(sample.labels[:, i, j].tolist()) | set(sample.image_labels.tolist())
                        both += unit_on and c in here
                        either += unit_on or c in here
            result[u, c] = both / either if either else 0.0
    return result


@pytest.fixture
def slow_iou():
    """The reference that cannot be misread."""
    return _slow_iou
