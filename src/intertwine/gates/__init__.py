"""Gates and paths: the dual view of ReLU networks.

Folders hold the rest: ``networks`` (gated counterparts), ``path_space`` (paths one by one), ``kernels`` (of a network,
of gates, limits, regression), ``study`` (what gates tell about a data set or one input).
"""

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
from .match_gates import GateMatch, match_gates
from .networks import GatedNetwork, dgn, dlgn, dlgn_sf, gate_permutations, rectified
from .path_space import paths
from .patterns import gate_patterns
from .study import GateStudy, active_subnetwork, effective_maps, examine, shared_gates

__all__ = [
    # gates and paths
    "gate_patterns", "paths",
    # kernels
    "Budget", "kernel_regression", "neural_path_kernel", "neural_path_kernel_cost", "neural_tangent_kernel",
    "npk_alignment", "overlap", "product_kernel", "register_kernel_rule",
    # gated networks
    "GatedNetwork", "dgn", "dlgn", "dlgn_sf", "gate_permutations", "rectified",
    # what gates tell
    "GateMatch", "GateStudy", "active_subnetwork", "effective_maps", "examine", "match_gates", "shared_gates",
]  # fmt: skip
