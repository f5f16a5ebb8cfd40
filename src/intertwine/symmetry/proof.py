"""The single proof that new weights give the same function, and the verification of a symmetry by this proof.

Everything that writes new weights for the same function (act, fold, rotate, convert, prune, mappings) proves it here.
Runs are in float64, and casts to lower precision inside the model's code are skipped, which leaves rounding at 1e-16.
A symmetry is verified space by space and kind by kind, with negative controls.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import OperationMode, copied, in_usual_mode
from .._examples import each, widened
from .._nested import tensors_in
from .._progress import track
from .._result import Result
from .._words import counted
from ..errors import VerificationError
from ..programs.program import multiply_by_group
from ..testing import outputs, relative_error, tolerance
from .action import admissible, kept_variances, moved, rewritable, tensors_of
from .description import Description
from .transformation import Transformation, random

_LOWER = (torch.float32, torch.float16, torch.bfloat16)


class _Float64(OperationMode):
    """A mode in which casts go to float64 instead of a lower precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(func) == "aten._grouped_mm.default" and args[0].dtype == torch.float64:
            return multiply_by_group(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") in _LOWER:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Wide:
    """A copy of a model whose outputs are compared, in float64 if its code runs in float64."""

    model: nn.Module
    inputs: Any
    dtype: torch.dtype
    casts: Callable[[], AbstractContextManager[object]]

    @property
    def rtol(self) -> float:
        """Relative error that rounding alone may cause at the precision of the run."""
        return tolerance(self.dtype)

    def outputs(self, model: nn.Module | None = None) -> list[Tensor]:
        """All tensors returned by the copy, or by a model made from it."""
        with self.casts():
            return outputs(self.model if model is None else model, self.inputs)


def in_float64(model: nn.Module, inputs: Any) -> Wide:
    """A copy of a model and inputs in float64, or in their own precision if its code does not run in float64."""
    wide, given, found = copied(model).double(), widened(inputs), []
    for casts in (nullcontext, _Float64):
        with suppress(RuntimeError, TypeError, ValueError):
            found.append(_run(wide, given, casts))
            if found[-1].dtype == torch.float64:
                return found[-1]
    return min(found, key=lambda one: _eps(one.dtype)) if found else _run(copied(model), inputs, nullcontext)


def _run(model: nn.Module, inputs: Any, casts: Callable[[], AbstractContextManager[object]]) -> Wide:
    tensors = (*model.parameters(), *model.buffers(), *(t for example in each(inputs) for t in tensors_in(example)))
    with casts(), _LowestPrecision(_lowest(torch.float64, tensors)) as seen:
        found = outputs(model, inputs)
    return Wide(model, inputs, _lowest(seen.dtype, found), casts)


def _lowest(dtype: torch.dtype, tensors: Iterable[Tensor]) -> torch.dtype:
    return max((dtype, *(t.dtype for t in tensors if t.is_floating_point())), key=_eps)


class _LowestPrecision(OperationMode):
    """A mode that records the lowest precision of casts, starting from the weights'; promoted constants do no harm."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [x.dtype for x in args if isinstance(x, Tensor) and x is not result and x.is_floating_point()]
        if given and isinstance(result, Tensor) and result.is_floating_point():
            lower = _eps(result.dtype) > max(map(_eps, given))
            self.dtype = _lowest(self.dtype, [result] if lower else [])
        return result


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


@dataclass(frozen=True)
class Proof:
    """Measured error of the new weights against the old ones, in float64, with a negative control.

    Attributes:
        error: Relative error of the outputs.
        rtol: Largest error that counts as rounding.
        control: The error when one tensor is changed by wrong numbers of the same size: it must be large.
        tensor: The tensor of the control.
    """

    error: float
    rtol: float
    control: float
    tensor: str


class Probe:
    """The proof that new weights give the same function: a copy of a model whose tensors are swapped during a run.

    Outputs that hold no finite number, or that differ between two runs in eval mode, raise a ``ValueError``.
    """

    def __init__(self, wide: Wide) -> None:
        self.wide, self.dtype, self.rtol = wide, wide.dtype, wide.rtol
        self.tensors = tensors_of(wide.model)
        self._reference = wide.outputs()
        if not any(bool(torch.isfinite(t).any()) for t in self._reference):
            raise ValueError("model must return finite numbers on the inputs. Got none.")
        if self.error({}) > self.rtol:
            raise ValueError(
                "model must return the same outputs twice in eval mode. Got outputs that differ: fix its randomness."
            )

    def error(self, changed: Mapping[str, Tensor]) -> float:
        """Relative change of the outputs when some tensors are replaced for one run."""
        before = {name: self.tensors[name].clone() for name in changed}
        with torch.no_grad():
            try:
                for name, tensor in changed.items():
                    self.tensors[name].copy_(tensor)
                return relative_error(self._reference, self.wide.outputs())
            finally:
                for name, tensor in before.items():
                    self.tensors[name].copy_(tensor)

    def prove(
        self,
        changed: Mapping[str, Tensor],
        wrong: Iterable[tuple[str, Mapping[str, Tensor]]],
        rtol: float | None = None,
    ) -> Proof:
        """The error of changed tensors, and the largest error of named wrong changes, tried until one is visible."""
        rtol = self.rtol if rtol is None else rtol
        error, control, seen = self.error(changed), 0.0, ""
        for name, tensors in wrong:
            control, seen = max((control, seen), (self.error(tensors), name))
            if control > rtol:
                break
        return Proof(error, rtol, control, seen)


def probed(sym: Description, model: nn.Module, inputs: Any, randomise: bool = True) -> Probe:
    """A probe of a copy of a model; with ``randomise``, constant parameters and norm statistics get random values."""
    if any(t.is_meta for t in tensors_of(model).values()):
        raise ValueError("model must hold weights to be run. Got tensors on the meta device: load a checkpoint.")
    wide = in_float64(rewritable(sym, model), inputs)
    if randomise:
        _randomise(sym, tensors_of(wide.model))
    return Probe(wide)


def without_each(sym: Description, changed: Mapping[str, Tensor]) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Negative controls: the changed tensors, each in turn left unchanged under all of its names."""
    for name in changed:
        if name not in sym.aliases:
            yield name, {n: t for n, t in changed.items() if sym.aliases.get(n, n) != name}


def _randomise(sym: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give distinct entries to every described tensor whose entries are all equal, and to batch-norm statistics."""
    generator = torch.Generator().manual_seed(0)
    variances = {norm.variance for norm in sym.batch_norms}
    with torch.no_grad():
        for name in sym.layouts:
            tensor = tensors.get(name)
            if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            if name in variances:
                tensor.copy_(0.5 + noise)
            elif name in sym.statistics or bool((tensor == tensor.flatten()[0]).all()):
                tensor.add_(noise - 0.5)


@dataclass(frozen=True)
class Check:
    """One random element: its space (or ``"all"``), kind and seed, and the relative error it caused."""

    space: str
    kind: str
    seed: int
    error: float


@dataclass(frozen=True)
class Control:
    """One element applied to all tensors of a space except one: the error must be large."""

    space: str
    left_out: str
    error: float


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """The measurements of ``verify``.

    Attributes:
        checks: Errors by space, kind and seed.
        controls: The negative control with the largest error, for each space.
        rtol: Largest error that counts as rounding.
        dtype: Lowest precision that occurred in the compared runs.
        notes: Remarks for the reader.
    """

    checks: tuple[Check, ...]
    controls: tuple[Control, ...]
    rtol: float
    dtype: torch.dtype
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """Largest error of any check."""
        return max((check.error for check in self.checks), default=0.0)

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Pairs of space and kind that did not keep the function."""
        return tuple(dict.fromkeys((c.space, c.kind) for c in self.checks if not c.error <= self.rtol))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Spaces whose control did not fail: there these inputs cannot tell a wrong element from a right one."""
        return tuple(c.space for c in self.controls if c.error <= self.rtol)

    @property
    def passed(self) -> bool:
        """Whether every check is below the tolerance and the controls have power."""
        return not self.failed and (not self.controls or len(self.unseen) < len(self.controls))

    _columns = ("space", "kind", "seed", "error", "left_out", "ok")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per check and control."""
        rows = [{**vars(c), "left_out": "", "ok": c.error <= self.rtol} for c in self.checks]
        return rows + [{**vars(c), "kind": "control", "seed": 0, "ok": c.error > self.rtol} for c in self.controls]

    def summary(self) -> str:
        """Worst error, weakest control, and what failed."""
        weakest = min((c.error for c in self.controls), default=float("nan"))
        said = (
            f"{'passed' if self.passed else 'FAILED'}: worst error {self.worst:.1e} in {len(self.checks)} checks, "
            f"tolerance {self.rtol:.1e} ({str(self.dtype).removeprefix('torch.')}); "
            f"negative controls {len(self.controls)}, weakest {weakest:.1e}"
        )
        failed = (f"failed: {space}, {kind}" for space, kind in self.failed)
        return "\n".join([said, *failed, *(f"not seen by these inputs: {s}" for s in self.unseen), *self.notes])


@in_usual_mode
def verify(
    sym: Description,
    model: nn.Module,
    example_inputs: Any,
    seeds: int = 3,
    rtol: float | None = None,
    randomise: bool = True,
    per_space: bool = True,
    strict: bool = True,
    progress: bool | None = None,
) -> Verification:
    """Check that every space and kind of a symmetry keeps a model's function, with controls that must fail.

    Permutations, scales, signs and matrices are tried separately, since a wrong scale rule leaves permutations exact.
    The model is compared in float64 if its code runs in float64, and *in eval mode*, since batch norms in train mode
    normalise by their batch instead. A control applies an element to all tensors of a space except one.

    Args:
        sym: The symmetry.
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        seeds: Number of random elements for each space and kind.
        rtol: Largest relative error that counts as rounding; by default ``testing.tolerance`` of the precision seen.
        randomise: Give random values to constant parameters and batch-norm statistics of the copy that is run, since
            equal entries hide mistakes.
        per_space: Also try every space alone, with a control for each; otherwise only all spaces together.
        strict: Raise if the check fails; otherwise the report says so (``failed``, ``passed``).
        progress: Show progress.

    Raises:
        VerificationError: If an element changes the function, or no control fails (so that the check says nothing).

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> report = verify(iw.symmetries(model, torch.zeros(2, 4)), model, torch.randn(5, 4))
        >>> report.passed, report.worst < 1e-12
        (True, True)
    """
    probe = probed(sym, model, example_inputs, randomise)
    every = tuple(dict.fromkeys(kind for space in sym.spaces for kind in space.group.kinds))
    parts: list[tuple[str, Sequence[str], Sequence[str]]] = [("all", every, list(sym.layouts))]
    parts += [(s.name, s.group.kinds, sym.carriers[s.name]) for s in sym.spaces if per_space]
    checks, controls = list[Check](), list[Control]()
    for space, kinds, names in track(parts, "verifying spaces", enabled=progress and per_space):
        for kind in kinds:
            for seed, g in _elements(sym, {kind}, space, seeds):
                new = moved(sym, admissible(sym, g, probe.tensors), probe.tensors, names)
                checks.append(Check(space, kind, seed, probe.error(new)))
        if kinds and (space == "all") != per_space:
            controls.append(_control(sym, probe, space, names, rtol))
    tolerance = probe.rtol if rtol is None else rtol
    report = Verification(tuple(checks), tuple(controls), tolerance, probe.dtype, _notes(sym, probe))
    if strict and report.failed:
        raise VerificationError(
            f"every element must keep the function to {report.rtol:.1e}. Got errors up to {report.worst:.1e} from "
            f"{', '.join(f'{kind} of {space}' for space, kind in report.failed)}."
        )
    if strict and not report.passed:
        raise VerificationError(
            "a negative control must fail. Got outputs that do not change when one tensor is left out of a "
            "transformation, in any space: these inputs cannot verify anything. Give other inputs or trained weights."
        )
    return report


def _elements(sym: Description, kinds: set[str] | None, space: str, count: int) -> Iterator[tuple[int, Transformation]]:
    """Random elements of one space (or of ``"all"``) with their seeds; draws that move nothing are skipped."""
    seed = found = 0
    while found < count:
        g = random(sym, seed, kinds)
        g = g if space == "all" else g.restrict(spaces={space})
        if seed >= 20 * count or not g.is_identity(0.0):
            found += 1
            yield seed, g
        seed += 1


def _control(sym: Description, probe: Probe, space: str, names: Sequence[str], rtol: float | None) -> Control:
    """Leave tensors out in turn until the outputs change; returns the first visible control, or else the best."""
    _, g = next(_elements(sym, None, space, 1))
    changed = moved(sym, admissible(sym, g, probe.tensors), probe.tensors, names)
    wrong = list(without_each(sym, changed))
    if len(wrong) == 1:  # all in one tensor: leave its first half unchanged
        name = wrong[0][0]
        half = torch.arange(changed[name].numel()).reshape(changed[name].shape) < changed[name].numel() // 2
        mixed = torch.where(half.to(changed[name].device), probe.tensors[name], changed[name])
        wrong = [(f"half of {name}", {n: mixed if sym.aliases.get(n, n) == name else t for n, t in changed.items()})]
    proof = probe.prove({}, wrong, rtol)
    return Control(space, proof.tensor, proof.control)


def _notes(sym: Description, probe: Probe) -> tuple[str, ...]:
    kept = kept_variances(sym, random(sym, 0, {"scale"}), probe.tensors)
    took = lambda channels: f"gain took the scale in {counted(len(channels), 'channel')} (variance would be negative)"
    said = ["only the path that was run is verified: a number was taken out of an activation"] * sym.path_only
    return (*(f"{name}: {took(channels)}" for name, channels in kept.items()), *said)
