"""G_ReLU: permutations with positive scales, the intertwiner group of ReLU."""

from .birkhoff import Birkhoff

__all__ = ["GReLU"]


class GReLU(Birkhoff):
    """``P D`` with positive ``D``, by projected gradient on the Birkhoff polytope (paper 1, v2 D.2.1).

    Arguments and attributes are those of :class:`Birkhoff`.

    Examples:
        >>> layer = GReLU(3, 3).eval()
        >>> (layer.rounded() > 0).sum(1)
        tensor([1, 1, 1])
    """

    family = "g_relu"
