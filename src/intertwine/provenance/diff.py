"""Changes between two checkpoints, after the symmetries of their architecture are removed."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import copied, unmasked
from .._examples import both_given
from .._io.lazy import State
from .._result import of_networks
from .._words import counted, listed
from ..errors import CaptureError
from ..matching.correspondence.correspond import APART, Correspondence, correspond
from ..matching.judgement.configurations import differing_settings, settings_of
from ..matching.judgement.deviation import HALVES, constant, deviation
from ..matching.judgement.grids import dtype_name
from ..matching.same import WHOLE, turned, with_biases
from ..symmetry import Symmetry, Transformation, symmetries
from ..symmetry.action import tensors_of
from ..symmetry.folding.fold import folded
from ..symmetry.gauge import canonical
from ..testing import function_error, outputs, relative_error, tolerance
from .changes.element_words import element_findings, folded_gains, moved_units
from .changes.findings import LOST, pooled, tensor_findings, tie_findings, told_apart
from .changes.layers import block_of
from .changes.pairs import Pairs, paired
from .changes.simplest_element import FoldedPair, explained
from .changes.tensor_change import COUNTED, COUNTER, RESIZED, REWRITTEN, ROUNDED, TensorChange, resized, tensor_change
from .difference import CHANGED, SAME_FUNCTION, Diff, Finding
from .units import with_rows

_AMPLIFIED, _MOST_ERROR = 10.0, 0.5  # multiple of the output error that rounding causes; largest relative error
_FEW = 3  # one in this many tensors: with nothing left in place; and, of these, after rotating streams back
_AFFINE = 1e-5  # relative deviation of a rewritten batch norm's affine map
_TAKEN_UP = 0.1  # share of a gain's distance from ones that may be left once its readers absorbed it

Network = nn.Module | State


@of_networks("a", "b", states=True)
def diff(a: Network, b: Network, example_inputs: Any, sym: Symmetry | None = None) -> Diff:
    """Report what was done to one checkpoint to make another: by symmetry, by casts, by training.

    First comes the element of the symmetry group that explains as much as possible (heads swapped, units permuted or
    scaled, gains folded into the next layer), the simplest by description length. Then, tensor by tensor, what remains
    after undoing it: casts and integer grids, pruning, updates and their rank, replaced or frozen blocks. Masks that
    ``torch.nn.utils.prune`` left attached are applied first.

    Args:
        a: The network before: a module, or its tensors by name, which may be read lazily.
        b: The network after. At least one of the two must be a module, unless ``sym`` is given;
            neither is changed.
        example_inputs: The inputs of the module: one tensor, a tuple of positional arguments or a mapping of keyword
            arguments. The outputs of both are compared on them; a module on the meta device is not run.
        sym: The symmetry of the module's architecture, if already known.

    Returns:
        The difference. ``same_function`` holds if every tensor agrees up to rounding once the element is applied, and
        the outputs agree, as well as the settings in ``config`` if both are transformers modules.

    Raises:
        TypeError: If neither is a module, and no symmetry is given.
        ValueError: If weights are missing on both sides, not finite, or not real numbers.

    Examples:
        >>> import intertwine as iw
        >>> _ = torch.manual_seed(0)
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1, kinds=["permutation"]), a)
        >>> with torch.no_grad():
        ...     _ = b[2].bias.add_(1)
        >>> for finding in iw.diff(a, b, torch.randn(2, 4)).findings:
        ...     print(f"{finding.kind}: {finding.text}")
        permuted: units 1, 2, 3, 4, 5, 6 permuted (units of 0)
        head only: only tensors of the head changed: 1 of 2 (2.bias); the others are as before
        frozen: 1 block of 2 as before: 0
        changed: 1 tensor trained or edited: ...
    """  # noqa: DOC502
    if sym is None:
        a, b = unmasked(a), unmasked(b)
    with with_biases(a, b) as zeros:
        model = _reference(a, b)
        if sym is None:
            if model is None:
                raise TypeError(
                    "a or b must be a module, or sym be given: symmetries are those of code. Got two state dicts."
                )
            with both_given("b" if model is b else "a"):
                sym = symmetries(model, example_inputs)
        found = _compared(a, b, example_inputs, model, sym)
        found = _once_folded(a, b, example_inputs, found)
    if zeros:
        said = f"biases of zeros in one only, which count as none: {counted(len(zeros), 'tensor')} ({listed(zeros)})"
        found = replace(found, findings=(Finding("zero biases", said, tuple(zeros)), *found.findings))
    return with_configurations(found, settings_of(a), settings_of(b))


def with_configurations(found: Diff, before: Mapping[str, Any], after: Mapping[str, Any]) -> Diff:
    """A difference of weights, extended by differing settings of two configurations in the form of ``config.json``.

    If outputs may depend on these, the networks no longer count as the same function.
    """
    told, rest = differing_settings(before, after, ran=found.output_error is not None)
    said = f"settings of training, labels and sizes changed, no change by themselves: {rest}"
    settings = [Finding("configuration", f"configuration changed: {told}")] * bool(told)
    settings += [Finding("settings", said)] * bool(rest)
    found = replace(found, findings=(*settings, *found.findings))
    if not found.same_function or not told:
        return found
    return replace(found, verdict=CHANGED, reason=f"the configurations differ, though {found.reason}")


def _lost(found: Diff) -> int:
    """The number of tensors of which nothing is left."""
    return sum(change.kind in LOST for change in found.tensors)


def _left(found: Diff) -> int:
    """The number of tensors that differ."""
    return sum(not change.settled for change in found.tensors)


def _once_folded(a: Network, b: Network, example_inputs: Any, found: Diff) -> Diff:
    """The difference of two networks after folding, if it is smaller than ``found``, the one before folding.

    If outputs agree, both are folded, streams may rotate, and no difference may be left. If outputs differ, one may
    have been folded or rotated and then tuned or cast: fewer tensors must differ, and more must retain something. If
    norms of only one network were folded, only the other is folded: rounding makes a second fold inexact.
    """
    error = found.output_error
    if found.same_function or error is None or not (isinstance(a, nn.Module) and isinstance(b, nn.Module)):
        return found
    ways: list[tuple[str, Any]] = [("both", _folded), ("both", turned)]
    lost, tuned = _lost(found), not error <= tolerance(torch.float32)
    if tuned:
        if sum(x.numel() for x in tensors_of(a).values()) > WHOLE:
            return found
        ways = [(only, partial(_folded, only=only)) for only in _not_folded(a, b)]
        ways += [("both", partial(turned, near=True))] * (_FEW * lost > len(found.tensors))
    for which, pair in ways:
        if (forms := pair(a, b, example_inputs)) is None:
            continue
        sym, *both = forms
        other = _compared(both[0], both[1], example_inputs, both[1], sym)
        less = (_left(other), _lost(other)) < (_left(found), lost)
        if other.same_function or (tuned and less and _FEW * _lost(other) <= lost):
            before = [_state(side) for side in (a, b)]
            pairs = ((n, old.get(n), x) for old, side in zip(before, both) for n, x in _state(side).items())
            names = tuple(dict.fromkeys(n for n, old, x in pairs if old is None or not torch.equal(x, old)))
            text = f"gains, means or biases folded into other tensors: {counted(len(names), 'tensor')}"
            rest = "of which folding {} leaves the same" if other.same_function else "that folding {} rewrites"
            told = [Finding("folded", f"{text} {rest.format(which)}", names)] * bool(names)
            once = f"once {which} {'are' if which == 'both' else 'is'} folded"
            return replace(other, reason=f"{once}, {other.reason}", findings=(*told, *other.findings))
    return found


def _not_folded(a: nn.Module, b: nn.Module) -> list[str]:
    """Which of the two have vectors, such as gains and biases, that are constant only in the other."""
    ours, theirs = _state(a), _state(b)
    known = {(constant(x), constant(theirs[n])) for n, x in ours.items() if x.ndim == 1 and n in theirs}
    return [side for side, signs in (("a", (False, True)), ("b", (True, False))) if signs in known]


def _folded(
    a: nn.Module, b: nn.Module, example_inputs: Any, only: str = ""
) -> tuple[Symmetry, nn.Module, nn.Module] | None:
    """Two networks, one or both folded by ``fold``, with their symmetry; ``None`` if folding does nothing.

    If only one is folded, it gets no bias that the other lacks.
    """
    ours, theirs = (side.state_dict().keys() for side in (a, b))
    extend: Any = "ties" if only and (theirs <= ours if only == "a" else ours <= theirs) else True
    one, other = (folded(x, example_inputs, extend) if only in ("", side) else x for side, x in zip("ab", (a, b)))
    return None if one is a and other is b else (symmetries(other, example_inputs), one, other)


def _compared(a: Network, b: Network, example_inputs: Any, model: nn.Module | None, sym: Symmetry) -> Diff:
    """The difference of two networks as they are."""
    program = _programs(model, b if model is a else a, example_inputs)
    pairs = paired(sym, _state(a), _state(b), program.entries if program and not program.part else None)
    guessed = list[Finding]()
    if program is not None and not program and pairs.converted:
        turned = None if model is a else _programs(a, b, example_inputs)  # whose reason names the right ones a and b
        reason = program.reason if turned is None else turned.reason
        said = f"the programs do not correspond ({reason})"
        guessed.append(Finding("other programs", f"{said}: tensors are paired by what they hold, maybe by chance"))
    folds, g = explained(pairs.sym, pairs.a, pairs.b)
    changes = told_apart(pooled(_settled([*_changes(pairs, g)], pairs, folds, g)), pairs.sym, g)
    error, said = _output_error(a, b, model, pairs, example_inputs)
    verdict, reason = _verdict(changes, g, error, said, pairs)
    ties = tie_findings(_state(a), _state(b)) if isinstance(a, nn.Module) and isinstance(b, nn.Module) else ()
    return Diff(
        verdict=verdict,
        reason=reason,
        findings=(*guessed, *ties, *pairs.findings, *element_findings(pairs, g), *tensor_findings(changes, pairs, g)),
        tensors=tuple(changes),
        units=moved_units(pairs, g, {c.name for c in changes if not c.settled}),
        output_error=error,
        ambiguous=pairs.ambiguous,
        transformation=g,
    )


def _reference(a: Network, b: Network) -> nn.Module | None:
    """The module whose names and symmetries are used: the second, unless units of the first were removed."""
    modules = [side for side in (b, a) if isinstance(side, nn.Module)]
    if len(modules) == 2:
        after, before = map(_state, modules)
        pairs = [(before[n].shape, x.shape) for n, x in after.items() if n in before and before[n].ndim == x.ndim]
        if any(old != new for old, new in pairs) and all(m >= n for old, new in pairs for m, n in zip(old, new)):
            return modules[1]
    return modules[0] if modules else None


def _programs(model: Network | None, other: Network, example_inputs: Any) -> Correspondence | None:
    """The correspondence of the model to another network, by their programs; ``None`` if names show it."""
    if not (isinstance(model, nn.Module) and isinstance(other, nn.Module)):
        return None
    ours, theirs = (side.state_dict().keys() for side in (model, other))
    if ours <= theirs or theirs <= ours:
        return None
    try:
        return correspond(model, other, example_inputs)
    except CaptureError:
        return Correspondence(APART, reason="one does not run on the example inputs of the other")


def _state(side: Network) -> State:
    """The contents of a network's checkpoint: parameters under all their names, and saved buffers."""
    if not isinstance(side, nn.Module):
        return side
    return {name: t.detach() for name, t in side.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}


def _changes(pairs: Pairs, g: Transformation) -> Iterator[TensorChange]:
    """The change of every tensor in turn, so that a checkpoint on disk is read once."""
    common = pairs.common(g)
    for name, source in pairs.sources.items():
        layout = pairs.sym.layouts.get(name)
        leaves = () if layout is None else layout.leaves
        exact = all(g[x.space].diagonal(x) is None and g[x.space].mixing(x) is None for x in leaves)
        change_of = partial(tensor_change, name, source, block_of(name), exact=exact)
        x, y = pairs.before(name, g), pairs.b[name]
        change = change_of(x, y)
        if name in pairs.resized and (change := resized(change, *pairs.resized[name])).kind not in RESIZED:
            change = change_of(*(with_rows({name: t}, common)[name] for t in (x, y)))
        yield change
    for kind, tensors in (("missing", pairs.missing), ("new", pairs.new)):
        for name, x in tensors.items():
            dtypes = ("", dtype_name(x.dtype)) if kind == "new" else (dtype_name(x.dtype), "")
            told = (COUNTED, kind) if name.endswith(COUNTER) else (kind, "")
            yield TensorChange(name, "", block_of(name), tuple(x.shape), dtypes, *told, relative=inf, cosine=0.0)


def _settled(changes: list[TensorChange], pairs: Pairs, folds: FoldedPair, g: Transformation) -> list[TensorChange]:
    """Changes without apparent ones: rounding that bases mixed, and rewritten batch norms."""
    if all(c.settled for c in changes):
        return changes
    told = dict.fromkeys(_rewritten(pairs, g), (REWRITTEN, "same affine map"))
    taken = {name for name, now, *_ in folded_gains(pairs, g) if now}
    near = lambda c: c.relative * c.norm <= _TAKEN_UP * float((pairs.a[c.name].double() - 1).norm())
    ones = (c for c in changes if c.kind == "constant" and c.name in taken and near(c))
    told |= {c.name: (ROUNDED, c.dtypes[1]) for c in ones}  # rounded readers do not determine the scale better
    if any(e.linear is not None for e in g.elements.values()):
        fits = lambda x: any(torch.equal(x, x.to(half).to(x.dtype)) for half in HALVES)
        halves = frozenset(c.name for c in changes if c.name in pairs.sym.layouts and fits(pairs.b[c.name]))
        apart = deviation(folds.a, folds.b, g, halves)
        agreed = apart.precision or apart.shared()
        if agreed in ("float64", "float32") or (agreed and halves):
            mixed = folds.b.sym.layouts.keys() - apart.beyond(agreed).keys()
            told = dict.fromkeys(mixed, (ROUNDED, "float32" if agreed == "float64" else agreed)) | told
    return [
        c if c.settled or c.name not in told
        else replace(c, kind=told[c.name][0], detail=told[c.name][1], rank=None, effective_rank=None)
        for c in changes
    ]  # fmt: skip


def _rewritten(pairs: Pairs, g: Transformation) -> Iterator[str]:
    """Batch-norm tensors whose eval-mode affine map is the same with other statistics."""
    norms = [norm for norm in pairs.sym.batch_norms if norm.weight is not None and norm.bias is not None]
    if not norms:
        return
    left, right = (
        canonical.fold(pairs.sym, state) for state in ({n: pairs.before(n, g) for n in pairs.sym.layouts}, pairs.b)
    )
    for norm in norms:
        affine = {n: right.state[n] for n in (norm.weight, norm.bias) if n is not None}
        sizes = {n: right.size(n).abs() for n, x in affine.items()}
        if all(bool(((left.state[n] - x).abs() <= _AFFINE * sizes[n] + 1e-12).all()) for n, x in affine.items()):
            yield from (norm.mean, norm.variance, *affine)


def _output_error(
    a: Network, b: Network, model: nn.Module | None, pairs: Pairs, example_inputs: Any
) -> tuple[float | None, str]:
    """The difference of the outputs, also in words: infinity for other shapes, ``None`` if nothing can be run.

    Both run in their own code, or in the model's if one takes other inputs.
    """
    if model is None or pairs.resized or any(t.is_meta for t in tensors_of(model).values()):
        return None, ""
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        with suppress(ValueError, RuntimeError, TypeError):
            ours, theirs = outputs(a, example_inputs), outputs(b, example_inputs)
            if ours[0].shape != theirs[0].shape:
                shapes = f"shapes {tuple(ours[0].shape)} and {tuple(theirs[0].shape)}"
                return inf, f"; outputs on the example inputs have {shapes}: they are not the same quantity"
            return _told(relative_error(ours, theirs))
    twins = []
    for state in (pairs.a, pairs.b):
        twins.append(copied(model))
        twins[-1].load_state_dict(dict(state), strict=False)
        every: list[tuple[str, Tensor]] = [*twins[-1].named_parameters(remove_duplicate=False)]
        every += [(name, x) for name, x in twins[-1].named_buffers() if name.endswith(("running_mean", "running_var"))]
        filled = {id(p) for name, p in every if name in state}
        if any(id(p) not in filled for _, p in every):
            return None, ""
    return _told(function_error(twins[0], twins[1], example_inputs))


def _told(error: float) -> tuple[float, str]:
    """A difference of outputs and its words."""
    return error, f"; outputs on the example inputs differ by {error:.1e} (relative)"


def _verdict(
    changes: list[TensorChange], g: Transformation, error: float | None, ran: str, pairs: Pairs
) -> tuple[str, str]:
    """The verdict and its ground; ``ran`` are the words about the outputs."""
    left = [c for c in changes if not c.settled]
    if left and all(c.kind == "quantised" for c in left) and not pairs.resized:
        grids = " and ".join(sorted({c.detail for c in left}))
        return CHANGED, f"cast: {len(left)} of {len(changes)} tensors rounded to levels of {grids}, nothing else{ran}"
    if left:
        if error is not None and error <= tolerance(torch.float32):
            ran += ": they agree, so these inputs do not reach what changed, or it is a symmetry that is not searched"
        return CHANGED, f"{len(left)} of {len(changes)} tensors differ by more than symmetry and rounding explain{ran}"
    if pairs.layers:
        return CHANGED, f"layers were dropped, repeated or moved; what both have agrees{ran}"
    if pairs.resized:
        return CHANGED, f"{counted(len(pairs.resized), 'tensor')} of another size; what both have agrees{ran}"
    formats = {c.detail for c in changes if c.kind == ROUNDED}
    within = max(tolerance(getattr(torch, f)) for f in {"float32", *formats})
    untouched = not formats and g.is_identity(0.0)
    every = "every tensor" + " but for counters of batches" * any(c.kind == COUNTED for c in changes)
    if error is not None and not error <= min(_MOST_ERROR, within if untouched else _AMPLIFIED * within):
        said = "every tensor agrees, but the models compute other functions with them"
        return CHANGED, f"{said}{': one is laid out for other code' * (pairs.converted and error < inf)}{ran}"
    steps = ["names and layouts are converted"] * bool(pairs.converted)
    if untouched:
        return SAME_FUNCTION, f"{every} is equal, bit by bit{', once ' * bool(steps)}{''.join(steps)}{ran}"
    steps += ["the element is applied"] * (not g.is_identity(0.0))
    how = f"once {' and '.join(steps)}" if steps else "as it stands"
    rounded = f", up to rounding to {' and '.join(sorted(formats))}" if formats else ""
    return SAME_FUNCTION, f"{every} agrees {how}{rounded}{ran}"
