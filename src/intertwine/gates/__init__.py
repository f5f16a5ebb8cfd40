"""Gates and paths: the dual view of ReLU networks."""

from .active_subnetwork import ActiveSubnetwork, active_subnetwork
from .alignment import kernel_alignment, npk_alignment
from .arc_cosine import arc_cosine_tangent_kernel, convolutional_tangent_kernel
from .bernoulli import bernoulli_
from .dgn import dgn
from .dlgn import dlgn, dlgn_sf
from .effective_map import EffectiveMap, EffectiveMaps, effective_maps
from .ensemble_kernel import ensemble_kernel, ensemble_tangent_kernel
from .examine import GateLayer, GateStudy, examine
from .gated import GatedNetwork, gate_permutations
from .kernel_regression import KernelRegression, kernel_regression
from .match_gates import GateMatch, SpaceMatch, match_gates
from .overlap import overlap
from .path_kernel import neural_path_kernel, neural_path_kernel_cost
from .paths import Paths, paths
from .patterns import gate_patterns
from .product_kernel import base_kernels, product_kernel, sum_kernel
from .rectified import rectified
from .rotation_kernel import rotation_kernel
from .shared_gates import SharedGates, shared_gates
from .tangent_kernel import neural_tangent_kernel
from .top_paths import TopPath, TopPaths, top_paths

__all__ = [
    # gates and paths
    "Paths", "gate_patterns", "overlap", "paths",
    # the path kernel, of any network and of the theorems' families
    "ensemble_kernel", "neural_path_kernel", "neural_path_kernel_cost", "product_kernel", "rotation_kernel",
    # limits and comparators
    "arc_cosine_tangent_kernel", "base_kernels", "bernoulli_", "convolutional_tangent_kernel",
    "ensemble_tangent_kernel", "sum_kernel",
    # the tangent kernel
    "neural_tangent_kernel",
    # learning with kernels
    "KernelRegression", "kernel_regression",
    # gated networks
    "GatedNetwork", "dgn", "dlgn", "dlgn_sf", "gate_permutations", "rectified",
    # what gates look for and paths carry
    "ActiveSubnetwork", "EffectiveMap", "EffectiveMaps", "SharedGates", "TopPath", "TopPaths", "active_subnetwork",
    "effective_maps", "shared_gates", "top_paths",
    # all of it in one call
    "GateLayer", "GateStudy", "examine",
    # two networks by their gates
    "GateMatch", "SpaceMatch", "kernel_alignment", "match_gates", "npk_alignment",
]  # fmt: skip
