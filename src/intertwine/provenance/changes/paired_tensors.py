"""Tensors of two checkpoints in pairs, under the names of the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from ..._io.lazy import LazyState
from ..._words import counted
from ...symmetry.coupling import narrowed
from ...symmetry.spaces import Axis, Fixed, Layout, Leaf, Product, axis_size
from ...symmetry.symmetry import Symmetry
from ..difference import Finding
from ..units import with_zeros
from .conversion_search import Conversion, convert
from .conversion_words import conversion_findings, source_words
from .layers import family_of, layer_findings, moved_layers, with_layer
from .row_orders import Rows, relaid_tensors, repeated_rows


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tensors that correspond to each other."""

    sym: Symmetry  # The symmetry of what is compared
    a: Mapping[str, Tensor]  # Tensors before, under the names of the model
    b: Mapping[str, Tensor]  # Tensors after
    names: tuple[str, ...]  # Those of the pairs, in the order of the network
    sources: Mapping[str, str]  # For each what the other checkpoint calls it
    missing: Mapping[str, Tensor]  # Tensors that are gone
    new: Mapping[str, Tensor]  # Tensors that came
    converted: tuple[str, ...] = ()  # Tensors whose names or layouts differ
    resized: tuple[str, ...] = ()  # Tensors of which only a part is compared
    # Layers after that hold others than that of their number before
    layers: Mapping[tuple[str, int], int] = field(default_factory=dict)
    # For spaces of other sizes how many units the narrower network has; they come first
    units: Mapping[str, int] = field(default_factory=dict)
    narrowed: bool = False  # Whether that is the one after
    findings: tuple[Finding, ...] = ()  # How names, shapes and layouts were converted
    ambiguous: tuple[str, ...] = ()  # Tensors whose partner could not be told, each with the reason


def paired(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Pairs:
    """Pair the tensors of two checkpoints: by name, by what they hold, and as far as both reach where sizes differ.

    Args:
        sym: The symmetry of the model, whose names at least one of them has.
        a: Tensors before.
        b: Tensors after.

    Raises:
        ValueError: If nothing is left to compare, or weights are no real numbers.
    """
    for side, state in (("a", a), ("b", b)):
        _check_real(side, state)
    turned = _fitting(sym, a) > _fitting(sym, b)  # the names of a are kept
    target, source = (a, b) if turned else (b, a)
    layers = moved_layers(a, b)
    if layers:
        source = _renumbered(source, target, moved_layers(b, a) if turned else layers)
    reach = _reach(sym, target, source)
    units = _units(sym, reach.padded, source)
    findings = [*layer_findings(layers, a, b), *(_resized(name, sym, a[name], b[name]) for name in reach.windows)]
    if reach.padded:
        source = _filled(source, target, reach.padded)
        findings.append(_width(reach.padded, turned))
    done, rest, offered = _converted(sym, target, source, reach)
    names = tuple(n for n in target if n in reach.equal or n in done.found)
    if not {*names} & (sym.layouts or target).keys():
        raise ValueError(
            "a and b must be of one architecture. Got no tensor that both hold under one name and shape, or that is "
            f"found by what it holds: {_first(a)} in a, {_first(b)} in b."
        )
    own, other = (
        LazyState({n: partial(_cut, target, n, reach.windows.get(n)) for n in names}),
        LazyState({n: _maker(n, source, done, reach) for n in names}),
    )
    gone = LazyState({n: partial(source.__getitem__, n) for n in offered if n not in done.used})
    came = LazyState({n: partial(target.__getitem__, n) for n in rest if n not in done.found})
    return Pairs(
        sym=narrowed(replace(sym, layouts={**sym.layouts, **reach.layouts}), names),
        a=own if turned else other,
        b=other if turned else own,
        names=names,
        sources={n: source_words(done.found[n]) if n in done.found else n for n in names},
        missing=came if turned else gone,
        new=gone if turned else came,
        converted=tuple(done.found),
        resized=(*reach.windows, *reach.padded),
        layers=layers,
        units=units,
        narrowed=bool(reach.padded) and turned,
        findings=(*findings, *conversion_findings(done, target, source, turned)),
        ambiguous=tuple(done.ambiguous.values()),
    )


@dataclass(frozen=True)
class _Reach:
    """How far tensors of one name reach where their shapes differ."""

    equal: set[str] = field(default_factory=set)  # Those that are compared: whole, a part, or beside zeros
    windows: dict[str, tuple[slice, ...]] = field(default_factory=dict)  # The parts that both have
    layouts: dict[str, Layout] = field(default_factory=dict)  # Their layouts
    padded: list[str] = field(default_factory=list)  # Those whose source only lacks units
    repeated: dict[str, Rows] = field(default_factory=dict)  # Those whose rows were repeated


def _reach(sym: Symmetry, target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> _Reach:
    found = _Reach()
    for name in (n for n in target if n in source and n not in sym.aliases):
        x, y, layout = target[name], source[name], sym.layouts.get(name)
        if x.shape != y.shape:
            repeated = repeated_rows(name, x, y)
            if repeated is not None:
                found.repeated[name] = repeated
                continue
            if _narrower(layout, x, y):
                found.padded.append(name)
            elif (window := _window(layout, x, y)) is not None:
                found.windows[name], found.layouts[name] = window
            else:
                continue
        found.equal.add(name)
    return found


def _units(sym: Symmetry, padded: list[str], source: Mapping[str, Tensor]) -> dict[str, int]:
    """For spaces of other sizes how many units the source has."""
    return {
        axis.space: size
        for n in padded
        for axis, size in zip(sym.layouts[n].axes, source[n].shape)
        if isinstance(axis, Leaf) and axis.size != size
    }


def _filled(source: Mapping[str, Tensor], target: Mapping[str, Tensor], padded: list[str]) -> Mapping[str, Tensor]:
    """The source with zeros in the place of units that it lacks."""
    rows = {n: {d: torch.arange(k) for d, k in enumerate(source[n].shape)} for n in padded}
    return with_zeros(source, rows, {n: dict(enumerate(target[n].shape)) for n in padded})


def _converted(
    sym: Symmetry, target: Mapping[str, Tensor], source: Mapping[str, Tensor], reach: _Reach
) -> tuple[Conversion, list[str], list[str]]:
    """Tensors paired by what they hold, those of the target that were to be paired, and those that were offered."""
    whole = [n for n in target if n in reach.equal and n not in reach.windows]
    relaid = {} if target is source else relaid_tensors(target, source, whole)
    reach.equal.difference_update(relaid)
    relaid |= reach.repeated
    ties = {
        n for n, other in sym.aliases.items() if n not in source or torch.equal(source[n], source.get(other, source[n]))
    }
    rest = [n for n in target if n not in reach.equal and n not in sym.aliases and n not in relaid]
    offered = [n for n in source if n not in reach.equal and n not in ties and n not in relaid]
    done = convert(target, source, rest, offered) if rest else Conversion()
    done.found |= relaid
    return done, rest, offered


def _maker(name: str, source: Mapping[str, Tensor], done: Conversion, reach: _Reach) -> Callable[[], Tensor]:
    """What makes the partner of a tensor when it is asked for."""
    if name in done.found:
        return partial(done.found[name].make, source)
    return partial(_cut, source, name, reach.windows.get(name))


def _fitting(sym: Symmetry, state: Mapping[str, Tensor]) -> int:
    """Number of the model's tensors that a checkpoint holds by name and shape."""
    shapes = {n: tuple(axis_size(axis) for axis in layout.axes) for n, layout in sym.layouts.items()}
    return sum(n in state and tuple(state[n].shape) == shape for n, shape in shapes.items())


def _renumbered(
    source: Mapping[str, Tensor], target: Mapping[str, Tensor], layers: Mapping[tuple[str, int], int]
) -> Mapping[str, Tensor]:
    """The source under the numbers of the target's layers; layers that have no place there keep their names."""
    names = {}
    for name in target:
        family = family_of(name)
        other = name if family is None else with_layer(name, layers.get(family, family[1]))
        if other in source:
            names[name] = other
    taken = {*names.values()}
    names |= {n if n not in names else f"{n} of the other": n for n in source if n not in taken}
    return LazyState.renamed(source, names)


def _narrower(layout: Layout | None, x: Tensor, y: Tensor) -> bool:
    """Whether the second tensor only lacks units of hidden spaces, so that zeros may stand for them."""
    if layout is None or x.ndim != y.ndim:
        return False
    pairs = list(zip(layout.axes, x.shape, y.shape))
    return all(new == old or (new < old and _hidden(axis)) for axis, old, new in pairs)


def _hidden(axis: Axis) -> bool:
    """Whether units may be left out at the end of an axis."""
    return isinstance(axis.factors[0] if isinstance(axis, Product) else axis, Leaf)


def _width(names: list[str], turned: bool) -> Finding:
    said = "narrower: units are gone" if turned else "wider: units were added"
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    text = f"{counted(len(names), 'tensor')} {said} ({shown})"
    return Finding("narrowed" if turned else "widened", text, tuple(names))


def _cut(state: Mapping[str, Tensor], name: str, window: tuple[slice, ...] | None) -> Tensor:
    return state[name] if window is None else state[name][window]


def _check_real(side: str, state: Mapping[str, Tensor]) -> None:
    """Refuse weights of whole numbers, which are quantised."""
    for name, x in state.items():
        if name.endswith(("weight", "bias")) and not x.is_floating_point():
            found = str(x.dtype).removeprefix("torch.")
            raise ValueError(f"{name} of {side} must hold real numbers. Got {found}: dequantise the weights first.")


def _window(layout: Layout | None, a: Tensor, b: Tensor) -> tuple[tuple[slice, ...], Layout] | None:
    """The part that both tensors have, and its layout; ``None`` where units of a hidden space are missing."""
    if layout is None or a.ndim != b.ndim:
        return None
    axes, window = list(layout.axes), []
    for dim, axis in enumerate(layout.axes):
        size = min(a.shape[dim], b.shape[dim])
        if a.shape[dim] != b.shape[dim]:
            if not isinstance(axis, Fixed):
                return None
            axes[dim] = replace(axis, size=size)
        window.append(slice(size))
    return tuple(window), Layout(tuple(axes))


def _resized(name: str, sym: Symmetry, a: Tensor, b: Tensor) -> Finding:
    dim = next(d for d in range(a.ndim) if a.shape[d] != b.shape[d])
    reason = next((f.reason for f in sym.fixed if f.tensor == name and f.axis == dim), "axis")
    before, after = a.shape[dim], b.shape[dim]
    new = f"{after - before} new rows" if after > before else f"{before - after} rows are gone"
    text = f"{name} resized from {before} to {after} along axis {dim} ({reason}): {new}; the common ones are compared"
    return Finding("vocabulary resized" if reason.startswith("vocabulary") else "resized", text, (name,))


def _first(state: Mapping[str, Tensor]) -> str:
    name = next(iter(state), None)
    return "nothing" if name is None else f"{name!r} {tuple(state[name].shape)}"
