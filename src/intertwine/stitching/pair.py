"""Pairs of networks, cut at any tap of both.

What a tap depends on comes from network A, what depends on the tap from network B; that is read off the captured calls,
never off module names. Inside a residual block other values cross the cut besides the tap: the skip connection. The
paper leaves them as A computed them (v2 E.54, v1 E.33), and so does ``skip="a"``; a hook that replaces B's output would
use B's own skip, which is another network, here ``skip="b"``.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from .._evaluation import check_module
from .._examples import both_given
from .._progress import track
from ..features import layers as points_of
from ..features.activations import unwrap
from ..features.batches import device_of, length, repeatable
from ..features.moments import CrossMoments
from ..features.points import Point, choose
from ..programs import Part, Ref, capture_dynamic, flat_inputs
from .closed_form import Moments
from .layer import StitchingLayer
from .stitched import Stitched, TailNorm, Trunk, relate

Skip = Literal["a", "mapped", "b"]


@dataclass(frozen=True)
class Crossing:
    """One value that crosses the cut."""

    c_in: int  # Channels of A
    c_out: int  # Channels of B
    channel_dim: int  # The channel axis, 1 or -1

    def __str__(self) -> str:
        return f"{self.c_in} to {self.c_out} channels along axis {self.channel_dim}"


@dataclass(frozen=True)
class Cut:
    """Two models cut at a tap, ready to be stitched by any number of layers."""

    at: tuple[str, str]  # Layer of A and layer of B
    trunk: Trunk  # ``f_{<=l}``
    tail: Part  # ``f~_{>l}``; every stitched network gets a fork of it
    target: Part  # B up to its tap (and its own skips): the features that direct matching aims at
    tap: Crossing  # Widths and channel axis at the tap, for the layer
    skip: Skip  # What becomes of skip connections
    skips: tuple[Crossing, ...]  # The same for values that cross the cut besides the tap and depend on weights
    notes: tuple[str, ...] = ()  # Caveats for the reader

    @property
    def mapped(self) -> tuple[Crossing, ...]:
        """The values with their own stitching layer: the tap, and with ``skip="mapped"`` the skip connections."""
        return (self.tap, *self.skips) if self.skip == "mapped" else (self.tap,)

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return next(self.tail.buffers()).device

    @property
    def inside_block(self) -> bool:
        """Whether values other than the tap cross the cut, as inside residual blocks: the paper's ``*``."""
        return bool(self.skips)

    @property
    def name(self) -> str:
        """The layer's name; both names if they differ."""
        a, b = self.at
        return a if a == b else f"{a} -> {b}"

    def stitch(
        self, layer: StitchingLayer, skip_layers: Sequence[StitchingLayer] = (), tail_norm: TailNorm = "eval"
    ) -> Stitched:
        """A stitched network with its own tail statistics; trunk and weights are shared.

        With ``skip="mapped"`` there is a layer for each of ``skips``.

        Raises:
            ValueError: If widths or the number of skip layers do not fit.
        """
        wanted = len(self.mapped) - 1
        if len(skip_layers) != wanted:
            raise ValueError(
                f"skip_layers must be {wanted} here (skip={self.skip!r}, {len(self.skips)} values cross beside the "
                f"tap). Got {len(skip_layers)}."
            )
        for one, crossing in zip([layer, *skip_layers], self.mapped):
            found = Crossing(one.c_in, one.c_out, one.channel_dim)
            if found != crossing:
                raise ValueError(f"layer must map {crossing}. Got one for {found}.")
        return Stitched(self.trunk, layer, self.tail.fork(), skip_layers, tail_norm)


At = str | tuple[str, str]


class Pair:
    """Two models, captured once on a batch that both accept, to be cut at any number of layers. Neither is changed.

    ``models`` holds both; ``a`` and ``b`` are the programs of A, whose early layers are used, and of B.

    Examples:
        >>> from intertwine.stitching.layer import Fixed
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> make = lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> a, x = make(), torch.randn(5, 3)
        >>> itself = Pair(a, a, x).cut("1").stitch(Fixed(torch.eye(4)))
        >>> torch.equal(itself(x), a(x))
        True
    """

    def __init__(self, a: nn.Module, b: nn.Module, batch: Any) -> None:
        for name, model in (("a", a), ("b", b)):
            check_module(model, name)
        a, b = unwrap(a), unwrap(b)
        if device_of(a) != device_of(b):
            raise ValueError(f"both models must be on one device. Got {device_of(a)} and {device_of(b)}.")
        for name, model in (("a", a), ("b", b)):
            bad = next((key for key, p in model.named_parameters() if not bool(p.isfinite().all())), None)
            if bad is not None:
                raise ValueError(f"{name} must have finite weights. Got NaN or infinity in {bad!r}.")
        with both_given("a"):
            self.a = capture_dynamic(a, batch, "a")
        with both_given("b"):
            self.b = capture_dynamic(b, batch, "b")
        self.models = a, b
        self._points = tuple(points_of(model, batch) for model in (a, b))

    @property
    def device(self) -> torch.device | None:
        """Device of both models."""
        return device_of(self.models[0])

    @property
    def classes(self) -> int:
        """Number of classes that B tells apart; a ``ValueError`` unless it gives one number for each, per example."""
        shape = self.b.values[self.b.outputs[0].id].shape
        if len(shape) != 2:
            raise ValueError(f"B's (first) output must have shape (N, classes). Got {('N', *shape[1:])}.")
        return int(shape[1])

    @property
    def same_architecture(self) -> bool:
        """Whether both models make the same calls on the same values; widths may differ."""
        ours, theirs = self.a.calls, self.b.calls
        return len(ours) == len(theirs) and all(
            x.op == y.op and x.inputs == y.inputs and x.outputs == y.outputs for x, y in zip(ours, theirs)
        )

    def layers(self) -> tuple[str, ...]:
        """Layers at which the pair can be cut under one name: those of both, on whose value B's output depends."""
        found = []
        for name in (p.name for p in self._points[0]):
            with suppress(ValueError):
                self._checked(name, "a")
                found.append(name)
        return tuple(found)

    def cut(self, at: At, skip: Skip = "a") -> Cut:
        """Cut both models at a layer that both have, or ``(layer of A, layer of B)``; ``#k`` for one call of several.

        Values are cut, not modules: a module that passes its input on unchanged (``nn.Identity`` as a shortcut) has the
        same value as its input, and a cut behind it replaces that value wherever it is read. For values that cross the
        cut besides the tap (skip connections), ``skip="a"`` uses A's unchanged (the paper, E.54), ``"mapped"`` maps
        each by its own layer, and ``"b"`` lets B compute them from the input.

        Raises:
            ValueError: If a layer is unknown, B's output does not depend on it, A's features cannot be laid out as
                B's, or A cannot supply B's skip connections.
        """  # noqa: DOC502 - raised by the checks
        names, (point_a, point_b), (tap_a, tap_b), skips, plain = self._checked(at, skip)
        from_b = (*skips, *plain) if skip == "b" else plain
        trunk = Trunk(
            Part(self.a, None, (tap_a,) if skip == "b" else (tap_a, *skips)),
            Part(self.b, None, from_b) if from_b else None,
            relate(point_a, point_b),
            self.b.values[tap_b.id].dtype,
        )
        return Cut(
            at=names,
            trunk=trunk,
            tail=Part(self.b, (tap_b, *skips, *plain), self.b.outputs[:1]),
            target=Part(self.b, None, (tap_b, *skips)),
            tap=Crossing(point_a.channels, point_b.channels, point_b.channel_dim),
            skip=skip,
            skips=tuple(self._describe(i, point_b, skip) for i in skips),
            notes=tuple(f"{which}: {n}" for which, program in (("A", self.a), ("B", self.b)) for n in program.notes),
        )

    def _checked(
        self, at: At, skip: Skip
    ) -> tuple[tuple[str, str], tuple[Point, Point], tuple[Ref, Ref], tuple[Ref, ...], tuple[Ref, ...]]:
        """Names, points and values of the taps, and what else crosses the cut: with weights, and without."""
        if skip not in ("a", "mapped", "b"):
            raise ValueError(f'skip must be "a", "mapped" or "b". Got {skip!r}.')
        names = (at, at) if isinstance(at, str) else tuple(at)
        if len(names) != 2:
            raise ValueError(f"at must be a layer, or (layer of A, layer of B). Got {at!r}.")
        swapped = names[0] in self.b.taps and names[1] in self.a.taps
        if swapped and (names[0] not in self.a.taps or names[1] not in self.b.taps):
            raise ValueError(
                f"at must be (layer of A, layer of B). Got {names!r}, which is the other way round. "
                f"Use {(names[1], names[0])!r}."
            )
        points = self._point(0, names[0]), self._point(1, names[1])
        taps = self.a.taps[names[0]], self.b.taps[names[1]]
        skips, plain = self._crossing(taps[1], names[1])
        if skips and skip != "b":
            self._check_supply(skips, names, taps, skip)
        relate(*points)
        return (names[0], names[1]), points, taps, skips, plain

    def _point(self, side: int, name: str) -> Point:
        program = (self.a, self.b)[side]
        (point,) = choose(self._points[side], [name], self.models[side])[:1]
        value = program.taps.get(point.name)
        shape = None if value is None else program.values[value.id].shape[1:]
        if value is None or value.id not in program.varying or shape != point.shape:
            raise ValueError(
                f"a layer must give one tensor that depends on the input. Got {name!r} of {'AB'[side]}, whose output "
                f"{'is not followed' if value is None else 'holds several, or a constant'}. Choose a layer inside it."
            )
        return point

    def _crossing(self, tap: Ref, name: str) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
        """The values that B's tail reads besides the tap: those that depend on weights, and those of the input."""
        after = self.b.descendants(tap)
        output = self.b.outputs[0]
        if output != tap and output.id not in after:
            raise ValueError(
                f"B's output must depend on the layer. Got {name!r}, which its (first) output does not: an auxiliary "
                "head, or a layer whose result is not used."
            )
        calls = (self.b.calls[i] for i in self.b.ancestors([output], [tap]))
        tail = (call for call in calls if any(o and o.id in after for o in call.outputs))
        read = dict.fromkeys(ref for call in tail for ref in call.inputs)
        crossing = [r for r in read if r.id in self.b.varying and r.id not in after and r != tap]
        learned = self.b.learned
        return tuple(r for r in crossing if r.id in learned), tuple(r for r in crossing if r.id not in learned)

    def _check_supply(self, skips: Sequence[Ref], names: tuple[str, ...], taps: tuple[Ref, Ref], skip: Skip) -> None:
        """A's skip connections can stand in for B's only in the same place of the same architecture."""
        count = f"{len(skips)} other value{'s' * (len(skips) > 1)} of B cross{'es' * (len(skips) == 1)} the cut"
        if not self.same_architecture or taps[0] != taps[1]:
            raise ValueError(
                f"a layer inside a residual block must be the same layer of the same architecture in A, which supplies "
                f"the skip connection. Got {names[0]!r} of A and {names[1]!r} of B, where {count}. Cut at the end of a "
                'block, or pass skip="b" to let B compute them.'
            )
        for x, y in ((self.a.values[r.id].shape[1:], self.b.values[r.id].shape[1:]) for r in skips):
            if x != y if skip == "a" else len(x) != len(y):
                raise ValueError(
                    f"A's skip connections must have the shapes of B's. Got {x} and {y} at {names[0]!r}. Cut at "
                    'the end of a block, or pass skip="mapped" or skip="b".'
                )

    def _describe(self, value: Ref, tap: Point, skip: Skip) -> Crossing:
        shape = self.b.values[value.id].shape[1:]
        axis = tap.channel_dim if len(shape) == len(tap.shape) else (-1 if len(shape) == 2 else 1)
        ours = shape if skip == "b" else self.a.values[value.id].shape[1:]
        at = 0 if axis == 1 else -1
        return Crossing(ours[at], shape[at], axis)


@torch.no_grad()
def stream_moments(
    pair: Pair, cuts: Sequence[Cut], loader: Iterable[Any], *, progress: bool | None = None
) -> list[tuple[Moments, ...]]:
    """Second moments of A's and B's features at several cuts of a pair, in one pass with one run of each per batch.

    For every cut: those of the tap, then, with ``skip="mapped"``, of each value that crosses it besides the tap. Labels
    are not read.

    Raises:
        ValueError: If the loader is empty, or features are not finite.
    """  # noqa: DOC502 - raised by the moments
    ours, theirs = [cut.trunk.a.outputs for cut in cuts], [cut.target.outputs for cut in cuts]
    read_a, read_b = (
        Part(program, outputs=list(dict.fromkeys(ref for refs in wanted for ref in refs)))
        for program, wanted in ((pair.a, ours), (pair.b, theirs))
    )
    sums = [[CrossMoments(within=True) for _ in cut.mapped] for cut in cuts]
    for batch in track(repeatable(loader), "Reading features", length(loader), progress):
        inputs = flat_inputs(batch, pair.a, pair.device)
        a, b = dict(zip(read_a.outputs, read_a(*inputs))), dict(zip(read_b.outputs, read_b(*inputs)))
        for cut, into, refs_a, refs_b in zip(cuts, sums, ours, theirs):
            tap, *skips = (a[ref] for ref in refs_a)
            for one, crossing, x, ref in zip(into, cut.mapped, (cut.trunk.relation(tap), *skips), refs_b):
                one.add(x, b[ref], crossing.channel_dim)
    return [tuple(Moments.of(one) for one in into) for into in sums]
