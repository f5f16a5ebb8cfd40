"""Gates as an explanation: statistics by class, the sub-network of one input, and what linear gates look for."""

from .active_subnetwork import ActiveSubnetwork, active_subnetwork
from .effective_maps import EffectiveMap, EffectiveMaps, effective_maps
from .examine import GateLayer, GateStudy, examine
from .shared_gates import SharedGates, shared_gates

__all__ = [
    "ActiveSubnetwork", "EffectiveMap", "EffectiveMaps", "GateLayer", "GateStudy", "SharedGates", "active_subnetwork",
    "effective_maps", "examine", "shared_gates",
]  # fmt: skip
