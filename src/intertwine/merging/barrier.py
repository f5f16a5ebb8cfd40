"""The loss barrier between two networks: how much worse the networks between them are, before and after alignment."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from torch import nn

from .._evaluation import copied, in_usual_mode
from .._progress import track
from .._result import of_networks
from .._words import check_whole
from ..features.batches import check_repeatable, device_of, example, peek
from ..features.evaluate import Loss, Score, evaluate
from ..matching.align import align
from ..matching.coordinates.networks import check_matching
from ..matching.correspondence.correspond import carrier_of
from ..matching.solvers.solver import Solver
from ..symmetry.action import tensors_of
from .curves import Barrier, Curve
from .merge import Aligned, Interpolation, check_interpolation, in_basis, interpolate_
from .repair import batch_norms, recalibrate_

_FEWEST = 3  # points: both ends and one between


@dataclass(frozen=True)
class PathOptions:
    """Options for making and scoring paths between networks.

    Attributes:
        recalibrate: Whether to add the recalibrated variant, for networks with batch norms.
        calibration: Batches of training inputs for that, and for methods that look at data; by default the loader.
        interpolation: ``"linear"``, or ``"spherical"`` for parameters.
        loss: Mean loss of a batch from ``(output, batch)``, if it is not cross-entropy.
        example_inputs: Example inputs of the alignment, see ``align``; by default the first two examples of the loader.
        kinds: Kinds of elements that the alignment searches, see ``align``.
        seed: Seed of the alignment.

    Raises:
        ValueError: If the interpolation is unknown.
    """

    recalibrate: bool = True
    calibration: Iterable[Any] | None = None
    interpolation: Interpolation = "linear"
    loss: Loss | None = None
    example_inputs: Any = None
    kinds: Collection[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)


OPTIONS = PathOptions()


@of_networks("a", "b")
def barrier(
    a: nn.Module,
    b: nn.Module,
    loader: Iterable[Any],
    points: int = 11,
    *,
    alignment: Aligned | Solver | str | None = "weights",
    options: PathOptions = OPTIONS,
    names: tuple[str, str] = ("a", "b"),
    progress: bool | None = None,
) -> Barrier:
    """Score the interpolations between two networks, before and after alignment.

    The barrier is the largest excess of the loss over the chord of its ends (Entezari et al. 2022, equation 1),

        max_t  L((1 - t) a + t b) - ((1 - t) L(a) + t L(b)),

    taken over equally spaced ``t``, and likewise the largest drop in accuracy. Statistics of batch norms are
    interpolated like weights; the recalibrated variant measures them anew at every point. All paths are scored at their
    ends first, then at the middle, then more finely: if interrupted (Control-C), the points so far are the result.

    Args:
        a: One network. Both are left unchanged.
        b: The other, of the same architecture, or the same program in other code.
        loader: Labelled batches to score on, see ``evaluate``; it is read many times, so it cannot be a generator.
        points: Points of each path, the ends included.
        alignment: Result of ``align(a, b, ...)``, a method to align with here (see ``align``), or ``None`` for the
            direct path only.
        options: Recalibration, interpolation, loss, and arguments of the alignment.
        names: Names of the two in results.
        progress: Whether to show progress.

    Raises:
        ValueError: If the architectures differ, weights are not finite, there are fewer than 3 points, or the loader is
            empty, a generator, or without labels.

    Examples:
        >>> import torch
        >>> x = torch.randn(64, 4)
        >>> batches = [(x, (x[:, 0] > 0).long())]
        >>> a, b = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
        >>> found = barrier(a, b, batches, points=5, alignment=None)
        >>> found.ratios, len(found.curves)
        ((0.0, 0.25, 0.5, 0.75, 1.0), 1)
    """  # noqa: DOC502 - raised by what it calls
    return barriers([a, b], loader, points, alignments=[alignment], options=options, names=names, progress=progress)


@in_usual_mode
def barriers(
    models: Sequence[nn.Module],
    loader: Iterable[Any],
    points: int = 11,
    pairs: Sequence[tuple[int, int]] | None = None,
    *,
    alignments: Sequence[Aligned | Solver | str | None] | Solver | str | None = "weights",
    options: PathOptions = OPTIONS,
    names: Sequence[str] | None = None,
    progress: bool | None = None,
) -> Barrier:
    """Barriers between several networks of one architecture, for a mean with an interval over networks.

    Args:
        models: The networks, such as several seeds.
        loader: Labelled batches to score on.
        points: Points of each path, the ends included.
        pairs: Which networks to join, by position; by default every pair.
        alignments: One for each pair, or one method for all, or ``None``; see ``barrier``.
        options: Recalibration, interpolation, loss, and arguments of the alignment.
        names: Names of the networks; by default their positions.
        progress: Whether to show progress.

    Returns:
        The curves of all pairs; ``interval`` leaves out networks, not pairs.

    Raises:
        ValueError: As ``barrier``, or if pairs name no networks, or one network twice.
        KeyboardInterrupt: If it comes before the middle of all paths is scored.
    """
    chosen = list(combinations(range(len(models)), 2)) if pairs is None else [(i, j) for i, j in pairs]
    called = [str(k) for k in range(len(models))] if names is None else list(names)
    _check(models, chosen, called, points)
    check_repeatable(loader)
    if options.calibration is not None:
        check_repeatable(options.calibration, "calibration")
    given = (
        [alignments] * len(chosen) if isinstance(alignments, str | Solver) or alignments is None else list(alignments)
    )
    if len(given) != len(chosen):
        raise ValueError(f"alignments must be one for each of {len(chosen)} pairs. Got {len(given)}.")
    first, _ = peek(loader)
    evaluate(models[chosen[0][0]], [first], options.loss)  # refuses data without labels before long work
    calibration = loader if options.calibration is None else options.calibration
    inputs = options.example_inputs
    if inputs is None:
        inputs = example(first, 2, device_of(models[chosen[0][0]]))
    joined = []
    for (i, j), alignment in zip(chosen, given):
        carry = carrier_of(models[i], models[j], inputs)
        joined.append((models[i], models[j] if carry is None else carry(models[j])))
        if alignment is None:
            check_matching(*joined[-1], (called[i], called[j]))
    options = replace(options, calibration=calibration, example_inputs=inputs)
    plan = [  # the pair and the kind of each path, and its ends: b is in the basis of a where it is aligned
        (k, kind, recalibrated, start, end)
        for k, (pair, alignment) in enumerate(zip(joined, given))
        for kind, start, end in _ends(*pair, alignment, options)
        for recalibrated in ((False, True) if options.recalibrate and batch_norms(pair[0]) else (False,))
    ]
    scores: dict[tuple[int, int], Score] = {}
    whole = list[int]()
    try:
        for k in track(_coarse_first(points), "Points of all paths", enabled=progress):
            for i, (*_, again, start, end) in enumerate(plan):
                scores[i, k] = _score(start, end, again, k / (points - 1), loader, options)
            whole = sorted([*whole, k])
    except KeyboardInterrupt:  # what was scored on all paths counts
        if len(whole) < _FEWEST:
            raise
    curves = []
    for i, (pair, kind, recalibrated, _, _) in enumerate(plan):
        here = [scores[i, k] for k in whole]
        known = tuple(s.accuracy for s in here if s.accuracy is not None)
        accuracy = known if len(known) == len(here) else None
        curves.append(Curve(pair, kind, recalibrated, tuple(s.loss for s in here), accuracy))
    aligned = next((g for g in given if g is not None), None)
    named = getattr(aligned, "name" if isinstance(aligned, Solver) else "method", "given")
    found = Barrier(
        ratios=tuple(k / (points - 1) for k in whole),
        pairs=tuple((called[i], called[j]) for i, j in chosen),
        curves=tuple(curves),
        alignment=aligned if aligned is None or isinstance(aligned, str) else named,
        interpolation=options.interpolation,
        examples=scores[0, 0].examples,
        notes=(f"Interrupted: these are {len(whole)} of {points} points.",) if len(whole) < points else (),
    )
    anew = found.heights("aligned", recalibrated=True)
    if anew and found.after > max(found.before, fmean(anew)):
        said = "With interpolated statistics of batch norms the aligned path is worse than the direct one"
        found = replace(found, notes=(*found.notes, f"{said}: networks on it need norms that are recalibrated."))
    return found


def _coarse_first(points: int) -> list[int]:
    """Order of the points of a path: the ends, the middle, and then what halves the gaps.

    Examples:
        >>> _coarse_first(9)
        [0, 8, 4, 2, 6, 1, 3, 5, 7]
    """
    order, step = [0, points - 1], points - 1
    while step > 1:
        step //= 2
        order += [k for k in range(step, points, step) if k not in order]
    return order


def _ends(
    a: nn.Module, b: nn.Module, alignment: Aligned | Solver | str | None, options: PathOptions
) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Ends of a pair's direct path, if the widths are equal, and of its aligned path."""
    shapes = [{k: v.shape for k, v in tensors_of(model).items()} for model in (a, b)]
    if isinstance(alignment, str | Solver):
        how = (alignment, options.calibration, options.seed, options.kinds)
        alignment = align(a, b, options.example_inputs, *how, chance=False)
    found = [("direct", a, b)] if shapes[0] == shapes[1] else []
    if alignment is not None:
        found.append(("aligned", *in_basis(a, b, alignment)))
    for kind, start, end in found:
        check_matching(start, end)
        yield kind, start, end


def _score(
    a: nn.Module, b: nn.Module, recalibrated: bool, ratio: float, loader: Iterable[Any], options: PathOptions
) -> Score:
    """The score of one point of a path."""
    between = copied(a)
    interpolate_(between, a, b, dict.fromkeys(tensors_of(a), ratio), options.interpolation)
    if recalibrated:
        recalibrate_(between, loader if options.calibration is None else options.calibration)
    return evaluate(between, loader, options.loss)


def _check(models: Sequence[nn.Module], pairs: Sequence[tuple[int, int]], names: Sequence[str], points: int) -> None:
    check_whole("points", points)
    if points < _FEWEST:
        raise ValueError(f"points must be at least 3: both ends and one between. Got {points}.")
    if len(models) < 2 or not pairs:
        raise ValueError(f"models must be at least two, joined by at least one pair. Got {len(models)}.")
    if len(names) != len(models) or len(set(names)) < len(names):
        raise ValueError(f"names must be {len(models)} different ones, one for each network. Got {list(names)}.")
    for i, j in pairs:
        if i == j or not {i, j} <= set(range(len(models))):
            raise ValueError(f"pairs must be positions of two different networks of {len(models)}. Got {(i, j)}.")
