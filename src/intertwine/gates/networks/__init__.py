"""Gated counterparts of ReLU networks: one network makes the gates, another holds the weights of the paths."""

from .dgn import dgn
from .dlgn import dlgn, dlgn_sf
from .gated import GatedNetwork, ShallowMaps, gate_permutations
from .random_signs import bernoulli_
from .rectified import rectified

__all__ = ["GatedNetwork", "ShallowMaps", "bernoulli_", "dgn", "dlgn", "dlgn_sf", "gate_permutations", "rectified"]
