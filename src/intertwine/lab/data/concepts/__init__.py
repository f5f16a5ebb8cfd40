"""Images with a label for every pixel, for dissection."""

from .broden import BrodenConcepts
from .coco import CocoConcepts
from .generated import GeneratedConcepts
from .load import CONCEPT_FORMS, concept_sets, load_concepts
from .masks import FolderConcepts, ParquetConcepts

__all__ = [
    "BrodenConcepts", "CocoConcepts", "FolderConcepts", "GeneratedConcepts", "ParquetConcepts",
    "CONCEPT_FORMS", "concept_sets", "load_concepts",
]  # fmt: skip
