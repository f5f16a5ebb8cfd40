"""The one nonlinearity of the papers' networks."""

from torch import nn


def rectifier(leaky_slope: float) -> nn.Module:
    """ReLU, or LeakyReLU with the given negative slope (v2 Table 3); never in place.

    Args:
        leaky_slope: Slope for negative inputs. 0 gives a plain ``nn.ReLU``, 1 the identity.
    """
    return nn.LeakyReLU(leaky_slope) if leaky_slope else nn.ReLU()
