"""Model, example and program that a symmetry was found with, for verification and for other tools."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from ..programs import Program


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
