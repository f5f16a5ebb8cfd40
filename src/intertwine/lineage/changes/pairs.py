"""Tensors of two checkpoints in pairs, under the names of the second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from ...matching.narrow import narrowed
from ...symmetry.spaces import Fixed, Layout
from .element_words import Finding

if TYPE_CHECKING:
    from ...symmetry.symmetry import Symmetry

__all__ = ["Pairs", "paired"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tensors that correspond to each other.

    Attributes:
        sym: The symmetry of what is compared.
        a: Tensors before, under the names of those after.
        b: Tensors after.
        names: Those of the pairs, in the order of the network.
        sources: For each what it was before, in words.
        missing: Tensors that are gone.
        new: Tensors that came.
        resized: Tensors of which only a part is compared.
        findings: How names, shapes and layouts were converted.
        ambiguous: Tensors whose partner could not be told, each with the reason.
    """

    sym: Symmetry
    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor]
    names: tuple[str, ...]
    sources: Mapping[str, str]
    missing: Mapping[str, Tensor]
    new: Mapping[str, Tensor]
    resized: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    ambiguous: tuple[str, ...] = ()


class Lazy(Mapping[str, Tensor]):
    """Tensors that are made when they are asked for.

    Args:
        make: What makes each.
    """

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


def paired(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Pairs:
    """Pair the tensors of two checkpoints by name; those of other sizes as far as both reach.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors before.
        b: Tensors after.

    Returns:
        The pairs.

    Raises:
        ValueError: If nothing is left to compare, or weights are no real numbers.
    """
    for side, state in (("a", a), ("b", b)):
        for name in sym.layouts.keys() & state.keys():
            if not state[name].is_floating_point():
                found = str(state[name].dtype).removeprefix("torch.")
                raise ValueError(f"{name} of {side} must hold real numbers. Got {found}: dequantise the weights first.")
    layouts = dict(sym.layouts)
    windows: dict[str, tuple[slice, ...]] = {}
    findings = []
    common = [n for n in b if n in a and n not in sym.aliases]
    for name in list(common):
        if a[name].shape == b[name].shape:
            continue
        window = _window(sym.layouts.get(name), a[name], b[name])
        if window is None:
            common.remove(name)
            continue
        windows[name], layouts[name] = window
        findings.append(_resized(name, sym, a[name], b[name]))
    kept = {*common}
    if not kept & sym.layouts.keys():
        raise ValueError(
            "a and b must be of one architecture. Got no tensor that both have under one name and shape: "
            f"{_first(a)} in a, {_first(b)} in b."
        )

    def cut(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return Lazy({n: (lambda n=n: state[n][windows[n]] if n in windows else state[n]) for n in common})  # type: ignore[misc]

    def rest(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return Lazy({n: (lambda n=n: state[n]) for n in state if n not in kept and n not in sym.aliases})  # type: ignore[misc]

    return Pairs(
        narrowed(replace(sym, layouts=layouts), kept), cut(a), cut(b), tuple(common), {n: n for n in common},
        rest(a), rest(b), tuple(windows), tuple(findings),
    )  # fmt: skip


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
    what = "vocabulary" if reason.startswith("vocabulary") else "rows"
    text = f"{name} resized from {before} to {after} along axis {dim} ({reason}): {new}; the common ones are compared"
    return Finding("vocabulary resized" if what == "vocabulary" else "resized", text, (name,))


def _first(state: Mapping[str, Tensor]) -> str:
    name = next(iter(state), None)
    return "nothing" if name is None else f"{name!r} {tuple(state[name].shape)}"
