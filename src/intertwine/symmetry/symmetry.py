"""The symmetry group of one architecture: what was found, in words and numbers, and ways to use it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._attributes import Cache
from .._result import Result
from .._words import counted
from . import dimension, explain
from .spaces import UNREAD, BatchNormTensors, FixedAxis, Layout, Space

if TYPE_CHECKING:
    import pandas as pd

    from .transformation import Transformation
    from .verification.verify import Verification

__all__ = ["Symmetry"]


@dataclass(frozen=True, repr=False)
class Symmetry(Result):
    """The group of weight-space symmetries that an architecture has, as found by ``symmetries``.

    It holds names, sizes and exponents only, never a tensor of the model, so it is valid for every checkpoint of the
    architecture.

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
        front: How the program was captured, ``"record"`` or ``"export"``.
        caches: Where the model keeps tensors that a run computed; ``act`` leaves them out of the twin.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> from intertwine.symmetry import symmetries
        >>> sym = symmetries(model, torch.zeros(2, 4))
        >>> [(s.name, s.size, s.group.scales) for s in sym.spaces], sym.dim
        ([('0.weight[0]', 8, 1)], 8)
        >>> sym.explain("0.weight", axis=1)
        '0.weight[1] (size 4): fixed, input'
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
    front: str = "record"
    caches: tuple[Cache, ...] = ()

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
        raise ValueError(f"name must be one of the spaces {[s.name for s in self.spaces]}. Got {name!r}.")

    @property
    def headline(self) -> str:
        """Number of spaces, dimension and size."""
        return explain.totals(self)

    def summary(self) -> str:
        """A table of the spaces: size, group, generators, how many tensor axes move, and what restricts them."""
        return explain.summary(self)

    def explain(self, parameter: str, axis: int = 0) -> str:
        """Why an axis of a parameter moves, and with which space, or why it is fixed."""
        return explain.explain(self, parameter, axis)

    def random(self, seed: int = 0, kinds: Collection[str] | None = None, **options: Any) -> Transformation:
        """A random element; ``kinds`` chooses among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``."""
        from . import transformation

        return transformation.random(self, seed, kinds, **options)

    def identity(self) -> Transformation:
        """The element that changes nothing."""
        from . import transformation

        return transformation.identity(self)

    def act(self, g: Transformation, model: nn.Module) -> nn.Module:
        """A copy of ``model`` with the element ``g`` applied: other weights, the same function."""
        from . import action

        return action.act(self, g, model)

    def act_(self, g: Transformation, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply ``g`` to the tensors of a state dict, in place."""
        from . import action

        return action.act_(self, g, state_dict)

    def verify(self, model: nn.Module, inputs: Any, **options: Any) -> Verification:
        """Check on numbers, for every space and kind, that the function is preserved, with a control that must fail."""
        from .verification.verify import verify

        return verify(self, model, inputs, **options)

    def refine(self, model: nn.Module, inputs: Any, **options: Any) -> Symmetry:
        """The same symmetry without what fails ``verify`` on these inputs; ``notes`` says what was dropped."""
        from .verification.refine import refine

        return refine(self, model, inputs, **options)

    def to_frame(self) -> pd.DataFrame:
        """One row per space."""
        import pandas as pd

        return pd.DataFrame(explain.rows(self))
