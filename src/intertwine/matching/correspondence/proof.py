"""The numerical proof: with B's weights in place of A's, A's program must compute B's function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._examples import arguments, each
from ..._io.lazy import State
from ..._nested import map_tensors, tensors_in
from ...errors import CaptureError
from ...programs import Program, Ref, capture
from ...programs.program import float64_handler
from ...symmetry.action import tensors_of, write
from ...symmetry.proof import in_float64
from ...testing import relative_error, tolerance
from .entries import Entry, carried
from .graph import Graph
from .reader import Reader
from .slices import sink_slices

_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel", "AveragedModel")


@dataclass(frozen=True, eq=False)
class Side:
    """One model without wrappers, with its program as terms."""

    model: nn.Module
    prefix: str
    inputs: Any
    program: Program
    reader: Reader
    graph: Graph
    wrapped: tuple[str, ...]

    @classmethod
    def of(cls, name: str, model: nn.Module, inputs: Any, borrowed: bool = False) -> Side:
        """The side of a model, called ``name`` in messages; ``borrowed`` inputs are those of the other side."""
        inner, prefix, wrapped = _unwrapped(model)
        try:
            program = capture(inner, *arguments(each(inputs)[0]))
        except CaptureError as error:
            advice = " Give same() or correspond() example_inputs_b, the inputs of b." if borrowed else ""
            raise CaptureError(f"{name}: {error}{advice}") from error
        reader = Reader(program, tensors_of(inner))
        said = tuple(f"{name} wrapped in {kind}" for kind in wrapped)
        return cls(inner, prefix, inputs, program, reader, Graph.of(reader.outputs), said)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The numbers of the values that the program returns."""
        return tuple(ref.id for ref in self.program.outputs)

    def sunk(self) -> Side:
        """The side with slices moved before operations of which only they are used; its terms are rewritten."""
        sink_slices([view.term for view in self.reader.outputs])
        return replace(self, graph=Graph.of(self.reader.outputs))


def _unwrapped(model: nn.Module) -> tuple[nn.Module, str, tuple[str, ...]]:
    """The model inside torch's wrappers, with the prefix they add to its names, and their kinds."""
    prefix, kinds = "", list[str]()
    while (kind := type(model).__name__) in _WRAPPERS:
        name = next((n for n in ("_orig_mod", "module") if isinstance(getattr(model, n, None), nn.Module)), None)
        if name is None:
            break
        kinds.append(kind.replace("OptimizedModule", "torch.compile"))
        prefix, model = f"{prefix}{name}.", getattr(model, name)
    return model, prefix, tuple(kinds)


def error_of(
    a: Side, b: Side, entries: Sequence[Entry], values: tuple[Sequence[int], Sequence[int]], as_models: bool
) -> tuple[float, float]:
    """Relative error of A's ``values`` with B's weights (run as models if programs differ), and that of rounding."""
    theirs = _distinct(b)
    made = carried(entries, theirs)
    made |= {alias: made[n] for alias, n in a.program.aliases.items() if n in made}
    ours = {n: t.double() if t.is_floating_point() else t for n, t in tensors_of(a.model).items() if n not in made}
    ours |= made
    rtol = tolerance(torch.float64)
    given = [each(side.inputs)[0] for side in (a, b)]
    generator = torch.Generator().manual_seed(1)
    others = [map_tensors(given[0], lambda x: _moved(x, generator))] * 2  # special values would hide errors
    for x, y in (others, given)[given[0] is not given[1] :]:
        error = float("inf")
        with suppress(CaptureError, RuntimeError, TypeError, ValueError):
            error = relative_error(_replayed(b, theirs, values[1], y), _replayed(a, ours, values[0], x))
        if error < float("inf"):
            break
    if error <= rtol or not as_models:
        return error, rtol
    try:  # constants of the code may have been made in float32
        (right, one), (left, other) = _ran(b, theirs, y), _ran(a, ours, x)
        return relative_error(right, left), max(one, other)
    except ValueError:
        return float("inf"), rtol


def _distinct(side: Side) -> dict[str, Tensor]:
    """Tensors in float64, parameters slightly perturbed, since equal entries would hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    found = {n: t.double() if t.is_floating_point() else t for n, t in tensors_of(side.model).items()}
    for name, ref in side.program.states.items():
        if side.program.values[ref.id].kind != "constant" and side.reader.data(ref) is None:
            found[name] = _moved(found[name], generator)
    return {**found, **{alias: found[name] for alias, name in side.program.aliases.items()}}


def _moved(t: Tensor, generator: torch.Generator) -> Tensor:
    """Real numbers, slightly perturbed; positive ones, such as variances, stay positive."""
    if not t.is_floating_point() or not bool(t.isfinite().all()):
        return t
    size = t.abs().mean() if t.numel() and bool(t.any()) else torch.ones((), dtype=t.dtype)
    noise = torch.rand(t.shape, generator=generator, dtype=t.dtype).to(t.device) - 0.5
    moved = t + 0.3 * size * noise
    return torch.where((t > 0) & (moved <= 0), t, moved)


def _replayed(side: Side, states: State, values: Sequence[int], inputs: Any) -> list[Tensor]:
    """Values of the captured run, recomputed in float64 with other tensors."""
    wide = [x.double() if x.is_floating_point() else x for x in tensors_in([*arguments(inputs)])]
    handlers = dict.fromkeys(range(len(side.program.calls)), float64_handler)
    held = {n: t for n, t in states.items() if n in side.program.states}
    with torch.no_grad():
        return list(side.program.run(wide, [Ref(n) for n in values], states=held, handlers=handlers))


def _ran(side: Side, states: State, inputs: Any) -> tuple[list[Tensor], float]:
    """The model's own outputs with other tensors, and the error that rounding explains."""
    made = in_float64(side.model, inputs)
    write(made.model, states)
    return made.outputs(), made.rtol
