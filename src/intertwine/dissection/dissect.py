"""Network dissection of one layer in its own basis, in rotated bases, and under its symmetry group; with pictures."""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._io import versions
from .._progress import track
from .._result import of_networks
from .._words import counted
from ..errors import DataError
from .bases import BASES, Arm, Bases
from .concepts import ConceptSet
from .maps import Criterion, LabelledMaps, Maps, MapStream, values_of
from .overlap import Tally, label_areas, masks_above, top_thresholds
from .result import ArmResult, Dissection, Folder, Picture, digest_data, digest_of

IMAGES = 4  # pictures of each unit
_WIDTH = 144  # pixels of a picture's shorter side
_OUTLINE = (255, 221, 51)
_DIMMED = 0.45


class TopImages:
    """The images with the largest activation of every unit, found while maps stream by."""

    def __init__(self, units: int, keep: int = IMAGES) -> None:
        self._score = torch.full((units, keep), -torch.inf, dtype=torch.float64)
        self._image = torch.full((units, keep), -1, dtype=torch.long)

    def update(self, batch: LabelledMaps) -> None:
        """Include the maps of a batch."""
        score = batch.maps.double().amax((2, 3)).T.cpu()
        image = torch.tensor(batch.index).expand_as(score)
        both, images = torch.cat([self._score, score], 1), torch.cat([self._image, image], 1)
        self._score, place = both.topk(self._score.shape[1], dim=1)
        self._image = images.gather(1, place)

    def of(self, unit: int) -> list[int]:
        """Indices of the unit's images in the set, the largest activation first."""
        return [i for i in self._image[unit].tolist() if i >= 0]


def take_pictures(
    stream: MapStream,
    result: ArmResult,
    action: Callable[[Tensor], Tensor],
    thresholds: Tensor,
    images: TopImages,
    units: int,
) -> tuple[Picture, ...]:
    """Pictures of the units with the largest IoU in one basis."""
    best = sorted(range(len(result.iou)), key=lambda u: -result.iou[u])[:units]
    best = [u for u in best if result.concept[u] >= 0]
    wanted = sorted({i for u in best for i in images.of(u)})
    if not wanted:
        return ()
    masks: dict[tuple[int, int], Tensor] = {}
    for batch in stream.at(wanted):
        maps = action(batch.maps)[:, best]
        for row, position in enumerate(batch.index):
            size = stream.concepts[wanted[position]].image.shape[1:]
            found = masks_above(maps[row][None], thresholds[best][None], size)[0].bool().cpu()
            masks |= {(wanted[position], unit): found[k] for k, unit in enumerate(best)}
    drawn = lambda image, unit: draw_outline(stream.concepts[image].image, masks[image, unit])
    return tuple(
        Picture(result.arm.name, unit, result.concept[unit], result.iou[unit], place, image, drawn(image, unit))
        for unit in best
        for place, image in enumerate(images.of(unit))
    )


def draw_outline(image: Tensor, mask: Tensor) -> str:
    """The image ``(3, H, W)`` in uint8, dimmed outside the mask and with its outline, as base64 of a JPEG file."""
    from PIL import Image

    scale = max(_WIDTH / min(image.shape[1:]), 1e-9)
    size = (round(image.shape[1] * scale), round(image.shape[2] * scale))
    large = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=scale < 1)[0]
    inside = F.interpolate(mask[None, None].float(), size=size, mode="nearest-exact")[0, 0]
    inner = -F.max_pool2d(-inside[None], 3, 1, 1)[0]  # eroded by one pixel; the border of the image is no outline
    outer = F.max_pool2d(inside[None], 3, 1, 1)[0]
    large = torch.where(inside.bool(), large, large * _DIMMED)
    large = torch.where((outer - inner).bool(), torch.tensor(_OUTLINE, dtype=torch.float32)[:, None, None], large)
    pixels = large.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG", quality=80, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


CRITERION, MAPS = Criterion(), Maps()
_THRESHOLDS = 2**28  # bytes for the largest values of units, if less is given for maps


@of_networks("model")
def dissect(
    model: nn.Module,
    layer: str,
    concepts: ConceptSet,
    bases: Bases = BASES,
    *,
    criterion: Criterion = CRITERION,
    maps: Maps = MAPS,
    pictures: int = 8,
    resume: str | Path | None = None,
    progress: bool | None = None,
) -> Dissection:
    r"""Compare every unit of a layer with every concept, in the layer's own basis and in rotated ones.

    A unit is a channel that is not constant over the data. Its mask in an image is where its map, upsampled bilinearly
    to the labels, exceeds the unit's threshold: the value that a share ``quantile`` of all its values over the data set
    exceeds. The unit's concept is the one with the largest intersection over union; with more than ``iou``, the unit is
    a detector of it.

    The same is done after ``maps -> Q^alpha maps`` for random rotations ``Q`` of the channels. If the activation makes
    the layer's basis special, detectors become fewer with ``alpha``; without an activation, there is no reason for
    that. Random elements of G_ReLU (permutations with positive scales) are run as well: since thresholds are computed
    anew, every finding must stay exactly the same. That is an identity and a check of the code, not evidence.

    Args:
        model: Any module.
        layer: A layer with maps ``(N, C, H, W)`` or tokens ``(N, T, C)`` (see :func:`intertwine.features.layers`).
        concepts: Images with labels.
        bases: Powers of random rotations, their seeds, and how many elements of G_ReLU.
        criterion: Quantile of a unit's threshold, and when it is a detector.
        maps: How the layer's maps are read: transform of the images, batches, memory, device.
        pictures: Number of best units to show for the lowest, the middle and the highest power; 0 for none.
        resume: Folder in which each finished basis is saved; a second call with the same arguments continues there.
        progress: Whether to show progress.

    Raises:
        TypeError: If the concepts are not a concept set, or ``bases`` is not a ``Bases``.
        ValueError: If ``pictures`` is negative.

    Examples:
        >>> from intertwine.dissection import Bases, TensorConcepts
        >>> images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
        >>> labels = torch.where(images[:, 2] > 250, 0, -1)          # "very blue" pixels
        >>> model = nn.Conv2d(3, 4, 1, bias=False)
        >>> model.weight.data = torch.eye(4, 3)[:, :, None, None]    # channels: red, green, blue, nothing
        >>> found = dissect(model, "", TensorConcepts(images, labels, ["very blue"]), Bases([0], 1))
        >>> [round(iou, 1) for iou in found.own.iou]
        [0.0, 0.0, 0.2]
        >>> found.own.detectors(0.04), found.constant, found.unchanged
        ((2,), (3,), True)

    References:
        Bau, Zhou, Khosla, Oliva, Torralba 2017, Network Dissection, sections 2 and 3.2.
        Paper 1, section 6 and appendix F.
    """
    if not isinstance(concepts, ConceptSet):
        kind = type(concepts).__name__
        raise TypeError(f"concepts must be a concept set. Got {kind}. Use TensorConcepts(images, labels, names).")
    if not isinstance(bases, Bases):
        raise TypeError(f"bases must be a Bases, such as Bases([0, 1], seeds=3). Got {bases!r}.")
    if pictures < 0:
        raise ValueError(f"pictures must be at least 0, the number of units to show. Got {pictures}.")
    arms = bases.arms
    stream = MapStream(model, layer, concepts, maps)
    settings = {
        "quantile": criterion.quantile,
        "standardise": criterion.standardise,
        "grid": list(maps.grid) if maps.grid else None,
        "channel_dim": maps.channel_dim,
    }
    known = "" if resume is None else digest_data(concepts, maps.transform or (lambda images: images))
    folder = Folder(resume, {**settings, "model": digest_of(model), "layer": layer, "data": known})
    channels, constant, coverage, size, count = _look(stream, criterion.empty, progress)
    stream.keep(channels)
    units, scale = len(channels), size[list(channels)] if criterion.standardise else None
    shown = _shown(arms) if pictures else set()
    results: list[ArmResult] = []
    wall: list[Picture] = []
    for arm in track(arms, f"dissecting {layer or 'the output'}", enabled=progress):
        drawn = pictures if arm in shown else 0
        loaded = folder.load(arm, drawn)
        result, taken = loaded or _one_basis(stream, arm, arm.action(units, scale), criterion.quantile, count, drawn)
        if not loaded:
            folder.save(result, taken, drawn)
        results.append(result)
        wall.extend(taken)
    return Dissection(
        model=type(model).__name__,
        layer=layer,
        data=concepts.name,
        images=len(concepts),
        channels=channels,
        concepts=concepts.concepts,
        coverage=coverage,
        constant=constant,
        quantile=criterion.quantile,
        iou_threshold=criterion.iou,
        arms=tuple(results),
        pictures=tuple(wall),
        notes=_notes(results, concepts, coverage, criterion, constant, units),
        settings={**settings, "seeds": sorted({a.seed for a in arms if a.kind == "rotation"}), "versions": versions()},
    )


def _one_basis(
    stream: MapStream, arm: Arm, action: Callable[[Tensor], Tensor], quantile: float, count: int, pictures: int
) -> tuple[ArmResult, tuple[Picture, ...]]:
    """Thresholds from ``count`` values of each unit, then overlaps, for all units in one basis."""
    values = lambda: (values_of(action(batch.maps)) for batch in stream)
    found = top_thresholds(values, quantile, count, max(stream.memory, _THRESHOLDS))
    tally, images = Tally(stream.concepts, found), TopImages(len(found))
    for batch in stream:
        turned = LabelledMaps(action(batch.maps), batch.labels, batch.image_labels, batch.index)
        tally.update(turned)
        if pictures:
            images.update(turned)
    best, concept = tally.iou().cpu().max(1)
    concept = torch.where(best > 0, concept, -1)
    result = ArmResult(arm, tuple(concept.tolist()), tuple(best.tolist()))
    taken = take_pictures(stream, result, action, found, images, pictures) if pictures else ()
    return result, taken


def _look(
    stream: MapStream, empty: str, progress: bool | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], Tensor, int]:
    """Channels that vary, channels that do not, pixel shares of concepts, root mean squares and values of channels."""
    data = stream.concepts
    area, whole = torch.zeros(len(data.concepts)).long(), torch.zeros(len(data.categories)).long()
    low = high = torch.empty(0)
    squares, count = torch.zeros(1, dtype=torch.float64), 0
    for batch in stream.first_pass(progress):
        of_concept, of_category = label_areas(batch, data)
        area, whole = area + of_concept.cpu(), whole + of_category.cpu()
        values = values_of(batch.maps)
        squares, count = squares + values.double().square().sum(1).cpu(), count + values.shape[1]
        smallest, largest = (v.cpu() for v in torch.aminmax(values, dim=1))
        low = torch.minimum(low, smallest) if low.numel() else smallest
        high = torch.maximum(high, largest) if high.numel() else largest
    missing = [c.name for c, pixels in zip(data.concepts, area.tolist()) if not pixels]
    if len(missing) == len(data.concepts):
        raise DataError(f"at least one concept of {data.name} must have pixels. Got none that has.")
    if missing and empty == "error":
        raise DataError(
            f"every concept of {data.name} must have pixels in these {len(data)} images. "
            f"Got none for {_listed(missing)}. Say Criterion(empty='drop') to leave them out."
        )
    coverage = area / whole[data.category_of].clamp_min(1)
    live, constant = (tuple(torch.nonzero(which).flatten().tolist()) for which in (low != high, low == high))
    if not live:
        raise DataError(f"layer must have a channel that varies over {data.name}. Got {len(low)} constant ones.")
    return live, constant, tuple(coverage.tolist()), (squares / count).sqrt(), count


def _shown(arms: Sequence[Arm]) -> set[Arm]:
    """The lowest, middle and highest power of the first rotation."""
    path = [a for a in arms if a.kind == "rotation" and a.seed == arms[0].seed]
    return {path[0], path[len(path) // 2], path[-1]}


def _notes(
    results: Sequence[ArmResult],
    data: ConceptSet,
    coverage: Sequence[float],
    criterion: Criterion,
    constant: tuple[int, ...],
    units: int,
) -> tuple[str, ...]:
    notes, quantile, iou = [], criterion.quantile, criterion.iou
    if missing := [c.name for c, share in zip(data.concepts, coverage) if not share]:
        notes.append(f"Left out, as no pixel carries them: {counted(len(missing), 'concept')} ({_listed(missing)}).")
    if wide := [c.name for c, share in zip(data.concepts, coverage) if share * iou > quantile]:
        notes.append(
            f"Hard to find: {counted(len(wide), 'concept')} ({_listed(wide)}) on more than {quantile / iou:.3g} of the "
            f"pixels of images with such labels. A mask of {quantile:.2%} of these pixels has an IoU below {iou:g}; "
            "one concentrated in these images may reach it. A larger quantile could find them."
        )
    if constant:
        notes.append(
            f"{len(constant)} of {units + len(constant)} channels are constant (dead) on these images. They were left "
            "out, also of the rotations: mixing them with others would make detectors out of nothing."
        )
    changed = [r.arm.seed for r in results if r.arm.kind == "g_relu" and r.findings() != results[0].findings()]
    if changed:
        notes.append(f"Findings changed under the G_ReLU elements of seeds {changed}, which must not happen.")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
