"""Running a private copy of a model with other tensors: what verification and its negative controls stand on."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...testing import relative_error
from ..action import rewritable, tensors_of
from ..description import Description
from .float64 import in_float64


class Probe:
    """A copy of a model, in float64 where it runs in float64, whose tensors can be swapped for one run.

    Args:
        sym: The symmetry of the model's architecture.
        model: The model. It is left as it is.
        inputs: Example inputs.
        randomise: Replace constant parameters (zero biases, unit gains) and batch-norm statistics of the copy by
            random values first: equal entries would hide mistakes.

    Attributes:
        tensors: The live tensors of the copy.
        dtype: Lowest floating-point precision seen while the copy ran.
        rtol: Relative error that rounding alone may cause at that precision.

    Raises:
        ValueError: If the model is on the meta device, the outputs hold no finite number, or they differ between two
            runs in eval mode.
    """

    def __init__(self, sym: Description, model: nn.Module, inputs: Any, randomise: bool = True) -> None:
        if any(t.is_meta for t in tensors_of(model).values()):
            raise ValueError("model must hold weights to be run. Got tensors on the meta device: load a checkpoint.")
        self._wide = in_float64(rewritable(sym, model), inputs)
        self.tensors = tensors_of(self._wide.model)
        if randomise:
            _randomise(sym, self.tensors)
        self._reference = self._wide.outputs()
        self.dtype, self.rtol = self._wide.dtype, self._wide.rtol
        if not any(bool(torch.isfinite(t).any()) for t in self._reference):
            raise ValueError("model must return finite numbers on the inputs. Got none.")
        if self.error({}) > self.rtol:
            raise ValueError(
                "model must return the same twice in eval mode. Got outputs that differ: fix its randomness."
            )

    def error(self, changed: Mapping[str, Tensor]) -> float:
        """Relative change of the outputs when some tensors are replaced for one run."""
        before = {name: self.tensors[name].clone() for name in changed}
        with torch.no_grad():
            try:
                for name, tensor in changed.items():
                    self.tensors[name].copy_(tensor)
                return relative_error(self._reference, self._wide.outputs())
            finally:
                for name, tensor in before.items():
                    self.tensors[name].copy_(tensor)


def _randomise(sym: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give distinct entries to every described tensor whose entries are all equal, and to batch-norm statistics."""
    generator = torch.Generator().manual_seed(0)
    variances = {norm.variance for norm in sym.batch_norms}
    statistics = variances | {norm.mean for norm in sym.batch_norms}
    with torch.no_grad():
        for name in sym.layouts:
            tensor = tensors.get(name)
            if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            if name in variances:
                tensor.copy_(0.5 + noise)
            elif name in statistics or bool((tensor == tensor.flatten()[0]).all()):
                tensor.add_(noise - 0.5)
