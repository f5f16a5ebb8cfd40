"""Spectral norms of torch: the singular vectors that a layer keeps beside its weight, and the size they imply.

In evaluation mode torch divides the weight ``W`` by ``u^T W v`` with the vectors as they are: for another weight, they
are another network's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm as _Step
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm as _Hook

from .._evaluation import evaluating


@dataclass(frozen=True)
class SpectralNorm:
    """One spectral norm: the weight as a matrix, ``(rows, columns)``, and the live vectors."""

    matrix: Tensor
    u: Tensor
    v: Tensor
    u_name: str
    v_name: str

    @property
    def size(self) -> Tensor:
        """Number by which the weight is divided."""
        return self.u @ self.matrix @ self.v

    def equals(self, other: "SpectralNorm") -> bool:
        """Whether both hold the same numbers."""
        pairs = ((getattr(self, part), getattr(other, part)) for part in ("matrix", "u", "v"))
        return all(torch.equal(x, y.to(x.device, x.dtype)) for x, y in pairs)


def spectral_norms(model: nn.Module) -> dict[str, SpectralNorm]:
    """All spectral norms of a network, made by a hook or as a parametrisation, by the name of the divided weight."""
    with torch.no_grad(), evaluating(model):  # in training mode torch would continue its iteration
        return {norm.u_name.removesuffix("_u"): norm for norm in _found(model)}


def follow_(merged: nn.Module, parents: Iterable[nn.Module]) -> nn.Module:
    """Measure the spectral norms of a merged network anew, except those that a parent has bit for bit."""
    found = spectral_norms(merged)
    known = [spectral_norms(parent) for parent in parents] if found else []
    for name, norm in found.items():
        if not any(norm.equals(others[name]) for others in known):  # on the side of the old ones
            u, _, v = torch.linalg.svd(norm.matrix.cpu().double(), full_matrices=False)
            sign = -1.0 if float(u[:, 0] @ norm.u.cpu().double()) < 0 else 1.0
            norm.u.copy_(sign * u[:, 0])
            norm.v.copy_(sign * v[0])
    return merged


def _found(model: nn.Module) -> Iterator[SpectralNorm]:
    for name, module in model.named_modules():
        start = f"{name}." if name else ""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, _Hook):
                weight, u, v = (getattr(module, hook.name + end) for end in ("_orig", "_u", "_v"))
                at = start + hook.name
                yield SpectralNorm(hook.reshape_weight_to_matrix(weight.detach()), u, v, f"{at}_u", f"{at}_v")
        if isinstance(module, ParametrizationList):
            names = ["original"] if module.is_tensor else [f"original{i}" for i in range(module.ntensors)]
            tensors = [getattr(module, part) for part in names]
            for k, step in enumerate(module):
                if isinstance(step, _Step) and len(step._buffers):  # a vector is divided by its length
                    matrix = step._reshape_weight_to_matrix(tensors[0].detach())
                    yield SpectralNorm(matrix, step._u, step._v, f"{start}{k}._u", f"{start}{k}._v")
                tensors = [step(*tensors)]
