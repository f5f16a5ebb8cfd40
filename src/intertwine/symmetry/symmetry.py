"""The symmetry group of one architecture: what was found, in words and numbers, and ways to use it.

Model, example and program that a symmetry was found with, for verification and for other tools.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

from torch import Tensor, nn

from .._io.lazy import LazyState
from .._offered import call
from .._result import UNSAVED, Result
from ..programs import Program
from . import action, explanation, tangent, transformation, verification
from .description import Description


class Origin:
    """A model, as long as someone else holds it, and the example that it was read on.

    A symmetry is a description without tensors: it keeps no model alive, and saved or pickled it forgets this.

    Args:
        model: The model.
        example_inputs: The example.
        program: What was captured.
    """

    def __init__(
        self, model: nn.Module | None = None, example_inputs: Any = None, program: Program | None = None
    ) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.example_inputs, self.program = example_inputs, program

    @property
    def model(self) -> nn.Module | None:
        """The model, ``None`` once nobody else holds it."""
        return None if self._model is None else self._model()

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()


@dataclass(frozen=True, repr=False)
class Symmetry(Description, Result):
    """The group of weight-space symmetries that an architecture has, as found by ``symmetries``.

    It holds names, sizes and exponents only, never a tensor of the model, so it is valid for every checkpoint of the
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
        """Number of spaces, dimension and size."""
        return explanation.totals(self)

    def summary(self) -> str:
        """A table of the spaces: size, group, generators, how many tensor axes move, and what restricts them."""
        return explanation.summary(self)

    def explain(self, parameter: str, axis: int = 0) -> str:
        """Why an axis of a parameter moves, and with which space, or why it is fixed."""
        return explanation.explain(self, parameter, axis)

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
        """A copy of ``model`` with the element ``g`` applied: other weights, the same function.

        A state dict is moved tensor by tensor, each when it is asked for.
        """
        return action.act_lazily(self, g, model) if isinstance(model, Mapping) else action.act(self, g, model)

    def act_(self, g: transformation.Transformation, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply ``g`` to the tensors of a state dict, in place."""
        return action.act_(self, g, state_dict)

    def verify(self, model: nn.Module, example_inputs: Any, **options: Any) -> verification.Verification:
        """Verify numerically that every space and kind preserves the function, with negative controls."""
        return verification.verify(self, model, example_inputs, **options)

    def mappings(self, format: str = "llm-compressor", **options: Any) -> Result:
        """What another tool needs of this symmetry, numerically verified; options: ``exchange.mappings``."""
        found: Result = call("mappings", self, format, **options)
        return found

    def tangent(self, state: Mapping[str, Tensor]) -> tangent.Tangent:
        """The directions in weight space along which the function stays, at the weights of a state dict."""
        return tangent.Tangent(self, state)

    def project(self, gradient: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a gradient or an update that is orthogonal to all these directions."""
        return tangent.project(self, gradient, state)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space."""
        return explanation.rows(self)
