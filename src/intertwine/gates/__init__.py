"""Gates and paths: the dual view of ReLU networks. Its kernels of inputs are in the folder ``kernels``."""

from .affine_maps import active_subnetwork, effective_maps
from .counterparts import dgn, dlgn, dlgn_sf, rectified
from .examine import GateStudy, examine, shared_gates
from .gated_network import GatedNetwork, gate_permutations
from .kernels import (
    Budget,
    kernel_regression,
    neural_path_kernel,
    neural_path_kernel_cost,
    neural_tangent_kernel,
    npk_alignment,
    overlap,
    product_kernel,
    register_kernel_rule,
)
from .path_enumeration import paths
from .patterns import GateMatch, gate_patterns, match_gates

__all__ = [
    # gates and paths
    "gate_patterns", "paths",
    # kernels
    "Budget", "kernel_regression", "neural_path_kernel", "neural_path_kernel_cost", "neural_tangent_kernel",
    "npk_alignment", "overlap", "product_kernel", "register_kernel_rule",
    # gated networks
    "GatedNetwork", "dgn", "dlgn", "dlgn_sf", "gate_permutations", "rectified",
    # what gates reveal
    "GateMatch", "GateStudy", "active_subnetwork", "effective_maps", "examine", "match_gates", "shared_gates",
]  # fmt: skip
