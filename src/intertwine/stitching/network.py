"""The stitched network ``S(f, f~, l, phi) = f~_{>l} . phi . f_{<=l}`` (paper 1, Def. 4.1), at any tap of two models.

What a tap depends on is network A's, what depends on the tap is network B's; that is read off the captured calls, never
off module names. Inside a residual block other values cross the cut beside the tap: the skip connection. The paper
leaves them as A computed them (v2 E.54, v1 E.33), and so does ``skip="a"``; a hook that replaces B's output would use
B's own skip, which is another network and here ``skip="b"``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..features import layers as points_of
from ..features.batches import device_of
from ..features.points import Point, choose
from ..programs import Part, Ref, capture_dynamic
from .layer import StitchingLayer

__all__ = ["At", "Crossing", "Cut", "Features", "Pair", "Relation", "Skip", "Stitched", "Trunk", "relate"]

Skip = Literal["a", "mapped", "b"]
At = str | tuple[str, str]


@dataclass(frozen=True)
class Relation:
    """How A's features at the tap are laid out as B's, before any map of channels.

    Attributes:
        kind: ``"same"``, ``"resize"`` (maps of another size, interpolated linearly), ``"to_tokens"`` or
            ``"to_maps"`` (the same positions in another order of axes).
        positions: Sizes of B's axes beside batch and channels.
        channel_dim: B's channel axis, 1 or -1.
    """

    kind: Literal["same", "resize", "to_tokens", "to_maps"]
    positions: tuple[int, ...]
    channel_dim: int

    def __call__(self, x: Tensor) -> Tensor:
        """Lay out features of A as B's."""
        if self.kind == "resize":
            mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(self.positions)]
            smaller = len(self.positions) == 2 and any(s < t for s, t in zip(self.positions, x.shape[2:]))
            return F.interpolate(x, self.positions, mode=mode, align_corners=False, antialias=smaller)
        if self.kind == "to_tokens":
            return x.flatten(2).transpose(1, 2)
        if self.kind == "to_maps":
            return x.transpose(1, 2).unflatten(2, self.positions)
        return x


class Trunk(nn.Module):
    """``f_{<=l}``, frozen: inputs to everything that crosses the cut, the tap first. Always in evaluation mode."""

    def __init__(self, a: Part, b: Part | None, relation: Relation, dtype: torch.dtype) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.relation = relation
        self._dtype = dtype
        self.train(False)

    def train(self, mode: bool = True) -> Trunk:
        """Stay in evaluation mode: a frozen network's batch norms must not drift."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run what lies before the cut.

        Args:
            *inputs: The models' input tensors, for both models alike.

        Returns:
            The tap's value, laid out as B's, then the skip connections, then what B computes from the input alone.
        """
        tap, *skips = self.a(*inputs)
        others = () if self.b is None else self.b(*inputs)
        return self.relation(tap).to(self._dtype), *(s.to(self._dtype) for s in skips), *others


class Stitched(nn.Module):
    """A stitched network: trunk of A, stitching layer, tail of B.

    Trunk and tail hold copies of the models' weights, shared by all networks of a pair and never written; the tail's
    batch-norm statistics are its own. Only the layer has parameters. ``train()`` puts the layer in training mode, the
    tail as ``tail_norm`` says, the trunk never.

    Args:
        trunk: May be shared by many stitched networks.
        layer: Maps the tap's channels.
        tail: Of B.
        skip_layers: Maps of the skip connections that cross the cut, in order; empty leaves them as they are.
        tail_norm: Batch norm of the tail while the layer is trained: ``"eval"`` uses B's statistics, ``"train"`` the
            batch's and updates the running ones (the reference code's way).

    Attributes:
        trunk: See above.
        layer: See above.
        tail: See above.
        skip_layers: See above.
    """

    def __init__(
        self,
        trunk: Trunk,
        layer: StitchingLayer,
        tail: Part,
        skip_layers: Sequence[StitchingLayer] = (),
        tail_norm: Literal["eval", "train"] = "eval",
    ) -> None:
        super().__init__()
        if tail_norm not in ("eval", "train"):
            raise ValueError(f'tail_norm must be "eval" or "train". Got {tail_norm!r}.')
        self.trunk, self.layer, self.tail = trunk, layer, tail
        self.skip_layers = nn.ModuleList(skip_layers)
        self.tail_norm = tail_norm
        self.train(False)

    def train(self, mode: bool = True) -> Stitched:
        """Training mode for the layers; the tail's batch norms follow ``tail_norm``."""
        super().train(mode)
        self.tail.train(mode and self.tail_norm == "train")
        return self

    def forward(self, *inputs: Tensor) -> Tensor:
        """The stitched network's output for input tensors."""
        return self.finish(self.trunk(*inputs))

    def finish(self, crossing: Sequence[Tensor]) -> Tensor:
        """Layer and tail: what a trunk computed once serves any number of stitched networks.

        Args:
            crossing: What ``trunk`` returned.

        Returns:
            The output.
        """
        tap, *others = crossing
        for i, skip_layer in enumerate(self.skip_layers):
            others[i] = skip_layer(others[i])
        return self.tail(self.layer(tap), *others)[0]

    def evaluated(self) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
        """The maps of everything that crosses the cut as they are evaluated, found once for a whole pass over data.

        Returns:
            From what ``trunk`` returned to what ``tail`` reads.
        """
        layer = self.layer.fixed()
        skip_layers = [one.fixed() for one in cast("list[StitchingLayer]", list(self.skip_layers))]

        def mapped(crossing: Sequence[Tensor]) -> tuple[Tensor, ...]:
            tap, *others = crossing
            return layer(tap), *(f(x) for f, x in zip(skip_layers, others)), *others[len(skip_layers) :]

        return mapped

    def trainable(self) -> list[nn.Parameter]:
        """Parameters of the stitching layers."""
        return [*self.layer.parameters(), *self.skip_layers.parameters()]


@dataclass(frozen=True)
class Crossing:
    """One value that crosses the cut.

    Attributes:
        c_in: Channels of A.
        c_out: Channels of B.
        channel_dim: The channel axis, 1 or -1.
    """

    c_in: int
    c_out: int
    channel_dim: int

    def __str__(self) -> str:
        return f"{self.c_in} to {self.c_out} channels along axis {self.channel_dim}"


@dataclass(frozen=True)
class Cut:
    """Two models cut at a tap, ready to be stitched by any number of layers.

    Attributes:
        at: Layer of A and layer of B.
        trunk: ``f_{<=l}``.
        tail: ``f~_{>l}``; every stitched network gets a fork of it.
        target: B up to its tap (and its own skips): the features that a direct matching aims at.
        tap: Widths and channel axis there, for the layer.
        skip: What becomes of skip connections.
        skips: The same for the values that cross the cut beside the tap and depend on weights.
        shape_a: Features of one example of A at the tap.
        shape_b: Of B.
        notes: What a reader should know.
    """

    at: tuple[str, str]
    trunk: Trunk
    tail: Part
    target: Part
    tap: Crossing
    skip: Skip
    skips: tuple[Crossing, ...]
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def mapped(self) -> tuple[Crossing, ...]:
        """What a stitching layer of its own maps: the tap, and with ``skip="mapped"`` the skip connections."""
        return (self.tap, *self.skips) if self.skip == "mapped" else (self.tap,)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.tail.buffers()).device

    @property
    def inside_block(self) -> bool:
        """Whether other values than the tap cross the cut, as inside residual blocks: the paper's ``*``."""
        return bool(self.skips)

    @property
    def name(self) -> str:
        """The layer's name, both where they differ."""
        a, b = self.at
        return a if a == b else f"{a} -> {b}"

    def stitch(
        self,
        layer: StitchingLayer,
        skip_layers: Sequence[StitchingLayer] = (),
        tail_norm: Literal["eval", "train"] = "eval",
    ) -> Stitched:
        """A stitched network with its own tail statistics; trunk and weights are shared.

        Args:
            layer: For the widths and the channel axis of ``tap``.
            skip_layers: With ``skip="mapped"`` one for each of ``skips``.
            tail_norm: See :class:`Stitched`.

        Returns:
            The network, in evaluation mode.

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


class Features(nn.Module):
    """Values of A and of B at several cuts, from one run of each model; see :meth:`Pair.features`."""

    def __init__(self, a: Part, b: Part, cuts: tuple[Cut, ...]) -> None:
        super().__init__()
        self.a, self.b, self._cuts = a, b, cuts

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Run both models as far as needed."""
        found_a = dict(zip(self.a.outputs, self.a(*inputs)))
        found_b = dict(zip(self.b.outputs, self.b(*inputs)))
        pairs = []
        for cut in self._cuts:
            tap, *skips = (found_a[i] for i in cut.trunk.a.outputs)
            pairs.append(((cut.trunk.relation(tap), *skips), tuple(found_b[i] for i in cut.target.outputs)))
        return pairs


class Pair:
    """Two models, captured once, to be cut at any number of layers. Neither is changed.

    Args:
        a: Network A, whose early layers are used.
        b: Network B, whose late layers are used.
        batch: Inputs that both take: a tensor, a tuple ``(inputs, labels, ...)`` or a dict.

    Attributes:
        models: A and B.
        a: A's program.
        b: B's program.

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
            if not isinstance(model, nn.Module):
                raise TypeError(f"{name} must be a torch.nn.Module. Got {type(model).__name__}.")
        if device_of(a) != device_of(b):
            raise ValueError(f"both models must be on one device. Got {device_of(a)} and {device_of(b)}.")
        for name, model in (("a", a), ("b", b)):
            bad = next((key for key, p in model.named_parameters() if not bool(p.isfinite().all())), None)
            if bad is not None:
                raise ValueError(f"{name} must have finite weights. Got NaN or infinity in {bad!r}.")
        self.a, self.b = capture_dynamic(a, batch, "a"), capture_dynamic(b, batch, "b")
        self.models = a, b
        self._points = tuple(points_of(model, batch) for model in (a, b))

    @property
    def device(self) -> torch.device | None:
        """Where both models are."""
        return device_of(self.models[0])

    @property
    def classes(self) -> int:
        """Number of classes that B tells apart.

        Raises:
            ValueError: If its output is not one number for each example and class.
        """
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

    def features(self, cuts: Sequence[Cut]) -> Features:
        """What crosses the cuts in A, and what B has in its place, for all cuts in one pass.

        Args:
            cuts: Made by this pair.

        Returns:
            A module from inputs to a list with, for each cut, the values of A and those of B.
        """
        of_a = list(dict.fromkeys(i for cut in cuts for i in cut.trunk.a.outputs))
        of_b = list(dict.fromkeys(i for cut in cuts for i in cut.target.outputs))
        return Features(Part(self.a, None, of_a), Part(self.b, None, of_b), tuple(cuts))

    def layers(self) -> tuple[str, ...]:
        """Layers at which the pair can be cut under one name: those of both, whose value B's output depends on."""
        return tuple(p.name for p in self._points[0] if self._usable(p.name))

    def cut(self, at: At, skip: Skip = "a") -> Cut:
        """Cut both models.

        Values are cut, not modules: one that hands its input on unchanged (``nn.Identity`` as a shortcut) has the same
        value as what it was given, and a cut behind it replaces that value wherever it is read.

        Args:
            at: A layer that both have, or ``(layer of A, layer of B)``. Modules that run several times need ``#k``.
            skip: Values that cross the cut beside the tap (skip connections): ``"a"`` uses A's as they are (the paper,
                E.54), ``"mapped"`` maps each by a layer of its own, ``"b"`` lets B compute them from the input.

        Returns:
            The cut.

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
            shape_a=point_a.shape,
            shape_b=point_b.shape,
            notes=tuple(f"{which}: {n}" for which, program in (("A", self.a), ("B", self.b)) for n in program.notes),
        )

    def _checked(
        self, at: At, skip: Skip
    ) -> tuple[tuple[str, str], tuple[Point, Point], tuple[Ref, Ref], tuple[Ref, ...], tuple[Ref, ...]]:
        """Names, points and values of the taps, and what else crosses the cut: with weights, and without.

        Raises:
            ValueError: If they cannot be cut there.
        """
        if skip not in ("a", "mapped", "b"):
            raise ValueError(f'skip must be "a", "mapped" or "b". Got {skip!r}.')
        names = (at, at) if isinstance(at, str) else tuple(at)
        if len(names) != 2:
            raise ValueError(f"at must be a layer, or (layer of A, layer of B). Got {at!r}.")
        self._check_order(names)
        points = self._point(0, names[0]), self._point(1, names[1])
        taps = self.a.taps[names[0]], self.b.taps[names[1]]
        skips, plain = self._crossing(taps[1], names[1])
        if skips and skip != "b":
            self._check_supply(skips, names, taps, skip)
        relate(*points)
        return (names[0], names[1]), points, taps, skips, plain

    def _usable(self, name: str) -> bool:
        """Whether a cut under this name in both models works."""
        try:
            self._checked(name, "a")
        except ValueError:
            return False
        return True

    def _check_order(self, names: tuple[str, ...]) -> None:
        taps_a, taps_b = self.a.taps, self.b.taps
        swapped = names[0] in taps_b and names[1] in taps_a
        if swapped and (names[0] not in taps_a or names[1] not in taps_b):
            raise ValueError(
                f"at must be (layer of A, layer of B). Got {names!r}, which is the other way round. "
                f"Use {(names[1], names[0])!r}."
            )

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
        """What B's tail reads beside the tap: what depends on weights, and what the input alone determines.

        Raises:
            ValueError: If the output does not depend on the layer.
        """
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
        """A's skip connections can stand in for B's only in the same place of the same architecture.

        Raises:
            ValueError: If it is another one, or shapes differ and nothing maps them.
        """
        count = f"{len(skips)} other value{'s' * (len(skips) > 1)} of B cross{'es' * (len(skips) == 1)} the cut"
        if not self.same_architecture or taps[0] != taps[1]:
            raise ValueError(
                f"a layer inside a residual block must be the same layer of the same architecture in A, which supplies "
                f"the skip connection. Got {names[0]!r} of A and {names[1]!r} of B, where {count}. Cut at the end of a "
                'block, or pass skip="b" to let B compute them.'
            )
        shapes = [(self.a.values[r.id].shape[1:], self.b.values[r.id].shape[1:]) for r in skips]
        bad = next(((x, y) for x, y in shapes if (x != y if skip == "a" else len(x) != len(y))), None)
        if bad is not None:
            raise ValueError(
                f"A's skip connections must have the shapes of B's. Got {bad[0]} and {bad[1]} at {names[0]!r}. Cut at "
                'the end of a block, or pass skip="mapped" or skip="b".'
            )

    def _describe(self, value: Ref, tap: Point, skip: Skip) -> Crossing:
        shape = self.b.values[value.id].shape[1:]
        axis = tap.channel_dim if len(shape) == len(tap.shape) else (-1 if len(shape) == 2 else 1)
        ours = shape if skip == "b" else self.a.values[value.id].shape[1:]
        at = 0 if axis == 1 else -1
        return Crossing(ours[at], shape[at], axis)


def relate(a: Point, b: Point) -> Relation:
    """How features at a point of A are laid out as those at a point of B.

    Maps of other sizes are interpolated; maps ``(N, C, H, W)`` and tokens ``(N, H W, C)`` are the same positions.

    Args:
        a: A point of A.
        b: A point of B.

    Returns:
        The relation.

    Raises:
        ValueError: If they cannot be related without inventing positions.
    """
    tokens_a, tokens_b = (len(p.shape) == 2 and p.channel_dim == -1 for p in (a, b))
    space_a, space_b = (p.shape[:-1] if p.channel_dim == -1 else p.shape[1:] for p in (a, b))
    if a.channel_dim == b.channel_dim and space_a == space_b:
        return Relation("same", space_b, b.channel_dim)
    if a.channel_dim == b.channel_dim == 1 and len(space_a) == len(space_b) >= 1:
        return Relation("resize", space_b, 1)
    if tokens_b and a.channel_dim == 1 and len(space_a) >= 1 and _product(space_a) == space_b[0]:
        return Relation("to_tokens", space_b, -1)
    if tokens_a and b.channel_dim == 1 and len(space_b) >= 1 and _product(space_b) == space_a[0]:
        return Relation("to_maps", space_b, 1)
    raise ValueError(
        f"features of A must be laid out like B's: vectors with vectors, maps with maps of any size, tokens with as "
        f"many tokens or positions. Got {a.shape} at {a.name!r} of A and {b.shape} at {b.name!r} of B. Choose layers "
        "before, or after, both have pooled."
    )


def _product(sizes: Sequence[int]) -> int:
    return int(torch.Size(sizes).numel())
