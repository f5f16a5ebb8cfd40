"""Colour concepts from the pixels themselves, by hue, saturation and value.

The eleven basic colour terms of English (Berlin and Kay 1969). Broden names colours by a table learned from image
searches; here the borders are fixed and stated: black below value 0.2; of the rest, below saturation 0.18, white above
value 0.85 and grey otherwise; else by hue in degrees, with dark orange and dark yellow called brown and light or
purplish red called pink.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .concepts import Concept, ConceptSet, Sample

COLOURS = ("black", "white", "grey", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
_BLACK, _WHITE, _GREY, _RED, _ORANGE, _YELLOW, _GREEN, _BLUE, _PURPLE, _PINK, _BROWN = range(len(COLOURS))
_DARKEST, _PALEST, _BRIGHTEST, _BROWN_BELOW = 0.2, 0.18, 0.85, 0.6
# hue in degrees up to which a saturated pixel has the colour; beyond the last it is red again
_HUES = ((15, _RED), (45, _ORANGE), (70, _YELLOW), (165, _GREEN), (255, _BLUE), (300, _PURPLE), (345, _PINK))


def name_colours(image: Tensor) -> Tensor:
    """The basic colour of every pixel.

    Raises:
        ValueError: If the image is not ``(3, H, W)`` in ``uint8``.

    Examples:
        >>> pixels = torch.tensor([[255, 0, 0], [0, 0, 255], [120, 70, 20]], dtype=torch.uint8).T[:, None]
        >>> [COLOURS[i] for i in name_colours(pixels)[0]]
        ['red', 'blue', 'brown']
    """
    if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8:
        raise ValueError(f"image must be (3, H, W) in uint8. Got {tuple(image.shape)} in {image.dtype}.")
    rgb = image.to(torch.float32) / 255
    value, top = rgb.max(0)
    chroma = value - rgb.min(0).values
    saturation = chroma / value.clamp_min(1e-6)
    red, green, blue = rgb
    sectors = torch.stack([(green - blue), (blue - red), (red - green)]).gather(0, top[None])[0]
    hue = (60 * (sectors / chroma.clamp_min(1e-6) + 2 * top)) % 360
    found = torch.full_like(top, _RED)
    for limit, colour in reversed(_HUES):
        found[hue < limit] = colour
    warm_and_dark = (hue >= 8) & (hue < 60) & (value < _BROWN_BELOW)
    found[warm_and_dark] = _BROWN
    found[((hue < 15) | (hue >= 345)) & (saturation < 0.55) & (value > 0.7)] = _PINK
    found[saturation < _PALEST] = _GREY
    found[(saturation < _PALEST) & (value > _BRIGHTEST)] = _WHITE
    found[value < _DARKEST] = _BLACK
    return found


class WithColours(ConceptSet):
    """A concept set with one more plane: the colour of every pixel, computed from the image.

    Raises:
        ValueError: If it has one.
    """

    def __init__(self, base: ConceptSet) -> None:
        if "colour" in base.categories:
            raise ValueError(f"base must have no category 'colour' of its own. Got {base!r}. Use it as it is.")
        self._base, self._first = base, len(base.concepts)
        self.name, self.planes, self.whole = f"{base.name}+colours", base.planes + 1, base.whole
        self.concepts = (*base.concepts, *(Concept(name, "colour") for name in COLOURS))

    def __len__(self) -> int:
        return len(self._base)

    def _read(self, i: int) -> Sample:
        sample = self._base[i]
        colours = name_colours(sample.image) + self._first
        size = sample.labels.shape[1:]
        if colours.shape != size:
            colours = F.interpolate(colours[None, None].float(), size=size, mode="nearest-exact")[0, 0].long()
        return Sample(sample.image, torch.cat([sample.labels.long(), colours[None]]), sample.image_labels)
