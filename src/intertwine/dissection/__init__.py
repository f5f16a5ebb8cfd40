"""Network dissection: is the neuron basis special?"""

from .colours import COLOURS, WithColours, name_colours
from .concepts import Concept, ConceptBatch, ConceptSet, Sample, Subset, TensorConcepts
from .quantiles import Thresholds, TopSketch, exact_thresholds, sketch_thresholds
from .rotation import Rotation, random_rotation

__all__ = [
    # what units are compared with
    "Concept",
    "ConceptBatch",
    "ConceptSet",
    "Sample",
    "Subset",
    "TensorConcepts",
    "COLOURS",
    "WithColours",
    "name_colours",
    # rotations
    "Rotation",
    "random_rotation",
    # thresholds
    "Thresholds",
    "TopSketch",
    "exact_thresholds",
    "sketch_thresholds",
]
