"""Description of a symmetry group: spaces, and how the axes of every tensor are made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .._attributes import Cache
from .._words import counted, near
from ..programs import Vertex
from .explanation import dimension
from .explanation.titles import titles
from .spaces import UNREAD, BatchNormTensors, FixedAxis, Layout, Space

__all__ = ["Description"]

_SHOWN = 6  # names of spaces in an error


@dataclass(frozen=True, repr=False)
class Description:
    """Fields of a ``Symmetry``, and what follows from them alone.

    Attributes:
        spaces: The hidden spaces that the group moves.
        layouts: For every parameter and every buffer that moves, by state-dict name, how its axes are made of spaces.
        fixed: Every parameter axis, or part of one, that stays where it is, and why.
        batch_norms: Normalisation calls whose variance follows ``a^2 (v + eps) - eps``.
        aliases: Tied names to the name under which the shared tensor is described.
        dtype: Lowest floating-point precision seen while the model ran; tolerances follow from it.
        path_only: Whether a number was taken out of an activation, so that only the path that was run is certified.
        notes: What a reader should know, such as the line that read a number.
        unknown_ops: Operations without a rule; everything they touched is fixed.
        caches: Where the model keeps tensors that a run computed; ``act`` leaves them out of the twin.
        features: For every module whose output moves, by tap name, how its axes are made of spaces (at the example's
            shapes). Outputs of which a run says too little are left out.
        gates: The same for every ReLU, by the name that ``iw.gates.gate_patterns`` gives it; not for ``|q|``, whose
            gates follow the signs of units.
        graph: Modules and what joins them, in order of the run, with the spaces of the tensors between them; to draw.
    """

    spaces: tuple[Space, ...]
    layouts: Mapping[str, Layout]
    fixed: tuple[FixedAxis, ...] = ()
    batch_norms: tuple[BatchNormTensors, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    path_only: bool = False
    notes: tuple[str, ...] = ()
    unknown_ops: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    features: Mapping[str, Layout] = field(default_factory=dict)
    gates: Mapping[str, Layout] = field(default_factory=dict)
    graph: tuple[Vertex, ...] = field(default=(), compare=False)

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """What people call each space, such as ``"layer 3: MLP units"``, by its name."""
        return titles(self.spaces, self.layouts)

    @property
    def unread(self) -> tuple[str, ...]:
        """Parameters and buffers that the outputs do not depend on, in the runs that were captured."""
        every = {(f.tensor, f.axis) for f in self.fixed if f.reason == UNREAD}
        return tuple(n for n, lay in self.layouts.items() if all((n, d) in every for d in range(len(lay.axes))))

    @property
    def certified(self) -> str:
        """For which inputs the function is the same, in words."""
        if not self.path_only:
            return "every input of the example's shapes"
        unread = f"; {counted(len(self.unread), 'tensor')} not read there" if self.unread else ""
        return f"inputs that take the path of the example{unread}"

    @property
    def dim(self) -> int:
        """Dimension of the continuous part: scalings, orthogonal and general linear maps, overlaps counted once."""
        return dimension.continuous(self.spaces, self.layouts)

    @property
    def log_size(self) -> float:
        """Natural logarithm of the number of discrete elements: permutations and signs."""
        return dimension.log_discrete(self.spaces, self.layouts)

    def space(self, name: str) -> Space:
        """The space of that name.

        Raises:
            ValueError: If there is none.
        """
        for space in self.spaces:
            if space.name == name:
                return space
        names = [space.name for space in self.spaces]
        shown = f"{', '.join(map(repr, names[:_SHOWN]))}{', ...' if len(names) > _SHOWN else ''}"
        raise ValueError(f"name must be one of the {len(names)} spaces: {shown}. Got {name!r}.{near(name, names)}")
