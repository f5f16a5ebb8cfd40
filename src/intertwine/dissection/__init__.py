"""Network dissection: is the neuron basis special?"""

from .bases import BASES, Bases, Rotation, random_rotation
from .concepts import (
    COLOURS,
    Concept,
    ConceptBatch,
    ConceptSet,
    Sample,
    Subset,
    TensorConcepts,
    WithColours,
    name_colours,
)
from .dissect import dissect
from .maps import Criterion, Maps
from .overlap import top_thresholds
from .privileged import PrivilegedBases, SpaceBasis, predict, privileged_bases
from .result import ArmResult, Count, Dissection, Picture

__all__ = [
    "dissect", "Bases", "BASES", "Criterion", "Maps",
    # results
    "Dissection", "ArmResult", "Count", "Picture",
    # what the symmetry group says
    "predict", "privileged_bases", "PrivilegedBases", "SpaceBasis",
    # what units are compared with
    "Concept", "ConceptBatch", "ConceptSet", "Sample", "Subset", "TensorConcepts", "COLOURS", "WithColours",
    "name_colours",
    # rotations
    "Rotation", "random_rotation",
    # thresholds
    "top_thresholds",
]  # fmt: skip
