"""Thresholds of units and the overlap of their masks with concept masks, all units against all concepts in one pass.

For unit ``k`` and concept ``c`` over a data set,

    IoU[k, c] = sum_x |M_k(x) and L_c(x)| / sum_x |M_k(x) or L_c(x)|,      M_k(x) = [upsampled map of k at x > T_k],

both sums over the images that have at least one label of ``c``'s category (Bau et al. 2017, section 2.2): sets like
Broden label only some images for each category. For each image, intersections are one matrix product: masks ``(U, P)``
times one-hot labels ``(P, C)`` over ``P`` pixels. Two exact savings make the product small: bilinear interpolation
never exceeds its map, so units whose map stays below the threshold have an empty mask and are left out; and only
concepts that occur in an image get a column.

The threshold of a unit at level ``q`` is its value number ``floor(q n)`` in falling order, counted from 0: at most a
share ``q`` of its ``n`` values lies above. As an order statistic it follows every increasing map of the unit, such as a
positive factor, and does not depend on an interpolation rule. Only the ``floor(q n) + 1`` largest values matter, a
small share of the stream; if they do not fit in memory, units are taken in groups, one pass for each.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from .concepts import ConceptSet
from .maps import LabelledMaps

_GATHERED = 4096  # values of a unit that are gathered before the largest are picked


def top_thresholds(stream: Callable[[], Iterable[Tensor]], q: float, count: int, memory: int = 2**30) -> Tensor:
    """The value of every unit that a share ``q`` of its ``count`` values exceeds, ``(U,)``.

    ``stream`` is called for each pass and gives tensors ``(U, m)``, the same values each time; ``memory`` is in bytes.

    Raises:
        ValueError: If the share is not in (0, 1), a value is not finite, or the stream holds another number of them.

    Examples:
        >>> values = torch.arange(1000.0).reshape(10, 1, 100)
        >>> top_thresholds(lambda: iter(values), 0.01, 1000)
        tensor([989.])
    """
    if not 0 < q < 1:
        raise ValueError(f"q must be a share in (0, 1). Got {q}.")
    keep = min(int(q * count), count - 1) + 1
    found: list[Tensor] = []
    start, units = 0, 1
    while start < units:
        parts: list[Tensor] = []
        seen = 0
        for values in stream():
            units, seen = len(values), seen + values.shape[1]
            group = max(1, memory // (32 * (keep + _GATHERED)))
            parts.append(_finite(values[start : start + group]))
            if sum(part.shape[1] for part in parts) >= 2 * keep + _GATHERED:
                parts = [_largest(parts, keep)]
        if seen != count:
            raise ValueError(f"stream must give {count} values for each unit in every pass. Got {seen}.")
        found.append(_largest(parts, keep).amin(1))
        start += group
    return torch.cat(found)


def _largest(parts: list[Tensor], keep: int) -> Tensor:
    values = torch.cat(parts, 1)
    return values.topk(min(keep, values.shape[1]), dim=1, sorted=False).values


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        bad = torch.nonzero(~torch.isfinite(values).all(1)).flatten().tolist()
        raise ValueError(f"values must be finite. Got NaN or infinity in units {bad[:8]}.")
    return values


_EXACT_IN_FLOAT32 = 2**24  # counts of pixels of one image stay exact below this
_MARGIN = 2.0**-30


class Tally:
    """Running counts of pixels where upsampled maps of ``U`` units exceed ``thresholds``, and of the ``C`` concepts.

    They must exceed them by a relative margin of 2^-30, between the resolutions of float32 and float64, so that
    rounding in the interpolation cannot push a value equal to the threshold over it. Masks of a chunk of images take
    ``memory`` bytes, by default 16 MB on a CPU, to nearly fit in its caches (twice as fast as 256 MB), else 256 MB.
    """

    def __init__(self, concepts: ConceptSet, thresholds: Tensor, memory: int | None = None) -> None:
        where = thresholds.device
        units, count = len(thresholds), len(concepts.concepts)
        # pixels in both masks, ``(C, U)``; of units in images with a label of each category; and of concepts, ``(C,)``
        self.intersection = torch.zeros(count, units, dtype=torch.int64, device=where)
        self.unit_area = torch.zeros(units, len(concepts.categories), dtype=torch.int64, device=where)
        self.concept_area = torch.zeros(count, dtype=torch.int64, device=where)
        self.operations = 0  # multiplications and additions done in matrix products
        self._categories = F.one_hot(concepts.category_of.to(where), len(concepts.categories))
        self._limit = thresholds.double() + thresholds.double().abs() * _MARGIN
        self._memory = (2**24 if where.type == "cpu" else 2**28) if memory is None else memory

    def update(self, batch: LabelledMaps) -> None:
        """Count one batch; its maps must be those that the thresholds belong to."""
        pixels = batch.labels.shape[-2] * batch.labels.shape[-1]
        if pixels >= _EXACT_IN_FLOAT32:
            raise ValueError(f"label maps must have fewer than 2^24 pixels. Got {tuple(batch.labels.shape[-2:])}.")
        active = batch.maps.amax((2, 3)) > self._limit  # (B, U)
        width = int(active.sum(1).max())
        step = max(1, self._memory // (16 * pixels * max(width, 1)))
        for start in range(0, len(active), step):
            part = slice(start, start + step)
            labels, whole = batch.labels[part].flatten(2).long(), batch.image_labels[part]
            self._count(batch.maps[part], active[part], labels, whole, batch.labels.shape[-2:])

    def _count(self, maps: Tensor, active: Tensor, labels: Tensor, whole: Tensor, size: torch.Size) -> None:
        """Count a chunk: maps ``(B, U, h', w')``, active units ``(B, U)``, labels ``(B, K, P)`` and ``(B, J)``."""
        present, column, one_hot = _one_hot(labels, whole, len(self.concept_area))
        has_category = (present.double() @ self._categories.double()) > 0  # (B, categories); GPUs multiply no integers
        width = max(int(active.sum(1).max()), 1)
        units = active.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # active ones first, padded
        limit = torch.where(active.gather(1, units), self._limit[units], torch.inf)
        chosen = maps.gather(1, units[:, :, None, None].expand(-1, -1, *maps.shape[2:]))
        masks = masks_above(chosen, limit, size).flatten(2)  # (B, width, P)
        overlap = torch.bmm(one_hot, masks.transpose(1, 2)).long()  # (B, columns, width)
        self.operations += 2 * overlap.numel() * masks.shape[2]
        image, concept = torch.nonzero(present, as_tuple=True)
        by_unit = overlap.new_zeros(len(image), maps.shape[1])
        by_unit.scatter_(1, units[image], overlap[image, column[image, concept]])
        self.intersection.index_add_(0, concept, by_unit)
        area = torch.zeros_like(active, dtype=torch.int64).scatter_(1, units, masks.sum(2).long())
        # of integers, exact below 2^53 in float64, which has matrix products on every device
        self.unit_area += (area.T.double() @ has_category.double()).long()
        self.concept_area.index_add_(0, concept, one_hot.sum(2).long()[image, column[image, concept]])

    def iou(self) -> Tensor:
        """``(U, C)`` in float64; 0 for a concept that never occurs."""
        intersection = self.intersection.T.double()
        category = self._categories.argmax(1)
        union = self.unit_area[:, category].double() + self.concept_area - intersection
        return torch.where(union > 0, intersection / union.clamp_min(1), 0.0)


def label_areas(batch: LabelledMaps, concepts: ConceptSet) -> tuple[Tensor, Tensor]:
    """Pixels of each concept ``(C,)``, and pixels of the images that have a label of each category, in int64."""
    labels = batch.labels.flatten(2).long()
    present, column, one_hot = _one_hot(labels, batch.image_labels, len(concepts.concepts))
    image, concept = torch.nonzero(present, as_tuple=True)
    sizes = one_hot.sum(2).long()[image, column[image, concept]]
    area = torch.zeros(len(concepts.concepts), dtype=torch.int64, device=labels.device).index_add_(0, concept, sizes)
    has_category = torch.zeros(len(labels), len(concepts.categories), dtype=torch.bool, device=labels.device)
    has_category[image, concepts.category_of.to(labels.device)[concept]] = True
    return area, has_category.sum(0) * labels.shape[2]


def masks_above(maps: Tensor, limit: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """Where maps, upsampled bilinearly to ``size``, exceed ``limit``, ``(B, U)``: 0 or 1 in float32."""
    maps = maps.double()
    if maps.shape[2:] != torch.Size(size):
        rows, columns = (_interpolation(a, b, maps.device) for a, b in zip(maps.shape[2:], size))
        maps = rows @ maps @ columns.T
    return (maps > limit[..., None, None]).float()


def _interpolation(before: int, after: int, device: torch.device) -> Tensor:
    """Linear interpolation as a matrix ``(after, before)``: two products are several times as fast as torch's own."""
    eye = torch.eye(before, dtype=torch.float64, device=device)
    return F.interpolate(eye[None], size=after, mode="linear", align_corners=False)[0].T


def _one_hot(labels: Tensor, whole: Tensor, concepts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which concepts occur ``(B, C)``, the column of each ``(B, C)``, and one-hot labels ``(B, columns, P)``."""
    images, _, pixels = labels.shape
    named = torch.cat([labels.flatten(1), whole], 1) % (concepts + 1)  # -1 becomes C, a column of its own
    present = torch.zeros(images, concepts + 1, dtype=torch.bool, device=labels.device).scatter_(1, named, True)
    present[:, concepts] = False
    column = (present.cumsum(1) - 1).clamp_min(0)
    columns = max(int(present.sum(1).max()), 1)
    column[:, concepts] = columns
    place = column.gather(1, (labels % (concepts + 1)).flatten(1)).view_as(labels)
    one_hot = torch.zeros(images, columns + 1, pixels, dtype=torch.float32, device=labels.device).scatter_(
        1, place, 1.0
    )
    if whole.shape[1]:
        place = column.gather(1, whole % (concepts + 1))[:, :, None].expand(-1, -1, pixels)
        one_hot.scatter_(1, place, 1.0)
    return present[:, :concepts], column[:, :concepts], one_hot[:, :columns]
