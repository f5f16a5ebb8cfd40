"""Copies of networks with ReLUs in place of other activations."""

from torch import nn

from ..._evaluation import check_module, copied, in_usual_mode

_MODULES = (
    nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh, nn.ELU, nn.CELU, nn.SELU, nn.Hardtanh, nn.Sigmoid, nn.Softplus,
    nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.RReLU, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


@in_usual_mode
def rectified(model: nn.Module) -> nn.Module:
    """A copy whose other activations are ReLUs: the nearest network that has gates.

    What is lost: the function. Gates ``1{q > 0}`` see the sign of each pre-activation alone, so that the copy agrees
    with ``model`` only as far as its activations resemble a ReLU; train it, or fine-tune it, before you study its
    paths. Leaky ReLUs, parametric ReLUs and absolute values are gates as they are (1, and another slope below 0) and
    stay.

    Args:
        model: A network that holds its activations as modules. It is left as it is.

    Raises:
        ValueError: If none of its modules is an activation that could be replaced.

    Examples:
        >>> rectified(nn.Sequential(nn.Linear(2, 3), nn.GELU()))[1]
        ReLU()
    """
    check_module(model)
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
