"""Activations without on/off gates: the ratio ``act(q) / q`` that stands for one, and why kernels refuse it."""

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


def other_activation(name: str) -> str:
    """What a message says of an activation that is no gate, by the name of its operation, such as ``"gelu"``."""
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
