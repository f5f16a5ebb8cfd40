"""Union-find of spaces, whose leaves split into products and sums, or take on an order, as operations require it."""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from .axis_terms import UNIT, Axis, Flat, Ordered, Segments, Slot, inverse, rearranged, segments, slots

Kind = Literal["product", "sum", "order"]  # factors outermost first, consecutive segments, or one in another order


@dataclass
class Node:
    """One space while the engine works."""

    size: int  # Number of units
    same: int | None = None  # The space that it was united with
    kind: Kind | Literal[""] = ""  # How it was split, if it was
    children: tuple[int, ...] = ()  # What it was split into: factors outermost first, or segments in order
    order: tuple[int, ...] = ()  # For an order, which of its units each unit of its child is
    # A parameter axis (state name, axis, path of splits) that carries it
    origin: tuple[str, int, tuple[int, ...]] | None = None
    above: tuple[int, int] | None = None  # The space that it is a piece of, and its place there
    # First reason for each restriction: ``"pinned"``, its units may not be permuted; ``"monomial"``, no linear maps
    # pass, only one nonzero number per unit; ``"orthogonal"``, of all linear maps only the orthogonal ones;
    # ``"turned"``, of these only those of determinant one; ``"scale"`` and ``"sign"``, fewer of these
    lost: dict[str, str] = field(default_factory=dict)
    apart: bool = False  # Whether it must not be merged with a sibling segment
    # The sort that put its units in order, if one did: the order follows from what was sorted
    sorted: int | None = None
    tied: bool = False  # Whether it was united with units in another order

    def why(self, what: str) -> str:
        """The first reason for a restriction; empty where there is none."""
        return self.lost.get(what, "")

    @property
    def pinned(self) -> str:
        """Why its units may not be permuted."""
        return self.why("pinned")


class Pool:
    """All spaces of one search; ``changes`` counts how often the structure changed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.changes = 0
        self.clashes: list[Axis] = []  # What met its own spaces in another order, for the caller to fix

    def new(self, size: int, origin: tuple[str, int, tuple[int, ...]] | None = None) -> int:
        """A new space."""
        self.nodes.append(Node(size, origin=origin))
        return len(self.nodes) - 1

    def find(self, space: int) -> int:
        """The representative of a space."""
        root = space
        while (up := self.nodes[root].same) is not None:
            root = up
        while space != root:
            self.nodes[space].same, space = root, self.nodes[space].same or root
        return root

    def node(self, space: int) -> Node:
        """The representative's record."""
        return self.nodes[self.find(space)]

    def unite(self, a: int, b: int) -> None:
        """Make two unsplit spaces one."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return
        keep, drop = self.nodes[a], self.nodes[b]
        drop.same = a
        if drop.origin is not None and (keep.origin is None or (keep.above is None and drop.above is not None)):
            keep.origin, keep.above = drop.origin, drop.above  # one belongs to the other
        keep.apart |= drop.apart
        keep.tied |= drop.tied or keep.sorted != drop.sorted
        keep.lost = {**drop.lost, **keep.lost}
        self.changes += 1

    def resolve(self, axis: Axis) -> Axis:
        """``axis`` with every split space replaced by its pieces and factors of size one left out.

        What a slot knows of its scales is lost when it splits; a split means another pass, and the last pass has none.
        """
        if self._stands(axis):
            return axis
        found: list = []
        for factor in axis:
            if factor.size == 1:
                continue
            if isinstance(factor, Ordered):
                found += rearranged(segments([self.resolve(p) for p in factor.parts]), factor.order)
            elif isinstance(factor, Segments):
                found += segments([self.resolve(p) for p in factor.parts])
            elif isinstance(factor, Slot):
                found += self._resolve_slot(factor)
            elif found and isinstance(found[-1], Flat) and found[-1].zero == factor.zero:
                found[-1] = Flat(found[-1].size * factor.size, factor.zero)
            else:
                found.append(factor)
        return tuple(found)

    def _stands(self, axis: Axis) -> bool:
        """Whether an axis of spaces that are neither united with others nor split is what it resolves to."""
        nodes = self.nodes
        for factor in axis:
            if type(factor) is not Slot or factor.size == 1:
                return len(axis) == 1 and type(factor) is Flat and factor.size != 1
            node = nodes[factor.space]
            if node.same is not None or node.kind:
                return False
        return True

    def restrict(self, axis: Axis, what: str, why: str) -> None:
        """Set a restriction on every space of an axis, keeping the first reason."""
        for slot in slots(self.resolve(axis)):
            self.say(slot.space, what, why)

    def say(self, space: int, what: str, why: str) -> None:
        """Remember the first reason why a space lost ``what``."""
        self.node(space).lost.setdefault(what, why)

    def forget_restrictions(self) -> None:
        """Before another pass: keep the structure, forget what operations said."""
        for node in self.nodes:
            node.lost, node.apart = {}, False

    def _resolve_slot(self, slot: Slot) -> Axis:
        root = self.find(slot.space)
        node = self.nodes[root]
        if not node.kind:
            return (slot if root == slot.space else Slot(root, slot.size, slot.expr),)
        pieces = [(Slot(c, self.nodes[c].size, UNIT),) for c in node.children]
        if node.kind == "product":
            return self.resolve(tuple(s for piece in pieces for s in piece))
        if node.kind == "order":
            return rearranged(self.resolve(pieces[0]), inverse(node.order))
        return segments([self.resolve(piece) for piece in pieces])

    def expand(self, space: int, kind: Kind, sizes: tuple[int, ...]) -> None:
        """Split a space into factors, consecutive segments, or one with its units in another order (``sizes``)."""
        root = self.find(space)
        node = self.nodes[root]
        if kind == "order":
            node.order, sizes = sizes, (len({*sizes}),)
        if node.size != (prod(sizes) if kind == "product" else sum(sizes)):
            raise ValueError(f"pieces must make up the space of size {node.size}. Got a {kind} of {sizes}.")
        children = []
        for i, size in enumerate(sizes):
            origin = None if node.origin is None else (*node.origin[:2], (*node.origin[2], i))
            child = self.new(size, origin)
            record = self.nodes[child]
            record.above, record.lost = (root, i), dict(node.lost)
            children.append(child)
        node.kind, node.children = kind, tuple(children)
        self.changes += 1
