"""Affine maps from the input to the pre-activations of a linear gating network: one image for each unit."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._evaluation import copied, in_usual_mode
from ..._result import Result
from ...programs.operations import MAX_POOLS
from ..networks.gated import GatedNetwork
from ..relu_program import capture_relu

_BATCH = 256
Index = tuple[Any, ...]


@dataclass(frozen=True)
class EffectiveMap:
    """One layer's pre-activations as an affine map of the input: ``q_u(x) = <weights_u, x> + offsets_u``.

    Attributes:
        layer: Name of the ReLU that these pre-activations gate.
        weights: ``(*units, C, *S)``: one image for each unit.
        offsets: ``(*units)``.
    """

    layer: str
    weights: Tensor = field(repr=False)
    offsets: Tensor = field(repr=False)

    @property
    def units(self) -> int:
        """Number of units."""
        return self.offsets.numel()

    @property
    def images(self) -> Tensor:
        """The weights with all units along one axis ``(units, C, *S)``."""
        return self.weights.flatten(0, self.offsets.dim() - 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Pre-activations of inputs ``(N, C, *S)``: ``(N, *units)``."""
        flat = x.flatten(1).to(self.weights) @ self.images.flatten(1).T
        return flat.view(len(x), *self.offsets.shape) + self.offsets


@dataclass(frozen=True, repr=False)
class EffectiveMaps(Result):
    """The affine maps of every layer of a linear gating network.

    Attributes:
        maps: Layer by layer, in the order in which the value network uses them.
        positions: ``"all"``, or ``"centre"`` where of each channel only the middle position is given.
    """

    maps: tuple[EffectiveMap, ...]
    positions: str = "all"

    def __getitem__(self, layer: str | int) -> EffectiveMap:
        if isinstance(layer, int):
            return self.maps[layer]
        for one in self.maps:
            if one.layer == layer:
                return one
        raise ValueError(f"layer must be one of {[m.layer for m in self.maps]}. Got {layer!r}.")

    def __iter__(self) -> Iterator[EffectiveMap]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)

    def summary(self) -> str:
        """Units and rank of every layer's map."""
        lines = [f"{m.layer}: {m.units} units, rank {_rank(m)} of {m.images[0].numel()}" for m in self.maps]
        return "\n".join(["What each gate looks for, one image for each unit:", *lines])

    def _rows(self) -> list[dict[str, Any]]:
        """One row per unit: its layer, number, norm of its image and offset."""
        return [
            {"layer": m.layer, "unit": u, "norm": float(image.norm()), "offset": float(offset)}
            for m in self.maps
            for u, (image, offset) in enumerate(zip(m.images, m.offsets.flatten()))
        ]


@in_usual_mode
def effective_maps(
    network: GatedNetwork,
    example: Tensor,
    layers: Collection[str] | None = None,
    *,
    positions: Literal["all", "centre"] = "all",
    memory: float = 2**30,
) -> EffectiveMaps:
    """Find the affine map from the input to every pre-activation of a linear gating network (P2 section 3).

    The first of a DLGN's two linearities: without ReLUs each unit's pre-activation is one image, compared with the
    input, plus an offset. It is the Jacobian, which here does not depend on the
    input: found from every basis image, or by gradients where a layer has fewer units than the input has entries, in
    float64 and evaluation mode. A ReLU network has no such map; for one input
    :func:`active_subnetwork` gives the map of its outputs.

    Args:
        network: What :func:`dlgn` or :func:`dlgn_sf` made. It is copied.
        example: Inputs ``(N, C, *S)``; the first is used, for its shape and as a check.
        layers: Names of the layers to return; all without.
        positions: ``"all"`` units, or of each channel of a convolution the one at the ``"centre"``: the images of the
            others are its shifts wherever padding and the stride of a pooling play no part.
        memory: Bytes that all images together may take.

    Returns:
        One map for each layer of gates, in float64.

    Raises:
        TypeError: If ``network`` is no gated network.
        ValueError: If its gating network is not linear, a layer is unknown, or the images do not fit.

    Examples:
        >>> from torch import nn
        >>> from intertwine.gates import dlgn
        >>> network = dlgn(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)))
        >>> maps = effective_maps(network, torch.randn(1, 4))
        >>> [(m.layer, tuple(m.weights.shape)) for m in maps]
        [('1', (8, 4)), ('3', (5, 4))]
    """  # noqa: DOC502 - raised by the checks
    _check(network, positions)
    gating = copied(network.gating).double().eval()
    x = example[:1].detach().double()
    gating.requires_grad_(False)
    with torch.no_grad():
        shapes = [tuple(q.shape[1:]) for q in gating(x)]
        names = _names(network, example[:1], len(shapes))
        wanted = _wanted(names, layers)
        chosen = {i: _positions(shapes[i], positions) for i in wanted}
        size = sum(8 * math.prod(shapes[i][: 1 if positions == "centre" else None]) for i in wanted) * x.numel()
        if size > memory:
            raise ValueError(
                f"all images must fit in memory = {memory:.1e} bytes. Got {size:.1e}. Take positions='centre', fewer "
                "layers, or more memory."
            )
        offsets = [q[(0, *chosen[i])] if i in chosen else q[0] for i, q in enumerate(gating(torch.zeros_like(x)))]
        weights = _by_inputs(gating, x, chosen, [i for i in wanted if offsets[i].numel() >= x.numel()])
    weights |= {i: _by_units(gating, x, chosen[i], i) for i in wanted if i not in weights}
    maps = tuple(
        EffectiveMap(names[i], weights[i].view(*offsets[i].shape, *x.shape[1:]), offsets[i].clone()) for i in wanted
    )
    with torch.no_grad():
        _check_linear(maps, x, [q[(slice(None), *chosen[i])] for i, q in enumerate(gating(x)) if i in chosen])
    return EffectiveMaps(maps, positions)


def _by_inputs(gating: nn.Module, x: Tensor, chosen: dict[int, Index], layers: list[int]) -> dict[int, Tensor]:
    """Column by column: the network on every basis image, for all ``layers`` at once; each ``(units, inputs)``."""
    if not layers:
        return {}
    zero = gating(torch.zeros_like(x))
    columns: dict[int, list[Tensor]] = {i: [] for i in layers}
    for inputs in torch.arange(x.numel(), device=x.device).split(_BATCH):
        basis = torch.zeros(len(inputs), x.numel(), dtype=x.dtype, device=x.device)
        basis[torch.arange(len(inputs)), inputs] = 1
        found = gating(basis.view(-1, *x.shape[1:]))
        for i in layers:
            columns[i].append((found[i] - zero[i])[(slice(None), *chosen[i])].flatten(1).T)
    return {i: torch.cat(parts, 1) for i, parts in columns.items()}


def _by_units(gating: nn.Module, x: Tensor, chosen: Index, layer: int) -> Tensor:
    """Row by row, cheaper where a layer has fewer units than the input has entries: gradients of many units at once."""
    rows = []
    with torch.no_grad():
        units = gating(torch.zeros_like(x))[layer][(0, *chosen)].numel()
    for some in torch.arange(units, device=x.device).split(_BATCH):
        z = torch.zeros(len(some), *x.shape[1:], dtype=x.dtype, device=x.device, requires_grad=True)
        with torch.enable_grad():
            q = gating(z)[layer][(slice(None), *chosen)].flatten(1)
            total = q[torch.arange(len(some), device=x.device), some].sum()
        rows.append(torch.autograd.grad(total, z)[0].flatten(1))
    return torch.cat(rows)


def _check(network: GatedNetwork, positions: str) -> None:
    """Check the arguments."""
    if not isinstance(network, GatedNetwork):
        raise TypeError(f"network must be a gated network, as dlgn makes it. Got {type(network).__name__}.")
    if not network.is_linear:
        raise ValueError(
            "the gating network must be linear, as dlgn and dlgn_sf make it. Got one with ReLUs, whose maps change "
            "with the input. For one input, active_subnetwork gives the map of the outputs."
        )
    if positions not in ("all", "centre"):
        raise ValueError(f'positions must be "all" or "centre". Got {positions!r}.')


def _names(network: GatedNetwork, x: Tensor, count: int) -> list[str]:
    """Names of the ReLUs that the gates are for."""
    value = copied(network.value).eval()
    program = capture_relu(value, x.to(next(value.parameters())))
    names = [n for n, call in zip(program.names, program.gate_calls) if call.op not in MAX_POOLS]
    return names if len(names) == count else [str(i) for i in range(count)]


def _wanted(names: list[str], layers: Collection[str] | None) -> list[int]:
    """Which layers to look at."""
    unknown = [name for name in layers or () if name not in names]
    if unknown:
        raise ValueError(f"layers must be among {names}. Got {unknown}.")
    return [i for i, name in enumerate(names) if layers is None or name in layers]


def _positions(shape: tuple[int, ...], positions: str) -> Index:
    """An index that picks the units of a layer ``(C, *S)``."""
    return (slice(None), *(s // 2 for s in shape[1:])) if positions == "centre" else (slice(None),)


def _check_linear(maps: tuple[EffectiveMap, ...], x: Tensor, expected: list[Tensor]) -> None:
    """Check the maps on an input."""
    for one, q in zip(maps, expected):
        error, size = float((one(x) - q).abs().max()), 1.0 + float(q.abs().max())
        if not error <= 1e-8 * size:
            raise ValueError(
                f"the gating network must be affine in evaluation mode. Got another function at {one.layer} (error "
                f"{error:.2g})."
            )


def _rank(one: EffectiveMap) -> int:
    return int(torch.linalg.matrix_rank(one.images.flatten(1)))
