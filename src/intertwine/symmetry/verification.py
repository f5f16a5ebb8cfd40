"""Numerical verification of a symmetry, space by space and kind by kind, with negative controls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._evaluation import in_usual_mode
from .._progress import track
from .._result import Result
from .._words import counted
from ..errors import VerificationError
from .action import admissible, kept_variances, moved
from .description import Description
from .proof import Probe, probed, without_each
from .transformation import Transformation, random


@dataclass(frozen=True)
class Check:
    """One random element: its space (or ``"all"``), kind and seed, and the relative error that it caused."""

    space: str
    kind: str
    seed: int
    error: float


@dataclass(frozen=True)
class Control:
    """One element applied to all tensors of a space but one: the error must be large."""

    space: str
    left_out: str
    error: float


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """What ``verify`` measured.

    Attributes:
        checks: Errors by space, kind and seed.
        controls: For each space the negative control that was seen best.
        rtol: Largest error that counts as rounding.
        dtype: Lowest precision seen in the run that was compared.
        notes: What a reader should know.
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
        """Spaces whose control did not fail: these inputs cannot tell a wrong element from a right one there."""
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

    Permutations, scales, signs and matrices are tried separately: a wrong scale rule leaves permutations exact. The
    model is compared in eval mode, in float64 where its code runs in float64; otherwise the tolerance follows from
    the lowest precision seen while it ran. What is certified is the function *in eval mode*: batch norms in train mode
    normalise by their batch instead. A control applies an element to all tensors of a space but one.

    Args:
        sym: The symmetry.
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        seeds: Number of random elements for each space and kind.
        rtol: Largest relative error that counts as rounding; by default ``testing.tolerance`` of the precision seen.
        randomise: Give random values to constant parameters and batch-norm statistics of the copy that is run: equal
            entries hide mistakes.
        per_space: Also try every space alone, with a control for each; otherwise all spaces together only.
        strict: Raise where the check fails; otherwise the report says it (``failed``, ``passed``).
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
    kinds = list(dict.fromkeys(kind for space in sym.spaces for kind in space.group.kinds))
    checks = [
        Check("all", kind, seed, probe.error(moved(sym, admissible(sym, g, probe.tensors), probe.tensors)))
        for kind in kinds
        for seed, g in _elements(sym, {kind}, "all", seeds)
    ]
    controls = []
    for space in track(sym.spaces, "verifying spaces", enabled=progress and per_space) if per_space else ():
        names = sym.carriers[space.name]
        for kind in space.group.kinds:
            for seed, g in _elements(sym, {kind}, space.name, seeds):
                new = moved(sym, admissible(sym, g, probe.tensors), probe.tensors, names)
                checks.append(Check(space.name, kind, seed, probe.error(new)))
        if space.group.kinds:
            controls.append(_control(sym, probe, space.name, names, rtol))
    if not per_space and sym.spaces:
        controls.append(_control(sym, probe, "all", list(sym.layouts), rtol))
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
    """Random elements of one space (or of ``"all"``) with their seeds; draws that move nothing are passed over."""
    seed = found = 0
    while found < count:
        g = random(sym, seed, kinds)
        g = g if space == "all" else g.restrict(spaces={space})
        if seed >= 20 * count or not g.is_identity(0.0):
            found += 1
            yield seed, g
        seed += 1


def _control(sym: Description, probe: Probe, space: str, names: Sequence[str], rtol: float | None) -> Control:
    """Leave tensors out in turn until the outputs change: the first that is seen, else the best."""
    _, g = next(_elements(sym, None, space, 1))
    changed = moved(sym, admissible(sym, g, probe.tensors), probe.tensors, names)
    wrong = list(without_each(sym, changed))
    if len(wrong) == 1:  # all in one tensor: leave its first half as it was
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
