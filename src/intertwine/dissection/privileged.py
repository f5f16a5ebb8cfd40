"""Privileged bases: the symmetry group's prediction compared with the measurement by dissection.

If the group mixes the channels of a layer by general linear or orthogonal maps, nothing tells their basis from any
other, and a rotation should leave as many detectors. If it only permutes, rescales and flips channels, the basis is
meaningful up to those. Which of the two holds is read off the representation of the group on the layer's channels
(``Symmetry.features``).

The paper argues from the activation alone (paper 1, section 6). The group of the architecture can be smaller: batch
norm after a convolution passes permutations, scales and signs, and no other linear map, so a residual stream without
ReLU is still tied to its channels where batch norm writes to it.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import track
from .._result import Result
from ..features import Point, layers, tap
from ..features.activations import unwrap
from ..groups.representation import KINDS
from ..symmetry import Symmetry
from ..symmetry.proof import in_float64
from ..symmetry.spaces import Leaf, leaves
from ..testing import relative_error
from .bases import Bases
from .concepts import ConceptSet
from .dissect import CRITERION, MAPS, dissect
from .maps import Criterion, Maps, as_maps, given

_MOVED = 0.02  # relative change of a layer beyond rounding, in any precision; random elements change it by about 1


@dataclass(frozen=True)
class SpaceBasis:
    """One hidden space: prediction and measurement.

    Args:
        space: Its name in the symmetry.
        group: Its group, in symbols.
        layer: The layer that was dissected: the last activation that carries the space, or else the last layer.
        prediction: What the group says about the layer's basis.
        privileged: Whether it says that the basis is special.
        units: Channels of the layer.
        own: Detectors in the network's own basis.
        rotated: Mean number of detectors after a whole rotation.
        low: Lower end of the 95 % interval for one more rotation.
        high: Upper end.
        trend: ``"falls"``, ``"rises"`` or ``"undecided"``.
    """

    space: str
    group: str
    layer: str
    prediction: str
    privileged: bool
    units: int
    own: int
    rotated: float
    low: float
    high: float
    trend: str

    @property
    def agrees(self) -> bool | None:
        """Whether special bases lose detectors and others do not; ``None`` if the measurement is undecided."""
        if self.trend == "undecided":
            return None
        return (self.trend == "falls") == self.privileged


@dataclass(frozen=True, repr=False)
class PrivilegedBases(Result):
    """Every hidden space of a network: what its group predicts and what dissection measures.

    Args:
        model: Name of the model.
        data: Name of the concept set.
        spaces: The spaces carried by some layer with maps.
        without_maps: Spaces carried by none.
    """

    model: str
    data: str
    spaces: tuple[SpaceBasis, ...]
    without_maps: tuple[str, ...]

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each space."""
        return [{**asdict(s), "agrees": s.agrees} for s in self.spaces]

    def summary(self) -> str:
        """The group's prediction and the measurement for every space."""
        lines = [f"Privileged bases of {self.model} on {self.data}"]
        for s in self.spaces:
            lines.append(f"{s.layer} carries {s.space}, {s.group}")
            lines.append(f"  predicted: {s.prediction}")
            lines.append(
                f"  measured:  {s.own} of {s.units} units are detectors, {s.rotated:.1f} after rotations"
                f" (one more: {s.low:.1f} to {s.high:.1f}): {s.trend}"
            )
        if self.without_maps:
            lines.append(f"No layer with maps carries {', '.join(self.without_maps)}.")
        return "\n".join(lines)


def predict(model: nn.Module, layer: str, example_inputs: Any) -> str:
    """The prediction of the symmetry group of a model's weights for the basis of one layer.

    Where the search does not state how the layer moves, as behind an RMS norm or an activation that the model's own
    code puts together, copies of the model moved by each kind of map are run to see which of them move it; this needs
    weights.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 2, 1))
        >>> images = torch.rand(2, 3, 8, 8)
        >>> predict(model, "1", images)
        'the group only permutes and rescales these channels: their basis is meaningful up to that'
        >>> predict(model, "2", images)
        'the group mixes these channels by general linear maps: no basis is privileged'
    """
    from ..symmetry import symmetries

    model = unwrap(model)
    with tap(model, [layer]) as tapped:
        point = tapped.prepare(example_inputs)[0]
    sym = symmetries(model, example_inputs)
    return _words(sym, point) if point.name in sym.features else _said(_observed(sym, model, point, example_inputs))


def _observed(sym: Symmetry, model: nn.Module, point: Point, example_inputs: Any) -> tuple[str, ...]:
    """The kinds of maps that move the channels of a point when a random element acts."""
    if any(t.is_meta for t in model.parameters()):
        raise ValueError(
            f"model must have weights, to see how layer {point.name!r} moves. Got a model on the meta device."
        )
    wide = in_float64(model, example_inputs)

    def values(moved: nn.Module) -> list[Tensor]:  # of each channel, sorted: units of other axes may change places
        with wide.casts(), tap(moved, [point.name]) as tapped:
            return [tapped(wide.inputs)[point.name].movedim(point.channel_dim, 0).flatten(1).sort(1).values]

    before, copies = values(wide.model), {kind: sym.act(sym.random(0, kinds={kind}), wide.model) for kind in KINDS}
    return tuple(kind for kind, moved in copies.items() if relative_error(before, values(moved)) > _MOVED)


def privileged_bases(
    model: nn.Module,
    concepts: ConceptSet,
    *,
    seeds: int = 5,
    criterion: Criterion = CRITERION,
    maps: Maps = MAPS,
    progress: bool | None = None,
) -> PrivilegedBases:
    """Dissect one layer for every hidden space that ``intertwine.symmetries`` finds, as :func:`dissect` does."""
    from ..symmetry import symmetries

    model, images = unwrap(model), next(concepts.batches(2)).images
    example = given(model, images, maps)
    sym = symmetries(model, example)
    size = (images.shape[-2], images.shape[-1])
    points = [replace(p, channel_dim=maps.channel_dim or p.channel_dim) for p in layers(model, example) if p.name]
    points = [point for point in points if _has_maps(point, maps.grid, size)]
    found, without = [], []
    for space in track(sym.spaces, "dissecting spaces", enabled=progress):
        carrying = [point for point in points if _carried(sym, point, space.name)]
        if not carrying:
            without.append(space.name)
            continue
        point = ([point for point in carrying if point.activation] or carrying)[-1]
        kinds = _kinds(sym, point, space.name)
        bases = Bases([0, 1], seeds, 0)
        result = dissect(model, point.name, concepts, bases, criterion=criterion, maps=maps, pictures=0)
        own, turned = result.counts()
        said = space.name, space.symbol, point.name, _words(sym, point, space.name), "linear" not in kinds
        found.append(SpaceBasis(*said, result.units, round(own.mean), turned.mean, *turned.one_more, result.trend))
    return PrivilegedBases(type(model).__name__, concepts.name, tuple(found), tuple(without))


def _carried(sym: Symmetry, point: Point, space: str | None = None) -> list[Leaf]:
    """What the channels of a point carry: of all spaces, or of one."""
    if point.name not in sym.features:
        return []
    found = (leaf for _, leaf in leaves(sym.features[point.name].axes[point.channel_dim]))
    return [leaf for leaf in found if isinstance(leaf, Leaf) and space in (None, leaf.space)]


def _kinds(sym: Symmetry, point: Point, space: str | None = None) -> tuple[str, ...]:
    """The kinds of maps by which the group moves the channels of a point."""
    carried = _carried(sym, point, space)
    moving = {kind for leaf in carried for kind in leaf.kinds if kind in sym.space(leaf.space).group.kinds}
    return tuple(kind for kind in KINDS if kind in moving)


def _has_maps(point: Point, grid: tuple[int, int] | None, image_size: tuple[int, int]) -> bool:
    try:
        maps = as_maps(torch.empty(1, *point.shape, device="meta"), point.channel_dim, grid, image_size, point.name)
    except ValueError:
        return False
    return maps.shape[2] * maps.shape[3] > 1


def _words(sym: Symmetry, point: Point, space: str | None = None) -> str:
    kinds = _kinds(sym, point, space)
    if "linear" in kinds:
        mixing = [g for leaf in _carried(sym, point, space) if (g := sym.space(leaf.space).group).mixes]
        maps = "orthogonal" if all(group.is_orthogonal for group in mixing) else "general linear"
        return _said(kinds, f"{maps} maps")
    return _said(kinds)


def _said(kinds: tuple[str, ...], mixing: str = "linear maps") -> str:
    """The prediction in words; ``mixing`` names the maps of kind ``"linear"``."""
    if "linear" in kinds:
        return f"the group mixes these channels by {mixing}: no basis is privileged"
    verbs = {"permutation": "permutes", "scale": "rescales", "sign": "flips"}
    said = [verbs[k] for k in kinds]
    if not said:
        return "no symmetry moves these channels: their basis is meaningful as it is"
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    return f"the group only {listed} these channels: their basis is meaningful up to that"
