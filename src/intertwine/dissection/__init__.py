"""Network dissection: is the neuron basis special?"""

from .arms import BASES, Bases
from .colours import COLOURS, WithColours, name_colours
from .concepts import Concept, ConceptBatch, ConceptSet, Sample, Subset, TensorConcepts
from .dissect import dissect
from .options import Criterion, Maps
from .privileged import PrivilegedBases, SpaceBasis, predict, privileged_bases
from .quantiles import top_thresholds
from .result import ArmResult, Count, Dissection, Picture
from .rotation import Rotation, random_rotation

__all__ = [
    "dissect", "Bases", "BASES", "Criterion", "Maps",
    # what comes back
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
