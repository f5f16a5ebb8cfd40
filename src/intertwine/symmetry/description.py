"""Description of a symmetry group: its spaces, how every tensor axis is composed of them, and the group's size.

A generator on a space with parents is a function on a product of finite sets: the units of the space and of the
parents. Such functions split into one component for each subset ``U`` of the factors, of size ``prod_{u in U} (n_u -
1)``. The action on tensors respects the split, so the number of independent directions, overlaps counted once, is

    sum_U  rank(M_U) * prod_{u in U} (n_u - 1)

where ``M_U`` has a column for every generator whose factors include ``U`` and a row for every place in every tensor.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from math import log, prod

import torch

from .._attributes import Cache
from .._words import counted, near
from ..groups import Permutation
from ..programs import Vertex
from .blocks import blocks, parent_dims
from .detection.equations import BinarySpan, RationalEquations, bits_of
from .spaces import UNREAD, BatchNormTensors, FixedAxis, Layout, Leaf, Space

__all__ = ["Description"]

_SHOWN = 6  # names of spaces in an error


@dataclass(frozen=True, repr=False)
class Description:
    """Fields of a ``Symmetry``, and everything that follows from these fields alone."""

    spaces: tuple[Space, ...]  # The hidden spaces that the group moves
    # How the axes of every parameter and every moving buffer are composed of spaces, by state-dict name
    layouts: Mapping[str, Layout]
    fixed: tuple[FixedAxis, ...] = ()  # Every parameter axis, or part of one, that stays fixed, and why
    batch_norms: tuple[BatchNormTensors, ...] = ()  # Normalisation calls whose variance follows ``a^2 (v + eps) - eps``
    # Tied names to the name under which the shared tensor is described
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Lowest floating-point precision seen while the model ran; tolerances follow from it
    dtype: torch.dtype = torch.float64
    # Whether the code read a number out of an activation, so that only the path that was run is certified
    path_only: bool = False
    notes: tuple[str, ...] = ()  # Remarks for the reader, such as the line that read a number
    unknown_ops: tuple[str, ...] = ()  # Operations without a rule; everything they touched is fixed
    # Where the model caches tensors that a run computed; ``act`` leaves them out of the twin
    caches: tuple[Cache, ...] = ()
    # How the axes of every module output that moves are composed of spaces, by tap name (at the example's shapes).
    # Outputs about which a run reveals too little are left out
    features: Mapping[str, Layout] = field(default_factory=dict)
    # The same for every ReLU, by the name that ``iw.gates.gate_patterns`` gives it; except ``|q|``, whose gates depend
    # on the signs of units
    gates: Mapping[str, Layout] = field(default_factory=dict)
    # Modules and their connections, in running order, with the spaces of the tensors between them; for drawing
    graph: tuple[Vertex, ...] = field(default=(), compare=False)

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Readable title of each space, such as ``"layer 3: MLP units"``, by name; equal titles end with the name."""
        heads = (space for space in self.spaces if holds_heads(space, self.layouts))
        shared = {parent for space in heads for parent in space.parents}
        said = {}
        for space in self.spaces:
            shapes = {name: len(self.layouts[name].axes) for name in self.carriers[space.name]}
            title = _title(space, shapes, space.name in self.outer)
            if shared & {space.name, *space.parents}:
                title = title.replace("attention heads", "key/value heads with their query heads")
                title = title.replace("each head:", "each key/value head:")
            said[space.name] = title
        counts = Counter(said.values())
        return {name: f"{title} ({name})" if counts[title] > 1 else title for name, title in said.items()}

    @cached_property
    def carriers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the tensors that carry each space."""
        return {s.name: tuple(n for n, layout in self.layouts.items() if s.name in layout.spaces) for s in self.spaces}

    @cached_property
    def outer(self) -> frozenset[str]:
        """Names of the spaces that contain other spaces."""
        return frozenset(parent for space in self.spaces for parent in space.parents)

    @cached_property
    def mixing(self) -> frozenset[str]:
        """Names of the spaces whose units are mixed by matrices."""
        return frozenset(space.name for space in self.spaces if space.group.mixes)

    @cached_property
    def statistics(self) -> frozenset[str]:
        """Names of the stored means and variances of batch norms."""
        return frozenset(name for norm in self.batch_norms for name in (norm.mean, norm.variance))

    @property
    def unread(self) -> tuple[str, ...]:
        """Parameters and buffers that the outputs do not depend on, in the runs that were captured."""
        every = {(f.tensor, f.axis) for f in self.fixed if f.reason == UNREAD}
        return tuple(n for n, lay in self.layouts.items() if all((n, d) in every for d in range(len(lay.axes))))

    @property
    def certified(self) -> str:
        """The inputs on which the function is certified to be the same, in words."""
        if not self.path_only:
            return "every input of the example's shapes"
        unread = f"; {counted(len(self.unread), 'tensor')} not read there" if self.unread else ""
        return f"inputs that take the path of the example{unread}"

    @property
    def dim(self) -> int:
        """Dimension of the continuous part: scalings, orthogonal and general linear maps, overlaps counted once."""
        linear = [(s, s.group.linear) for s in self.spaces if s.group.linear is not None]
        # the diagonal of a general matrix overlaps with the scales, and is counted there
        mixing = sum((m.dim - m.n * s.group.is_general) * self.copies(s) for s, m in linear)

        def exponents(space: Space, leaf: Leaf) -> list[Fraction]:
            diagonal = [Fraction(leaf.variance)] if space.group.is_general else []
            return [*leaf.scale, *diagonal]

        return mixing + self._independent(exponents, lambda rows: RationalEquations(rows).rank)

    @property
    def log_size(self) -> float:
        """Natural logarithm of the number of permutations and independent signs outside O(n) and GL(n).

        Half turns, which connect the two signs of a rotary pair, are not counted.
        """
        monomial = [s for s in self.spaces if s.group.permutes and not s.group.mixes]
        permutations = sum(Permutation(s.size).log_components * self.copies(s) for s in monomial)

        def half_turns(space: Space, leaf: Leaf) -> list[Fraction]:
            return [Fraction(1)] if space.group.turns else []

        def exponents(space: Space, leaf: Leaf) -> list[Fraction]:
            return half_turns(space, leaf) if space.group.mixes else [Fraction(e % 2) for e in leaf.sign]

        def rank(rows: list[dict]) -> int:
            place = {column: k for k, column in enumerate(dict.fromkeys(column for row in rows for column in row))}
            return BinarySpan(bits_of(place[column] for column, c in row.items() if c % 2) for row in rows).rank

        signs, turned = (self._independent(given, rank) for given in (exponents, half_turns))
        return permutations + log(2) * (signs - turned)

    def _independent(
        self, exponents: Callable[[Space, Leaf], list[Fraction]], rank: Callable[[list[dict]], int]
    ) -> int:
        matrices: dict[frozenset[str], dict[tuple, dict]] = {}
        for tensor, layout in self.layouts.items():
            for b, block in enumerate(blocks(layout)):
                for slot, leaf in block.carried:
                    space = self.space(leaf.space)
                    place = dict(zip((*space.parents, space.name), parent_dims(space, slot, block.spaces)))
                    factors = tuple(place)[: -1 if space.group.turns else None]  # a half turn is one for both units
                    for k, e in enumerate(exponents(space, leaf)):
                        for chosen in chain.from_iterable(combinations(factors, r) for r in range(len(factors) + 1)):
                            at = tuple(sorted(place[name] for name in chosen))
                            row = matrices.setdefault(frozenset(chosen), {}).setdefault((tensor, b, at), {})
                            column = (space.name, k)
                            row[column] = row.get(column, Fraction(0)) + e
        ranks = ((chosen, rank(list(rows.values()))) for chosen, rows in matrices.items())
        return sum(found * prod(self.space(u).size - 1 for u in chosen) for chosen, found in ranks)

    def unit_shape(self, space: Space) -> torch.Size:
        """``(p..., n)``: sizes of the parents of a space, then its own size."""
        return torch.Size([*(self.space(parent).size for parent in space.parents), space.size])

    def copies(self, space: Space) -> int:
        """Number of copies of a space, one for each unit of its parents."""
        return prod(self.unit_shape(space)[:-1])

    @cached_property
    def _by_name(self) -> Mapping[str, Space]:
        return {space.name: space for space in self.spaces}

    def space(self, name: str) -> Space:
        """The space of that name.

        Raises:
            ValueError: If there is none.
        """
        if name in self._by_name:
            return self._by_name[name]
        names = [*self._by_name]
        shown = f"{', '.join(map(repr, names[:_SHOWN]))}{', ...' if len(names) > _SHOWN else ''}"
        raise ValueError(f"name must be one of the {len(names)} spaces: {shown}. Got {name!r}.{near(name, names)}")


_LISTS = ("h", "layer", "layers", "block", "blocks", "resblocks")  # of a model's repeated blocks
_STACKS = ("encoder", "decoder")
_PERCEPTRONS = ("mlp", "ffn", "feed_forward", "feedforward", "intermediate")
_CONVOLUTION = 3  # fewest axes of a convolution's weight
_NAMED = 3  # modules that a title lists


def holds_heads(space: Space, layouts: Mapping[str, Layout]) -> bool:
    """Whether units of a nested space are themselves products with another axis, as query heads of shared keys."""
    if not space.parents or space.group.scales or not space.group.permutes:
        return False
    for block in (block for layout in layouts.values() for block in blocks(layout)):
        dim = next((d for d, leaf in block.carried if leaf.space == space.name), len(block.leaves))
        if dim + 1 < len(block.leaves) and len(block.rows) < len(block.leaves) - 1:
            return True
    return False


def _title(space: Space, shapes: Mapping[str, int], is_parent: bool) -> str:
    if not shapes:
        return space.name
    if is_stream(shapes):
        return f"residual stream from {space.name.partition('[')[0].rpartition('.')[0] or space.name}"
    modules = _modules(shapes)
    block = next(filter(None, map(repeated_block, modules)), "")
    where = f"{_words(block)}: " if block else ""
    inner = [module.removeprefix(f"{block}.") for module in modules if repeated_block(module) == block]
    attention = any("att" in module.lower() for module in inner)
    names = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in inner[:_NAMED]))
    copies = "head" if attention else "expert" if any("expert" in module.lower() for module in inner) else "group"
    if any(restriction.kind == "positions" for restriction in space.restrictions):
        return f"{where}{'turns of ' if space.group.mixes else ''}rotary pairs"
    if space.parents:
        return f"{where}within each {copies}: {names}"
    if is_parent:
        return f"{where}{'attention heads' if attention else 'experts' if copies == 'expert' else f'groups of {names}'}"
    if any(part in _PERCEPTRONS for part in inner[0].split(".")):
        return f"{where}MLP units"
    kind = "channels" if max(shapes.values()) >= _CONVOLUTION else "units"
    return f"{where}{kind} of {inner[0]}"


def _modules(tensors: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in tensors))


def is_stream(tensors: Iterable[str]) -> bool:
    """Whether a space with these tensors runs through several blocks; a chain only links one block to the next."""
    held = [(repeated_block(module), module) for module in _modules(tensors)]
    blocks = {block for block, _ in held if block}
    return len(blocks) > 1 and len(blocks) + sum(not block for block, _ in held) > 2


def repeated_block(module: str) -> str:
    """The repeated block that contains a module, such as ``"model.layers.3"``; empty if there is none."""
    found = re.match(r"(?:[^.]+\.)*?\d+(?=\.)(?:\.blocks?\.\d+(?=\.))?", module)
    return found.group() if found else ""


def _words(block: str) -> str:
    """Readable name of a block: ``"layer 3"``, ``"decoder layer 3"``, ``"layer1.0"``."""
    *path, number = block.split(".")
    stack = "".join(f"{part} " for part in path if part in _STACKS)
    if path and path[-1] in _LISTS:
        nested = re.search(r"(\w+)\.(\d+)\.blocks?$", ".".join(path))
        stage = f"stage {nested[2]}, " if nested else ""
        return f"{stack}{stage}{'block' if nested else 'layer'} {number}"
    return ".".join([*path[-1:], number])
