"""A strict verdict on the symmetries of one network.

Nothing is shared with the library's own ``verify``. Random elements act on a copy; all floating-point outputs are
compared on the example and on other inputs (other values, other sizes of them, another batch), for the copy itself and
for a network built afresh that loads the copy's state dict, so that nothing computed from old weights survives. The
rounding of the network is measured, not assumed: weights are changed by a few units in the last place.
"""

from __future__ import annotations

import copy
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intertwine as iw
from intertwine.errors import IntertwineError

from .attributes import changed, snapshot
from .case import Case
from .double import InDouble
from .randomise import randomise
from .reasons import fixed_units, moved_units

__all__ = [
    "KINDS",
    "TooSlow",
    "Verdict",
    "build",
    "clear",
    "difference",
    "judge",
    "limit",
    "one_line",
    "readable",
    "run",
]

KINDS = ("permutation", "scale", "sign", "linear")
LARGE = 0.9  # standard deviation of log scales: about log-uniform over e^-1.5 to e^1.5
SLOW = 60.0  # seconds of processor time that ``symmetries`` may take
FLOOR = 1e-9  # relative error that always counts as rounding


class TooSlow(Exception):
    """Processor time is up."""


@dataclass
class Verdict:
    """What was found, and whether it is right.

    Attributes:
        name: The network.
        library: Its library.
        family: Its family.
        verdict: ``right``, ``fixed`` (nothing moves), ``path-only``, ``wrong``, ``refused`` (by an error of the
            library's own), ``crash``, ``slow`` or ``unusable`` (the network itself does not run, or its outputs are not
            finite).
        why: What went wrong, in one line.
        parameters: Number of parameters.
        spaces: Number of spaces.
        dim: Dimension of the continuous part.
        log_size: Logarithm of the number of discrete elements.
        error: Worst relative error of an element.
        tolerance: Largest error that counts as rounding.
        control: Error of an element that leaves one tensor as it was.
        dtype: Lowest precision seen in the run.
        seconds: Processor time of ``symmetries``.
        comparisons: Number of runs compared.
        moved: Units of axes that move.
        fixed: Units of axes that stay, by reason.
        unknown_ops: Operations without a rule.
        notes: What ``symmetries`` noted.
    """

    name: str
    library: str
    family: str
    verdict: str = "right"
    why: str = ""
    parameters: int = 0
    spaces: int = 0
    dim: int = 0
    log_size: float = 0.0
    error: float = 0.0
    tolerance: float = 0.0
    control: float = 0.0
    dtype: str = ""
    seconds: float = 0.0
    comparisons: int = 0
    moved: int = 0
    fixed: dict[str, int] = field(default_factory=dict)
    unknown_ops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def judge(case: Case, seeds: int = 2, budget: float = 0.4) -> Verdict:
    """The verdict on one network.

    Args:
        case: The network.
        seeds: Random elements of each kind.
        budget: Seconds of processor time for comparisons beyond the first of each kind.

    Returns:
        The verdict.
    """
    verdict = Verdict(case.name, case.library, case.family)
    try:
        model = build(case)
        trials = list(_trials(case, model))
    except Exception as error:
        verdict.verdict, verdict.why = "unusable", one_line(error)
        return verdict
    if not trials:
        verdict.verdict, verdict.why = "unusable", "outputs are not finite, or there are none"
        return verdict
    verdict.parameters = sum(p.numel() for p in model.parameters())
    read, example = readable(model, trials[0].inputs)
    before, start = snapshot(read), time.process_time()
    try:
        with limit(SLOW):
            sym = iw.symmetries(read, example)
    except TooSlow:
        verdict.verdict, verdict.why, verdict.seconds = "slow", f"symmetries took over {SLOW:.0f} s", SLOW
        return verdict
    except Exception as error:
        verdict.verdict, verdict.why = "refused" if clear(error) else "crash", one_line(error)
        return verdict
    verdict.seconds = time.process_time() - start
    _describe(verdict, sym)
    touched = changed(before, snapshot(read))
    try:
        _compare(verdict, case, model, sym, trials, seeds, budget)
    except Exception as error:
        verdict.verdict, verdict.why = "crash", "in act: " + one_line(error)
        return verdict
    if touched:
        verdict.verdict, verdict.why = "wrong", f"symmetries changed the model: {', '.join(touched[:5])}"
    return verdict


def build(case: Case) -> nn.Module:
    """The network in float64 and evaluation mode, with random weights."""
    torch.manual_seed(0)
    return randomise(case.make().double())


@dataclass
class Trial:
    """Inputs and what the network says of them."""

    name: str
    inputs: tuple | Mapping[str, Any]
    outputs: list[Tensor]


def _trials(case: Case, model: nn.Module) -> Iterator[Trial]:
    """The example first, then other inputs; those that the network refuses are left out."""
    yield from _tried(case, model, "example", (1, 1.0, 2), must=True)
    yield from _tried(case, model, "other values", (2, 1.0, 2))
    yield from _tried(case, model, "larger values", (3, 3.0, 2))
    for batch in case.batches:
        yield from _tried(case, model, f"batch of {batch}", (4, 0.5, batch))


def _tried(case: Case, model: nn.Module, name: str, how: tuple[int, float, int], must: bool = False) -> Iterator[Trial]:
    inputs = case.inputs(*how)
    try:
        found = run(copy.deepcopy(model), inputs)
    except Exception:
        if must:
            raise
        return
    if found and all(bool(torch.isfinite(t).all()) for t in found):
        yield Trial(name, inputs, found)


def run(model: nn.Module, inputs: tuple | Mapping[str, Any]) -> list[Tensor]:
    """All floating-point outputs of a network, computed in float64 throughout; no hidden states beside logits."""
    with InDouble():
        found = _call(model, inputs)
        if isinstance(found, Mapping) and any("logits" in key for key in found):
            found = {key: x for key, x in found.items() if "logits" in key or isinstance(x, Tensor)}
            found = {key: x for key, x in found.items() if "hidden_state" not in key}
        return list(_floats(found))


def _call(model: nn.Module, inputs: tuple | Mapping[str, Any]) -> object:
    torch.manual_seed(0)
    inputs = copy.deepcopy(inputs)
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def readable(model: nn.Module, inputs: tuple | Mapping[str, Any]) -> tuple[nn.Module, tuple | Mapping[str, Any]]:
    """The network and its example for ``symmetries``: in float64, or in float32 where its code runs in nothing else."""
    try:
        _call(copy.deepcopy(model), inputs)
    except RuntimeError:
        return copy.deepcopy(model).float(), _single(inputs)
    return model, copy.deepcopy(inputs)


def _single(inputs: tuple | Mapping[str, Any]) -> tuple | dict[str, Any]:
    """Inputs in float32."""

    def cast(x: object) -> object:
        return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x

    if isinstance(inputs, Mapping):
        return {k: cast(v) for k, v in inputs.items()}
    return tuple(cast(x) for x in inputs)


def _floats(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() or output.is_complex():
            yield output.clone()
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floats(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _floats(value)
    elif is_dataclass(output) and not isinstance(output, type):
        yield from _floats(vars(output))


def difference(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of any output, relative to the largest entry of that output."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return float("inf")
    worst = 0.0
    for a, b in zip(before, after):
        if a.numel():
            change = ((a - b).abs().max() / a.abs().max().clamp_min(1e-300)).item()
            worst = max(worst, change if change == change else float("inf"))
    return worst


def _compare(
    verdict: Verdict, case: Case, model: nn.Module, sym: iw.Symmetry, trials: list[Trial], seeds: int, budget: float
) -> None:
    verdict.tolerance = max(FLOOR, 300 * _rounding(model, trials, 1e-13))
    if not sym.spaces:
        verdict.verdict = "fixed"
        return
    fresh = build(case)
    verdict.control = _control(model, sym, trials[0])
    end = time.process_time() + budget
    bad: list[str] = []
    for number, (label, g) in enumerate(_elements(sym, seeds)):
        if number > len(KINDS) and (time.process_time() > end or len(bad) > 3):
            break
        g = iw.symmetry.admissible(sym, g, dict(model.state_dict()))
        if g.is_identity(0.0):
            continue
        twin = sym.act(g, model)
        loaded = copy.deepcopy(fresh)  # never run before: what a network keeps of its weights is not ours
        loaded.load_state_dict(twin.state_dict())
        everywhere = trials if label == "all kinds" else trials[-1:]
        for who, other, tried in (("", twin, everywhere), (" in a fresh network", loaded, trials[1:2])):
            for trial in tried:
                error = difference(trial.outputs, run(other, trial.inputs))
                verdict.comparisons += 1
                verdict.error = max(verdict.error, error)
                if not error <= verdict.tolerance:
                    bad.append(f"{label} on {trial.name}{who}: {error:.1e}")
    idle = _idle(model, sym, trials, end + budget)
    if bad:
        only_elsewhere = not any(" on example" in b for b in bad)
        verdict.verdict = "path-only" if sym.path_only and only_elsewhere else "wrong"
        verdict.why = "; ".join(bad[:4])
    elif idle:
        verdict.verdict, verdict.why = "wrong", f"moves what no output reads: {', '.join(idle[:3])}"
    elif sym.path_only:
        verdict.why = "certified for the path of the example"


def _idle(model: nn.Module, sym: iw.Symmetry, trials: list[Trial], end: float) -> list[str]:
    """Spaces whose weights are not read: half of the entries that an element changes may change alone."""
    found, state = [], model.state_dict()
    for space in sym.spaces:
        if time.process_time() > end:
            break
        g = iw.symmetry.admissible(sym, sym.random(7).restrict(spaces={space.name}), dict(state))
        new = sym.act(g, model).state_dict()
        moved = [n for n in new if not torch.equal(new[n], state[n])]
        if moved and not any(_seen(model, name, new[name], trials) for name in moved):
            found.append(space.name)
    return found


def _seen(model: nn.Module, name: str, value: Tensor, trials: list[Trial]) -> bool:
    """Whether the outputs change when half of the entries of one tensor do."""
    state = model.state_dict()
    old = state[name].clone()
    half = torch.rand(old.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    with torch.no_grad():
        state[name].copy_(torch.where(half, 1.1 * value, old))  # a sign alone may be lost to an absolute value
        try:
            return any(difference(t.outputs, run(model, t.inputs)) > 1e-12 for t in trials)
        finally:
            state[name].copy_(old)


def _elements(sym: iw.Symmetry, seeds: int) -> Iterator[tuple[str, Any]]:
    """Elements of each kind, of all kinds together, and of each space alone."""
    yield "all kinds", sym.random(10)
    for seed in range(seeds):
        for kind in KINDS:
            yield kind, sym.random(seed, {kind}, scale_std=LARGE)
    for space in sym.spaces:
        yield f"all of {space.name}", sym.random(20, scale_std=LARGE).restrict(spaces={space.name})


def _rounding(model: nn.Module, trials: list[Trial], size: float) -> float:
    """Change of the outputs when every weight changes by ``size``."""
    noisy, g = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in noisy.parameters():
            p.mul_(1 + size * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return max(difference(t.outputs, run(noisy, t.inputs)) for t in trials[:1])


def _control(model: nn.Module, sym: iw.Symmetry, trial: Trial) -> float:
    """Error of an element that leaves one tensor as it was: near zero, and nothing above says anything."""
    g = iw.symmetry.admissible(sym, sym.random(5, scale_std=LARGE), dict(model.state_dict()))
    twin, worst = sym.act(g, model), 0.0
    state = model.state_dict()
    moved = [n for n, t in twin.state_dict().items() if not torch.equal(t, state[n])]
    for name in moved[len(moved) // 2 :][:1]:
        wrong = copy.deepcopy(twin)
        with torch.no_grad():
            wrong.state_dict()[name].copy_(state[name])
        worst = max(worst, difference(trial.outputs, run(wrong, trial.inputs)))
    return worst


def _describe(verdict: Verdict, sym: iw.Symmetry) -> None:
    verdict.spaces, verdict.dim, verdict.log_size = len(sym.spaces), sym.dim, round(sym.log_size, 1)
    verdict.dtype = str(sym.dtype).removeprefix("torch.")
    verdict.moved, verdict.fixed = moved_units(sym), fixed_units(sym)
    verdict.unknown_ops, verdict.notes = tuple(sym.unknown_ops), tuple(sym.notes)


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Processor time for what runs inside, so that a busy machine makes nothing slow."""

    def stop(*_: object) -> None:
        raise TooSlow

    before: Callable | int | None = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def clear(error: Exception) -> bool:
    """Whether an error is one that the library raises itself, not one that something inside it ran into."""
    if isinstance(error, IntertwineError):
        return True
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(frame.filename).is_relative_to(Path(iw.__file__).parent)
    return ours and isinstance(error, ValueError | TypeError | RuntimeError) and "raise" in (frame.line or "")


def one_line(error: Exception) -> str:
    """An exception in one line, with the innermost place in the library or the network."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if "/torch/" not in f.filename), frames[-1])
    place = re.sub(r".*/(site-packages|src|nets)/", "", frame.filename)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]} ({place}:{frame.lineno})"
