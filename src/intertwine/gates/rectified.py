"""Activations that are no gates: what theirs would be, what is lost, and the ReLU network in their place."""

from torch import nn

from .._evaluation import copied

__all__ = ["RATIOS", "other_activation", "rectified"]

RATIOS = {
    "gelu": "Φ(q), the normal distribution function",
    "silu": "sigmoid(q), a soft gate of steepness 1",
    "mish": "tanh(softplus(q))",
    "hardswish": "clamp(q + 3, 0, 6) / 6",
    "tanh": "tanh(q) / q",
    "elu": "1 above 0 and (exp(q) - 1) / q below",
    "celu": "1 above 0 and (exp(q) - 1) / q below",
    "selu": "a constant above 0 and a multiple of (exp(q) - 1) / q below",
    "hardtanh": "1 between its bounds and bound / q beyond",
    "erf": "erf(q) / q",
    "sin": "sin(q) / q",
}
"""Activations that are 0 at 0, with their gates ``act(q) / q``."""

_MODULES = (
    nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh, nn.ELU, nn.CELU, nn.SELU, nn.Hardtanh, nn.Sigmoid, nn.Softplus,
    nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.RReLU, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


def other_activation(name: str) -> str:
    """What a message says of an activation that is no gate.

    Args:
        name: Of the operation, such as ``"gelu"``.

    Returns:
        One or two sentences.
    """
    if name in RATIOS:
        gate = (
            f"Its gate would be act(q) / q = {RATIOS[name]}: with it paths still add up to the output, but it is "
            "neither on/off nor invariant under scalings, so an overlap would count nothing "
            '(iw.gates.gate_patterns(..., others="ratio") gives it).'
        )
    elif name.startswith("rrelu"):
        gate = "Its slope is drawn anew for every unit in training: use nn.LeakyReLU with the mean of its bounds."
    elif name == "prelu":
        gate = "Its slope is a weight, which a gate of another network cannot hold: use nn.LeakyReLU."
    else:
        gate = "It is no gate: act(q) / q is not on/off, or not finite."
    return f"{gate} Train iw.gates.rectified(model), which has ReLUs instead and is another function."


def rectified(model: nn.Module) -> nn.Module:
    """A copy whose other activations are ReLUs: the nearest network that has gates.

    What is lost: the function. Gates ``1{q > 0}`` see the sign of each pre-activation alone, so that the copy agrees
    with ``model`` only as far as its activations resemble a ReLU; train it, or fine-tune it, before you study its
    paths. Leaky ReLUs, parametric ReLUs and absolute values are gates as they are (1, and another slope below 0) and
    stay.

    Args:
        model: A network that holds its activations as modules. It is left as it is.

    Returns:
        The copy, with the same weights.

    Raises:
        TypeError: If ``model`` is not a module.
        ValueError: If none of its modules is an activation that could be replaced.

    Examples:
        >>> rectified(nn.Sequential(nn.Linear(2, 3), nn.GELU()))[1]
        ReLU()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module. Got {type(model).__name__}.")
    new = copied(model)
    found = 0
    for module in list(new.modules()):
        for name, child in module.named_children():
            if isinstance(child, _MODULES):
                setattr(module, name, nn.ReLU())
                found += 1
    if not found:
        raise ValueError(
            "model must hold activations other than ReLU as modules, such as nn.GELU(). Got none: replace calls of "
            "functions in its code."
        )
    return new
