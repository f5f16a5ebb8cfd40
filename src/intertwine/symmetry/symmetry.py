"""The symmetry group of one architecture: what was found, in words and numbers, and methods to use it.

Also the model, example and program with which a symmetry was found, for verification and for other tools.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, overload

from torch import Tensor, nn

from .._io.lazy import LazyState
from .._result import UNSAVED, Result, offered
from .._words import columns, counted, near
from ..programs import Program
from . import action, proof, tangent, transformation
from .description import Description
from .spaces import Fixed, Leaf, Space, axis_size, leaves

_WIDE = 100  # characters of a line of prose


class Origin:
    """A weakly held model, the example on which it was captured, and its captured program.

    A symmetry is a description without tensors: it keeps no model alive, and saving or pickling drops its origin.
    """

    def __init__(
        self, model: nn.Module | None = None, example_inputs: Any = None, program: Program | None = None
    ) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.example_inputs, self.program = example_inputs, program

    @property
    def model(self) -> nn.Module | None:
        """The model; ``None`` once nothing else refers to it."""
        return None if self._model is None else self._model()

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()


@dataclass(frozen=True, repr=False)
class Symmetry(Description, Result):
    """The group of weight-space symmetries of an architecture, as found by ``symmetries``.

    It holds only names, sizes and exponents, never a tensor of the model, so it is valid for every checkpoint of the
    architecture.

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

    origin: Origin = field(default=Origin(), compare=False, metadata=UNSAVED)

    @property
    def headline(self) -> str:
        """The number of spaces, the dimension and the size."""
        return (
            f"{counted(len(self.spaces), 'space')}, dimension {self.dim}, log of discrete size {self.log_size:.1f}, "
            f"{counted(len(self.fixed), 'fixed axis')}"
        )

    def summary(self) -> str:
        """A table of the spaces: size, group, generators, how many tensor axes move, and what restricts them."""
        table = ["No hidden space may move; explain(parameter, axis) says why for each axis."]
        if self.spaces:
            short = lambda row: row["space"].removesuffix(f" ({row['name']})")
            found = [[short(r), str(r["size"]), r["group"], str(r["axes"]), r["name"]] for r in self._rows()]
            table = columns([["space", "size", "group", "axes", "name"], *found])
        everywhere = lambda reason: re.sub(r" in [\w.]+$", "", reason)  # without the module in which it was met
        restrictions = Counter(why for space in self.spaces for why in dict.fromkeys(map(everywhere, space.reasons)))
        lines = [f"{why} ({counted(count, 'space')})" for why, count in restrictions.items()]
        lines += [self.headline, f"lowest precision {str(self.dtype).removeprefix('torch.')}"]
        if self.unknown_ops:
            lines.append(f"operations without a rule (what they touch is fixed): {', '.join(self.unknown_ops)}")
        if self.path_only:
            lines.append(f"certified for {self.certified}")
        folded = (part for line in [*lines, *self.notes] for part in wrap(line, _WIDE, subsequent_indent="  "))
        return "\n".join([*table, *folded])

    def explain(self, parameter: str, axis: int = 0) -> str:
        """The reason why an axis of a parameter moves, and with which space, or why it is fixed."""
        name = self.aliases.get(parameter, parameter)
        if name not in self.layouts:
            close = near(parameter, (*self.layouts, *self.aliases))
            raise ValueError(
                f"parameter must name a tensor of real numbers in the state dict. Got {parameter!r}.{close}"
            )
        axes = self.layouts[name].axes
        if not -len(axes) <= axis < len(axes):
            raise ValueError(f"axis must be below {len(axes)} for {parameter}. Got {axis}.")
        axis %= len(axes)
        how = lambda leaf: f"fixed, {leaf.reason}" if isinstance(leaf, Fixed) else _moved(self.space(leaf.space), leaf)
        said = "; ".join(f"{place.strip()} {how(leaf)}".strip() for place, leaf in leaves(axes[axis]))
        tied = f" (tied to {name})" if name != parameter else ""
        return f"{parameter}[{axis}]{tied} (size {axis_size(axes[axis])}): {said}"

    def random(
        self, seed: int = 0, kinds: Collection[str] | None = None, **options: Any
    ) -> transformation.Transformation:
        """A random element; ``kinds`` chooses among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``."""
        return transformation.random(self, seed, kinds, **options)

    def identity(self) -> transformation.Transformation:
        """The element that changes nothing."""
        return transformation.identity(self)

    @overload
    def act(self, g: transformation.Transformation, model: nn.Module) -> nn.Module: ...
    @overload
    def act(self, g: transformation.Transformation, model: Mapping[str, Tensor]) -> LazyState: ...
    def act(self, g: transformation.Transformation, model: nn.Module | Mapping[str, Tensor]) -> Any:
        """A copy of ``model`` with the element ``g`` applied: new weights, the same function.

        A state dict is moved lazily: each tensor when it is asked for.
        """
        return action.act_lazily(self, g, model) if isinstance(model, Mapping) else action.act(self, g, model)

    def act_(self, g: transformation.Transformation, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply ``g`` to the tensors of a state dict, in place."""
        return action.act_(self, g, state_dict)

    def verify(self, model: nn.Module, example_inputs: Any, **options: Any) -> proof.Verification:
        """Verify numerically that every space and kind preserves the function, with negative controls."""
        return proof.verify(self, model, example_inputs, **options)

    def mappings(self, format: str = "llm-compressor", **options: Any) -> Result:
        """The symmetry in the format of another tool, numerically verified; for options see ``exchange.mappings``."""
        found: Result = offered("exchange", "mappings")(self, format, **options)
        return found

    def tangent(self, state: Mapping[str, Tensor]) -> tangent.Tangent:
        """The directions in weight space along which the function does not change, at the weights of a state dict."""
        return tangent.Tangent(self, state)

    def project(self, gradient: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a gradient or an update that is orthogonal to all these directions."""
        return tangent.project(self, gradient, state)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space."""
        members = Counter(leaf.space for layout in self.layouts.values() for leaf in layout.leaves)
        return [
            {
                "space": self.titles[s.name],
                "name": s.name,
                "size": s.size,
                "copies": self.copies(s),
                "group": s.symbol,
                "scales": s.group.scales,
                "signs": s.group.signs,
                "mixes": s.group.mixes,
                "permutes": s.group.permutes,
                "axes": members[s.name],
                "restricted by": "; ".join(s.reasons),
            }
            for s in self.spaces
        ]


def _moved(space: Space, leaf: Leaf) -> str:
    exponents = [f"scale exponents {', '.join(map(str, leaf.scale))}"] if any(leaf.scale) else []
    why = [f"restricted by {'; '.join(space.reasons)}"] if space.reasons else []
    of = f" unit of {', '.join(space.parents)}" if space.parents else ""
    return ", ".join([f"moved by {space.name}: {space.symbol}{of}", *exponents, *why])
