"""Mappings for other tools: quantisers, rotations, pruners, mergers and metanetworks."""

from ..symmetry.coupling import kept_rows
from .mappings import FORMATS, mappings
from .pruning import prune_channels
from .result import Absent, Entry, Mappings, Place, Proof
from .rotation import Rotation, hadamard, rotate

__all__ = [
    "FORMATS", "Absent", "Entry", "Mappings", "Place", "Proof", "Rotation", "hadamard", "kept_rows", "mappings",
    "prune_channels", "rotate",
]  # fmt: skip
