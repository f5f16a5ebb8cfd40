"""Mappings for other tools: quantisers, rotations, pruners, mergers, metanetworks."""

from .mappings import FORMATS, mappings
from .result import Absent, Entry, Mappings, Place, Proof

__all__ = ["FORMATS", "Absent", "Entry", "Mappings", "Place", "Proof", "mappings"]
