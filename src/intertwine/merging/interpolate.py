"""Points between two networks: straight lines and great circles through their weights."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..symmetry.action import tensors_of

Interpolation = Literal["linear", "spherical"]
_PARALLEL = 1e-6  # sine of the angle below which a great circle is a line


def between(a: Tensor, b: Tensor, ratio: float, how: Interpolation = "linear") -> Tensor:
    """The point at ``ratio`` between two tensors.

    Linear: ``(1 - r) a + r b``. Spherical (Shoemake 1985), with the angle ``w`` between the flattened tensors:
    ``sin((1 - r) w) / sin(w) a + sin(r w) / sin(w) b``, which keeps the norm where both norms are equal; tensors that
    are zero or nearly parallel are interpolated linearly.

    Returns:
        A new tensor of the dtype and on the device of ``a``; ``a`` itself where it holds no real numbers or both are
        equal.

    Examples:
        >>> x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> between(x, y, 0.5), between(x, y, 0.5, "spherical")
        (tensor([0.5000, 0.5000]), tensor([0.7071, 0.7071]))
    """
    b = b.to(a.device)
    if a.is_complex():
        return torch.view_as_complex(between(torch.view_as_real(a), torch.view_as_real(b), ratio, how))
    if not a.is_floating_point() or ratio == 0 or torch.equal(a, b):
        return a  # infinities that both hold, as in masks, would become NaN
    work = torch.promote_types(a.dtype, torch.float32)
    x, y = a.to(work), b.to(work)
    if ratio == 1:
        return y.to(a.dtype)
    near, far = (1 - ratio, ratio) if how == "linear" else _on_sphere(x, y, ratio)
    return (near * x + far * y).to(a.dtype)


def write(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Overwrite parameters and buffers of a model by name, in place."""
    own = tensors_of(model)
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
    return model


def _on_sphere(x: Tensor, y: Tensor, ratio: float) -> tuple[float, float]:
    norms = float(x.norm()) * float(y.norm())
    if norms == 0:
        return 1 - ratio, ratio
    cosine = (x.double() * y.double()).sum() / norms if x.device.type != "mps" else (x * y).sum() / norms
    angle = torch.acos(cosine.clamp(-1, 1))
    sine = float(angle.sin())
    if sine < _PARALLEL:
        return 1 - ratio, ratio
    return float(((1 - ratio) * angle).sin()) / sine, float((ratio * angle).sin()) / sine
