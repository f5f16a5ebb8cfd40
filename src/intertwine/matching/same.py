"""The verdict on whether two networks are the same up to symmetry."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import unmasked
from .._io.lazy import State
from .._result import of_networks
from .._words import counted, listed
from ..errors import CaptureError
from ..symmetry import symmetries
from ..symmetry.action import acting, check_states, moved, rewritable, tensors_of
from ..symmetry.coupling import narrowed
from ..symmetry.folding.fold import folded
from ..symmetry.folding.norms import gains_of
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import Transformation
from ..testing import outputs, relative_error, tolerance
from .components import Pair
from .coordinates.networks import NEAR, gauge_of, same_form, turning
from .correspondence.correspond import SETTINGS, correspond, in_code_of, in_one_code
from .decision import decided, other_architectures
from .judgement.configurations import differing_settings, settings_of, sizes_and_settings
from .judgement.deviation import PRECISIONS
from .judgement.layers import NEW, moved_layers, renumbered
from .judgement.verdict import APART, DIFFERENT, PART, RELATED, SAME, UNTOLD, Match

__all__ = ["COMPONENT", "WHOLE", "same", "turned", "with_biases"]

WHOLE = 64_000_000  # most weights for which a network is matched whole, and once more with rotating streams
COMPONENT = 16_000_000  # weights per component of larger networks
_BIASED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # a missing bias equals a bias of zeros


@of_networks("a", "b", states=True)
def same(
    a: nn.Module | Mapping[str, Tensor],
    b: nn.Module | Mapping[str, Tensor],
    example_inputs: Any,
    sym: Symmetry | None = None,
    example_inputs_b: Any = None,
) -> Match:
    """Decide whether two networks are the same up to symmetry, and find the element between them.

    In balanced form, where scales and bases are almost fixed, units are matched by assignment from several starts, and
    weights are compared one by one. Rounding changes every weight by a share of itself and training does not, so a copy
    that was cast to bfloat16 and back is told from a fine-tuned one. Dead and duplicate units are matched with any of
    their equals. Batch norms are compared as their eval-mode affine maps.

    "Related" has two grounds. Either most tensors agree as well as rounding allows; then ``differing`` names those that
    were changed, including a head with another number of classes. Or the networks are clearly closer than by chance:
    the residual is below 0.75 of what the same search leaves for networks with the same statistics and unrelated units
    (0.5 for purely linear networks, whose bases absorb much), or below 0.8 unit by unit in place; or a tenth of the
    matrices, by number or by weights, agree exactly.

    If names, shapes or classes differ, the programs are compared first (``correspond``): B's weights are then judged in
    A's code, and one network may be part of the other. Programs that do not correspond are "not comparable", which is
    no answer: ``bool()`` of it raises. They are different only if their outputs have different shapes, or if settings
    make one compute something else. A map without a bias counts as having a zero bias. Folding gains and biases out of
    norms is outside the group. So if outputs are equal, gains are written ``1 + w``, or streams may rotate (in networks
    up to 64 million weights whose embeddings a rotation aligns), networks that do not agree are folded (``fold``) and
    compared once more.

    The verdict is "different" only if the symmetry is known and outputs on the example differ. If operations have no
    rule, the runs took different paths, or outputs are equal, networks that do not agree "cannot be told", unless
    tensors of known symmetry tell them apart. So it is for related ones with equal outputs that the halfway one lacks.

    Args:
        a: One network. Both are left as they are. Of two state dicts, given with ``sym``, only the weights are compared
            and no network is run. If they are read on demand (``StoredState``), one component is in memory: tensors
            that scales and bases couple, or whose spaces cannot be separated, and whatever else fits.
        b: The other.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        sym: The symmetry of both, if already known.
        example_inputs_b: The inputs of ``b``, if its code takes the same numbers in another form.

    Returns:
        The match. The search is local: "the same" is proved by the weights, but the other verdicts are no proofs.
        Networks with large changes (noise beyond about 0.6 of the weights) are called different.

    Raises:
        TypeError: If only one is a state dict, or two are given without their symmetry.

    Examples:
        >>> import intertwine as iw
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1), a).bfloat16().float()
        >>> print(same(a, b, torch.randn(2, 4)))
        the same network up to symmetry: 99.9 % of weights agree to 0.003..., which rounding to bfloat16 ...
        >>> _ = nn.init.normal_(b[2].weight)  # another head
        >>> found = same(a, b, torch.randn(2, 4))
        >>> found.verdict, list(found.differing)
        ('related (merged, fine-tuned)', ['2.weight'])
    """  # noqa: DOC502 - raised by what it calls
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        sym, (first, second) = check_states(sym, a=a, b=b)
        found = decided(Pair(sym, first, second, COMPONENT))
        said = "; no network was run: a copy that was folded, or whose streams were rotated, would look the same"
        return replace(found, reason=found.reason + said) if found.verdict == DIFFERENT else found
    if sym is None:
        a, b = unmasked(a), unmasked(b)
    with with_biases(a, b) as zeros:
        found = _as_they_are(a, b, example_inputs, sym, example_inputs_b)
        comparable = found.correspondence or not _replaced(tensors_of(a), tensors_of(b))
        if comparable and found.verdict in (RELATED, DIFFERENT, UNTOLD):
            found = _by_outputs(found, (a, b), example_inputs, example_inputs_b, sym is None)
    if zeros:
        found = replace(found, reason=f"{found.reason}; biases of zeros count as none: {listed(zeros)}")
    told, _ = differing_settings(settings_of(a), settings_of(b), ran=True)
    told = told if found.residual < float("inf") else sizes_and_settings(a, b)
    return replace(found, reason=f"{found.reason}; configurations differ: {told}") if told else found


@contextmanager
def with_biases(a: object, b: object) -> Iterator[list[str]]:
    """Names of biases that one network lacks and the other has as zeros; within this context both have them."""
    given = dict[str, nn.Module]()
    for one, other in permutations([side for side in (a, b) if isinstance(side, nn.Module)], 2):
        theirs = dict(other.named_modules())
        for name, module in one.named_modules():
            kind, bias = type(theirs.get(name)), getattr(theirs.get(name), "bias", None)
            lacks = type(module) is kind and kind in _BIASED and getattr(module, "bias", 0) is None
            if lacks and isinstance(bias, Tensor) and not bias.is_meta and not bias.any():
                module.bias, given[f"{name}.bias"] = nn.Parameter(torch.zeros_like(bias).to(module.weight)), module
    try:
        yield [*given]
    finally:
        for module in given.values():
            module.register_parameter("bias", None)


def _by_outputs(
    found: Match, models: tuple[nn.Module, nn.Module], example_inputs: Any, example_inputs_b: Any, may_fold: bool
) -> Match:
    """The verdict on networks as they are, also by their outputs, or on both folded if that says more.

    Folding gains and biases of norms into their readers gives other weights for the same function. No element of the
    group does this if the gain is written ``1 + w``, has zeros or a bias, or if folding untied the head. In networks
    that were tuned or cast since, a rotated stream is found only once both are folded.
    """
    inputs = example_inputs, example_inputs if example_inputs_b is None else example_inputs_b
    off = _error(*map(outputs, models, inputs))
    alike = off <= PRECISIONS["float32"]
    ones = gains_of(models[0], example_inputs) if may_fold and (alike or found.verdict != RELATED) else set()
    if ones and (alike or 0 in ones):
        a, b = map(folded, models, inputs)
        again = _as_they_are(a, b, example_inputs, None, example_inputs_b)
        if again.verdict == SAME or (again.verdict == RELATED and found.verdict != RELATED):
            return replace(again, reason=f"{again.reason}; both were folded")
    turns = alike or (found.verdict == DIFFERENT and sum(x.numel() for x in tensors_of(models[0]).values()) <= WHOLE)
    if turns and may_fold and example_inputs_b is None and (made := turned(*models, example_inputs, near=not alike)):
        sym, a, b = made
        match = _by_name(a, b, example_inputs, sym)
        if alike or match.verdict in (SAME, RELATED):
            return replace(match, reason=f"{match.reason}; both were folded, and streams rotate")
    if not alike or found.verdict != DIFFERENT:
        return found
    said = f"yet both give the same outputs here (relative error {off:.0e}): more moved than the symmetry knows"
    return replace(found, verdict=UNTOLD, reason=f"{found.reason}; {said}")


def turned(
    a: nn.Module, b: nn.Module, example_inputs: Any, near: bool = False
) -> tuple[Symmetry, nn.Module, nn.Module] | None:
    """Two networks in the gauge in which streams may rotate, in one code, with the symmetry; ``None`` if there is none.

    With ``near``, also ``None`` if no rotation brings the embeddings near each other.
    """
    gauge = gauge_of((a, b), example_inputs, symmetries(a, example_inputs))
    if gauge is None:
        return None
    ours, theirs = gauge(a), gauge(b)
    if not in_one_code(ours, theirs):  # loaded models record where they come from
        found = correspond(ours, theirs, example_inputs)
        if not found or found.part:
            return None
        theirs = in_code_of(ours, theirs, found)
    if near and turning(gauge.sym, tensors_of(ours), tensors_of(theirs))[1] <= NEAR:
        return None
    return gauge.sym, ours, theirs


def _as_they_are(a: nn.Module, b: nn.Module, example_inputs: Any, sym: Symmetry | None, example_inputs_b: Any) -> Match:
    """The verdict on modules, by name or in one code."""
    states = tensors_of(a), tensors_of(b)
    replaced = _replaced(*states)
    if sym is not None or (example_inputs_b is None and not replaced and in_one_code(a, b)):
        return _by_name(a, b, example_inputs, sym)
    apart = _in_other_code(a, b, example_inputs, example_inputs_b)
    if apart.correspondence or 2 * len(replaced) > len({*states[0], *states[1]}):
        return apart
    found = _by_name(a, b, example_inputs, None)
    if found.verdict == DIFFERENT and found.precision:
        return replace(found, reason=f"{found.reason}; {apart.reason}")
    if found.verdict != SAME:
        return found
    if apart.verdict == DIFFERENT:
        return apart  # in the weights' precision, rounding hides the difference
    return replace(found, verdict=UNTOLD, reason=f"{found.reason}, but other inputs may tell: {apart.reason}")


def _by_name(a: nn.Module, b: nn.Module, example_inputs: Any, sym: Symmetry | None) -> Match:
    """The verdict on tensors matched by name; layers with other numbers are matched by content."""
    states: tuple[State, State] = (tensors_of(a), tensors_of(b))
    replaced, saved = _replaced(*states), {*a.state_dict(), *b.state_dict()}
    if layers := moved_layers(states[1], states[0]) if replaced else {}:
        saved |= renumbered(b.state_dict(), states[0], layers).keys()
        states = states[0], renumbered(states[1], states[0], layers)
        replaced = _replaced(*states)
    made = {name for name in replaced if name not in saved}  # made from settings: outputs show their effect
    replaced = {name: why for name, why in replaced.items() if name in saved}
    if 2 * len(replaced) > len({*states[0], *states[1]}):
        return other_architectures(replaced)
    one_path = True
    if sym is None:
        sym = symmetries(a, example_inputs)
        other = sym if replaced or made else symmetries(b, example_inputs)
        if not same_form(sym, other):
            if not (sym.path_only or other.path_only):
                tied = ", ".join(sorted(sym.aliases.keys() ^ other.aliases.keys()))
                if not tied:
                    return _in_other_code(a, b, example_inputs, None)
                why = f"{tied} tied to another in one of them only: see diff"
                return other_architectures({"": f"the tensors have the same shapes, but {why}"})
            one_path = False
    sym = narrowed(sym, sym.layouts.keys() - made)
    limit = None if sum(x.numel() for x in states[0].values()) <= WHOLE else COMPONENT

    def error(g: Transformation) -> float:
        theirs = outputs(b, example_inputs)
        with acting(sym, g, a):
            return _error(outputs(a, example_inputs), theirs)

    found = decided(Pair(sym, *states, limit), replaced, error, one_path)
    if held := [f"{start}{k} of a is {start}{n} of b" for (start, k), n in layers.items() if n != NEW]:
        found = replace(found, reason=f"{found.reason}; {listed(held)}")
    if found.verdict == RELATED and not replaced and _moved_together(found, sym, a, b, example_inputs):
        said = (
            "yet both give the same outputs here, and the network halfway does not: more moved than the symmetry knows"
        )
        return replace(found, verdict=UNTOLD, reason=f"{found.reason}; {said}")
    return found


def _moved_together(found: Match, sym: Symmetry, a: nn.Module, b: nn.Module, example_inputs: Any) -> bool:
    """Whether outputs are equal, but not halfway: then differing tensors compensate for each other, and are read."""
    theirs = outputs(b, example_inputs)
    if found.transformation is None or not _error(outputs(a, example_inputs), theirs) <= PRECISIONS["float32"]:
        return False
    middle, ours = rewritable(sym, b), tensors_of(a)
    names = [name for name in found.differing if name in sym.layouts]
    ours = {**ours, **moved(sym, found.transformation, ours, names)}
    with torch.no_grad():
        for name, x in tensors_of(middle).items():
            if name in names:
                x.lerp_(ours[name].to(x), 0.5)
    return not _error(outputs(middle, example_inputs), theirs) <= PRECISIONS["float32"]


def _error(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The relative error of outputs; infinite if shapes differ."""
    alike = [x.shape for x in ours] == [x.shape for x in theirs]
    return relative_error(ours, theirs) if alike else float("inf")


def _in_other_code(a: nn.Module, b: nn.Module, example_inputs: Any, example_inputs_b: Any) -> Match:
    """The verdict on B's weights in A's code if programs correspond; else by the outputs' shapes and by settings."""
    found = correspond(a, b, example_inputs, example_inputs_b)
    if found:
        match = _by_name(a, in_code_of(a, b, found), example_inputs, None)
        said = [match.reason, *found.looked_through]
        if found.renamed:
            count = counted(found.renamed, "entry")
            said.append(f"{count} of {len(found.entries)} under other names or in other forms")
        sides = ("a", a, [e.a.name for e in found.entries]), ("b", b, [e.b.name for e in found.entries])
        for whose, model, names in sides if not found.part else ():
            held = tensors_of(model)
            read = {held[name].data_ptr() for name in names}
            if idle := [n for n, p in model.named_parameters() if p.data_ptr() not in read]:
                said.append(f"nothing reads {listed(idle)} of {whose} on the example")
        where = f"{found.verdict}, at {found.part}; " if found.part else ""
        verdict = PART if found.part and match.verdict == SAME else match.verdict
        return replace(match, verdict=verdict, reason=where + "; ".join(said), correspondence=found)
    ours, theirs = list[Tensor](), list[Tensor]()
    with suppress(RuntimeError, TypeError, ValueError, NotImplementedError, CaptureError):
        ours = outputs(a, example_inputs)
        theirs = outputs(b, example_inputs if example_inputs_b is None else example_inputs_b)
    shapes = [[tuple(x.shape) for x in side] for side in (ours, theirs)]
    verdict, reason = APART, found.reason
    if len(ours) == len(theirs) and shapes[0] != shapes[1]:
        verdict = DIFFERENT
        reason = f"other architectures: the outputs have shapes {shapes[0]} and {shapes[1]}; {reason}"
    elif found.verdict == SETTINGS and found.error is not None:
        alike = bool(ours) and _error(ours, theirs) <= tolerance(torch.float32)
        verdict = UNTOLD if alike else DIFFERENT
        reason += "; yet both give the same outputs here: weights may make up for them" * alike
    return Match(verdict, float("inf"), float("inf"), None, reason, correspondence=found)


def _replaced(a: State, b: State) -> dict[str, str]:
    """Tensors that only one network has or whose shapes differ, in words."""
    found = {}
    for name in [*a, *(n for n in b if n not in a)]:
        if name not in a or name not in b:
            found[name] = f"only one has {name!r}"
        elif a[name].shape != b[name].shape:
            found[name] = f"{name!r} has shape {tuple(a[name].shape)} and {tuple(b[name].shape)}"
    return found
