"""Sums of the tangent kernel over layers, in as many runs of the network as the memory asks for."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from .layer_gradients import record_layers
from .layer_kernel import KernelSum, Layer, join_outputs

_FEW = 8  # examples at once: more are no faster
_GRAPH = 4  # what the graph and one backward pass hold, in activations


@dataclass(frozen=True)
class _Part:
    """Some output channels of one layer; all of it where it is kept as inputs and signals and not as a Jacobian."""

    layer: int
    start: int
    stop: int
    whole: bool


def covered_names(model: nn.Module, x: Tensor, chosen: Collection[str]) -> frozenset[str]:
    """Names of the chosen parameters that layers of a known kind hold: linear, convolutional, batch norm."""
    return frozenset().union(*(seen.names for seen in record_layers(model, x[:1], chosen).seen))


def layerwise_kernel(
    model: nn.Module, x: Tensor, y: Tensor | None, chosen: Collection[str], kind: str, memory: float
) -> KernelSum:
    """Sum what the layers of a known kind add, from their inputs and the gradients at their outputs.

    Layers are done in groups whose Jacobians fit into half of the memory, large layers in blocks of output channels.
    For each group all examples run through the network once, and backwards only as deep as the group lies. Where not
    even one channel fits, tiles of examples are compared two by two, and run again for each.
    """
    probe = record_layers(model, x[:1], chosen)
    layers = probe.layers()
    total = KernelSum(kind, probe.outputs.shape[1], len(x), None if y is None else len(y), probe.outputs.detach())
    examples = len(x) + (0 if y is None else len(y))
    for parts in _plan(layers, total, examples, memory / 2):
        names = frozenset().union(*(probe.seen[part.layer].names for part in parts))
        if sum(_bytes(layers[part.layer], part) for part in parts) * examples > memory / 2:
            _add_tiles(total, model, x, y, names, memory)
            continue
        few = _examples_at_once(layers, parts, memory)
        left = _keep(model, x, names, parts, few)
        right = left if y is None else _keep(model, y, names, parts, few)
        for a, b in zip(left, right):
            _add(total, a, b, memory)
    return total


def _plan(layers: Sequence[Layer], total: KernelSum, examples: int, room: float) -> Iterator[list[_Part]]:
    """Groups of layers in their order, each as large as fits; what can be neither kept nor cut is alone."""
    group: list[_Part] = []
    free = room
    for k, layer in enumerate(layers):
        whole = layer.is_better_kept_whole(total.n, total.m, total.kind)
        step = layer.channels if whole else 1
        size = _bytes(layer, _Part(k, 0, step, whole)) * examples
        start = 0
        while start < layer.channels:
            fitting = step * max(0, int(free / size))
            if group and not fitting:
                yield group
                group, free = [], room
                continue
            stop = min(start + fitting, layer.channels) if fitting else layer.channels
            group.append(_Part(k, start, stop, whole))
            free -= size * (stop - start) / step
            start = stop
    if group:
        yield group


def _bytes(layer: Layer, part: _Part) -> float:
    """Bytes of what is kept of one example."""
    if part.whole:
        return sum(t.nbytes for t in (*layer.inputs, *layer.signals))
    first = layer.signals[0]
    return first.shape[1] * (part.stop - part.start) * layer.parameters_per_channel * first.element_size()


def _examples_at_once(layers: Sequence[Layer], parts: Sequence[_Part], memory: float) -> int:
    """How many examples' graph and windows take an eighth of the memory."""
    windows = sum(t.nbytes for part in parts for t in layers[part.layer].inputs)
    outputs = sum(t.nbytes / t.shape[1] for layer in layers for t in layer.signals)
    return max(1, min(_FEW, int(memory / 8 / max(1.0, windows + _GRAPH * outputs))))


_Kept = Tensor | list[Layer]  # the Jacobian of all examples, or a layer's inputs and signals, some examples at a time


def _keep(model: nn.Module, x: Tensor, names: Collection[str], parts: Sequence[_Part], few: int) -> list[_Kept]:
    """Run all examples once and keep of each part what is smaller to work with."""
    jacobians: dict[int, Tensor] = {}
    wholes: list[list[Layer]] = [[] for _ in parts]
    for i in range(0, len(x), few):
        run = record_layers(model, x[i : i + few], names)
        runs: list[list[Layer]] = [[] for _ in parts]  # of the layers that are kept whole, one for each output
        for output, layers in enumerate(run.backward()):
            for k, (part, layer) in enumerate(zip(parts, layers)):
                if part.whole:
                    runs[k].append(layer)
                    continue
                found = layer.jacobian(part.start, part.stop)
                if k not in jacobians:
                    jacobians[k] = found.new_empty(len(x), run.outputs.shape[1], found.shape[2])
                jacobians[k][i : i + few, output] = found[:, 0]
        for k, part in enumerate(parts):
            if part.whole:
                wholes[k].append(join_outputs(runs[k]))
    return [wholes[k] if part.whole else jacobians[k] for k, part in enumerate(parts)]


def _add(total: KernelSum, left: _Kept, right: _Kept, memory: float) -> None:
    """Add what two sides have kept of one part."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        total.add(left, right)
    elif isinstance(left, list) and isinstance(right, list):
        for i, a in _starts(left):
            for j, b in _starts(right):
                if not total.same or i <= j:
                    total.add_part(a.kernel(b, total.kind, memory), i, j)


def _starts(layers: Sequence[Layer]) -> Iterator[tuple[int, Layer]]:
    """Each piece with the number of its first example."""
    at = 0
    for layer in layers:
        yield at, layer
        at += len(layer.signals[0])


def _add_tiles(
    total: KernelSum, model: nn.Module, x: Tensor, y: Tensor | None, names: Collection[str], memory: float
) -> None:
    """Tile by tile, running the examples again for each, where nothing of them can be kept."""
    z = x if y is None else y
    one = record_layers(model, x[:1], names).layers()
    step = max(1, int(memory / 4 / sum(t.nbytes for layer in one for t in (*layer.inputs, *layer.signals))))
    for i in range(0, len(x), step):
        left = record_layers(model, x[i : i + step], names).layers()
        for j in range(i if total.same else 0, len(z), step):
            again = total.same and i == j
            right = left if again else record_layers(model, z[j : j + step], names).layers()
            for a, b in zip(left, right):
                total.add_part(a.kernel(b, total.kind, memory), i, j)
