"""The channel axis of an output: asked of the modules that know, guessed from the rank otherwise."""

from torch import nn

_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,  # batch and instance norm
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_LAST = (nn.Linear, nn.Embedding, nn.MultiheadAttention)


class ChannelGuess:
    """Guesses the channel axis of outputs, given in the order in which they were made.

    Convolutions, batch, instance and group norms and pooling keep channels on axis 1; linear layers, embeddings,
    attention and a layer norm over one axis keep them last. Any other module (an activation, a block) has its channels
    where the latest of those with an output of the same shape has them. Failing that, rank decides: axis 1 for matrices
    and images, and the last axis for rank 3, read as tokens ``(N, T, C)``.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}

    def __call__(self, module: nn.Module | None, shape: tuple[int, ...]) -> int:
        """The channel axis of an output of ``shape``: 1 or -1."""
        known = self._by_kind(module)
        if known is not None:
            self._known[shape] = known
        axis = self._known.get(shape, -1 if len(shape) == 3 else 1)
        return 1 if len(shape) == 2 else axis

    @staticmethod
    def _by_kind(module: nn.Module | None) -> int | None:
        if isinstance(module, _FIRST):
            return 1
        if isinstance(module, _LAST):
            return -1
        # Subclasses of LayerNorm often permute axes around it, so that only the class itself is sure.
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and type(module) in {nn.LayerNorm, nn.RMSNorm}:
            return -1 if len(module.normalized_shape) == 1 else None
        return None
