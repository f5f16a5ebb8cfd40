"""Affine maps: what the sub-network of one input computes, and what each unit of a linear gating network looks for."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from .._evaluation import copied, in_usual_mode
from .._result import Result
from .gated_network import GatedNetwork
from .kernels.path_kernel import neural_path_kernel
from .patterns import fixed_gates, observe, structure
from .relu_program import ReluProgram, capture_relu


@dataclass(frozen=True, repr=False)
class ActiveSubnetwork(Result):
    """The sub-network of one input: the gates that it opens, and what the network does with these gates.

    Attributes:
        layers: Names of the gates, in the order in which they run.
        gates: For each of them the gates of the input ``(C, *S)``: bool; numbers for leaky ReLUs and soft gates; for
            max poolings the positions taken.
        weights: Effective linear map ``(outputs, C, *S)``: what each output multiplies the value network's input by.
        offsets: What biases add to each output ``(outputs,)``.
        outputs: ``weights`` applied to the input, plus ``offsets`` ``(outputs,)``: exactly the network's outputs.
        log_overlap: Natural logarithm of the overlap of the input with itself: of the number of active paths to one
            output. If layers share weights between positions, pairs of paths in one bundle are counted.
    """

    layers: tuple[str, ...]
    gates: tuple[Tensor, ...]
    weights: Tensor
    offsets: Tensor
    outputs: Tensor
    log_overlap: float

    def contributions(self, output: int, value: Tensor) -> Tensor:
        """Contribution of every entry of the value network's input to one output, ``weights * value`` ``(C, *S)``."""
        return self.weights[output] * value.to(self.weights)

    def summary(self) -> str:
        """Numbers of paths and units that are on for the input."""
        frame = self.to_frame()
        lines = [f"{r.layer}: {r.on:g} of {r.units} units on ({r.share:.0%})" for r in frame.itertuples()]
        count = f"10^{self.log_overlap / math.log(10):.1f} paths are" if self.log_overlap > -math.inf else "No path is"
        return "\n".join([f"{count} on for this input:", *lines])

    def _rows(self) -> list[dict[str, Any]]:
        """One row per ReLU layer: how many of its units are on; a leaky or soft gate counts by its value."""
        rows = []
        for name, gate in zip(self.layers, self.gates):
            if gate.dtype != torch.long:
                on = float(gate.double().sum())
                rows.append({"layer": name, "units": gate.numel(), "on": on, "share": on / gate.numel()})
        return rows


@in_usual_mode
def active_subnetwork(model: nn.Module, x: Tensor) -> ActiveSubnetwork:
    """Find the sub-network that one input switches on (P2 definition A.3) and the affine map that it computes.

    With its gates held fixed a ReLU network is affine: this is the second of the two linearities of a gated network,
    and why the output for one input can be explained exactly, entry by entry. The map holds as long as no gate changes.
    For a gated network it is the map of the value network, from ``x`` or from the constant 1 that it receives.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: One input ``(1, C, *S)``.

    Returns:
        The sub-network; tensors are on the CPU, floating-point ones in float64.

    Raises:
        ValueError: If there is more than one input, or the model is not made of gates and linear maps.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> found = active_subnetwork(model, torch.tensor([[1.0, -1.0]]))
        >>> found.gates[0], bool(found.weights[0, 1] == 0)
        (tensor([ True, False]), True)
    """
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != 1:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be one input (1, C, *S). Got {shape}.")
    value, input = structure(model, "x")
    program = capture_relu(value, x)
    gates = observe(model, program, x)
    log = neural_path_kernel(model, x, input="ones", log=True)[0]
    given = (x if input == "x" else torch.ones_like(x)).detach()
    weights, outputs = _affine(program, gates, given)
    offsets = outputs - (weights * given.cpu().double()).flatten(1).sum(1)
    return ActiveSubnetwork(program.names, tuple(g[0].cpu() for g in gates), weights, offsets, outputs, float(log))


def _affine(program: ReluProgram, gates: Sequence[Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian ``(outputs, C, *S)`` and outputs ``(outputs,)`` at fixed gates."""
    z = given.clone().requires_grad_(True)
    with torch.enable_grad():
        (out,) = program.run(z, handlers=fixed_gates(program, gates))
    rows = [torch.autograd.grad(out[0, o], z, retain_graph=True)[0][0] for o in range(out.shape[1])]
    return torch.stack(rows).cpu().double(), out[0].detach().cpu().double()


_BATCH = 256
Index = tuple[Any, ...]


@dataclass(frozen=True)
class EffectiveMap:
    """One layer's pre-activations as an affine map of the input: ``q_u(x) = <weights_u, x> + offsets_u``."""

    layer: str  # Name of the ReLU that these pre-activations gate
    weights: Tensor = field(repr=False)  # ``(*units, C, *S)``: one image for each unit
    offsets: Tensor = field(repr=False)  # ``(*units)``

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
        positions: ``"all"``, or ``"centre"`` if only the middle position of each channel is given.
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
        rank = lambda one: int(torch.linalg.matrix_rank(one.images.flatten(1)))
        lines = [f"{m.layer}: {m.units} units, rank {rank(m)} of {m.images[0].numel()}" for m in self.maps]
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

    This is the first of a DLGN's two linearities: without ReLUs each unit's pre-activation is one image, compared with
    the input, plus an offset. The map is the Jacobian, which here does not depend on the input: it is found from every
    basis image, in float64 and evaluation mode. A ReLU network has no such map; for one input :func:`active_subnetwork`
    gives the map of its outputs.

    Args:
        network: A network that :func:`dlgn` or :func:`dlgn_sf` made. It is copied.
        example: Inputs ``(N, C, *S)``; the first is used, for its shape and as a check.
        layers: Names of the layers to return; by default all.
        positions: ``"all"`` units, or for each channel of a convolution the one at the ``"centre"``: the images of the
            others are its shifts wherever padding and the stride of a pooling play no part.
        memory: Bytes that all images together may take.

    Returns:
        One map for each layer of gates, in float64.

    Raises:
        TypeError: If ``network`` is not a gated network.
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
    unordered = copied(network.gating).double().eval()
    x = example[:1].detach().double()
    unordered.requires_grad_(False)
    gating = lambda z: network.in_order(unordered(z))
    with torch.no_grad():
        shapes = [tuple(q.shape[1:]) for q in gating(x)]
        names = _names(network, example[:1])
        asked = names if layers is None else [layers] if isinstance(layers, str) else layers
        if unknown := [name for name in asked if name not in names]:
            raise ValueError(f"layers must be among {names}. Got {unknown}.")
        wanted = [i for i, name in enumerate(names) if name in asked]
        middle = lambda shape: tuple(s // 2 for s in shape[1:]) if positions == "centre" else ()
        chosen: dict[int, Index] = {i: (slice(None), *middle(shapes[i])) for i in wanted}
        size = sum(8 * math.prod(shapes[i][: 1 if positions == "centre" else None]) for i in wanted) * x.numel()
        if size > memory:
            raise ValueError(
                f"all images must fit in memory = {memory:.1e} bytes. Got {size:.1e}. Take positions='centre', fewer "
                "layers, or more memory."
            )
        zero = gating(torch.zeros_like(x))
        offsets = {i: zero[i][(0, *at)] for i, at in chosen.items()}
        weights = _columns(gating, x, zero, chosen)
        maps = tuple(
            EffectiveMap(names[i], weights[i].view(*q.shape, *x.shape[1:]), q.clone()) for i, q in offsets.items()
        )
        _check_linear(maps, x, [q[(slice(None), *chosen[i])] for i, q in enumerate(gating(x)) if i in chosen])
    return EffectiveMaps(maps, positions)


def _columns(
    gating: Callable[[Tensor], list[Tensor]], x: Tensor, zero: Sequence[Tensor], chosen: dict[int, Index]
) -> dict[int, Tensor]:
    """The network on every basis image minus its offsets, for all layers at once; each ``(units, inputs)``."""
    columns: dict[int, list[Tensor]] = {i: [] for i in chosen}
    for inputs in torch.arange(x.numel(), device=x.device).split(_BATCH):
        found = gating(one_hot(inputs, x.numel()).to(x).view(-1, *x.shape[1:]))
        for i, at in chosen.items():
            columns[i].append((found[i] - zero[i])[(slice(None), *at)].flatten(1).T)
    return {i: torch.cat(parts, 1) for i, parts in columns.items()}


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


def _names(network: GatedNetwork, x: Tensor) -> list[str]:
    """Names of the ReLUs that the gates belong to."""
    example = x.to(next(network.value.parameters()))
    network.check(example)
    return list(capture_relu(copied(network.value).eval(), example).names)


def _check_linear(maps: tuple[EffectiveMap, ...], x: Tensor, expected: list[Tensor]) -> None:
    """Check the maps on an input."""
    for one, q in zip(maps, expected):
        error, size = float((one(x) - q).abs().max()), 1.0 + float(q.abs().max())
        if not error <= 1e-8 * size:
            raise ValueError(
                f"the gating network must be affine in evaluation mode. Got another function at {one.layer} (error "
                f"{error:.2g})."
            )
