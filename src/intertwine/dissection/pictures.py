"""Pictures of the best units: images with the outline of the unit's mask."""

import base64
import io
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .maps import LabelledMaps, MapStream
from .overlap import masks_above
from .result import ArmResult, Picture

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
        """Take in the maps of a batch."""
        score = batch.maps.double().amax((2, 3)).T.cpu()
        image = torch.tensor(batch.index).expand_as(score)
        both, images = torch.cat([self._score, score], 1), torch.cat([self._image, image], 1)
        self._score, place = both.topk(self._score.shape[1], dim=1)
        self._image = images.gather(1, place)

    def of(self, unit: int) -> list[int]:
        """Places of the unit's images in the set, the largest activation first."""
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
