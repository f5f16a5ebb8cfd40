"""Gates and paths: the dual view of ReLU networks.

Folders: ``networks`` (gated counterparts), ``path_space`` (paths one by one), ``kernels`` (path, overlap and tangent
kernels, their limits, regression), ``study`` (what gates tell about a data set or one input).
"""

from .kernels import (
    arc_cosine_tangent_kernel,
    base_kernels,
    convolutional_tangent_kernel,
    ensemble_kernel,
    ensemble_tangent_kernel,
    kernel_alignment,
    kernel_regression,
    neural_path_kernel,
    neural_path_kernel_cost,
    neural_tangent_kernel,
    npk_alignment,
    overlap,
    product_kernel,
    rotation_kernel,
    sum_kernel,
)
from .match_gates import GateMatch, match_gates
from .networks import GatedNetwork, bernoulli_, dgn, dlgn, dlgn_sf, gate_permutations, rectified
from .path_space import paths, top_paths
from .patterns import gate_patterns
from .study import EffectiveMap, GateStudy, active_subnetwork, effective_maps, examine, shared_gates

__all__ = [
    # gates and paths
    "gate_patterns", "overlap", "paths", "top_paths",
    # the path kernel, of any network and of the theorems' families
    "ensemble_kernel", "neural_path_kernel", "neural_path_kernel_cost", "product_kernel", "rotation_kernel",
    # limits and comparators
    "arc_cosine_tangent_kernel", "base_kernels", "bernoulli_", "convolutional_tangent_kernel",
    "ensemble_tangent_kernel", "sum_kernel",
    # the tangent kernel
    "neural_tangent_kernel",
    # learning with kernels
    "kernel_regression",
    # gated networks
    "GatedNetwork", "dgn", "dlgn", "dlgn_sf", "gate_permutations", "rectified",
    # what gates look for and paths carry
    "EffectiveMap", "GateStudy", "active_subnetwork", "effective_maps", "examine", "shared_gates",
    # two networks by their gates
    "GateMatch", "kernel_alignment", "match_gates", "npk_alignment",
]  # fmt: skip
