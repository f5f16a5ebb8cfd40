"""Elements that a given network can take: batch norms without a gain bound how far their inputs may shrink."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .action import kept_variances
from .blocks import blocks
from .description import Description
from .transformation import Transformation, with_parts

__all__ = ["admissible"]


def admissible(sym: Description, g: Transformation, state: Mapping[str, Tensor]) -> Transformation:
    """``g`` without the scales of units that a batch norm without a gain cannot follow.

    ``v' = a^2 (v + eps) - eps`` must not be negative, so nearly dead channels cannot shrink by much. Units that would
    shrink keep their scale wherever such a norm has a channel that cannot follow; all others move as before.

    Returns:
        An element that ``act`` accepts for these weights; ``g`` itself where it is one.
    """
    gainless = {norm.variance for norm in sym.batch_norms if norm.weight is None}
    for kept in kept_variances(sym, g, state):
        if kept.variance not in gainless:
            continue
        for block in blocks(sym.layouts[kept.variance]):
            for _, leaf in block.carried:
                scales = g[leaf.space].scales
                factor = g[leaf.space].diagonal(leaf)
                if factor is not None:
                    g = with_parts(g, leaf.space, scales=torch.where(factor < 1, 0.0, scales))
    return g
