"""Paths of a ReLU network one by one: all of a small network's, or those that contribute most to one output."""

from .enumeration import Paths, paths
from .top_paths import TopPath, TopPaths, top_paths

__all__ = ["Paths", "TopPath", "TopPaths", "paths", "top_paths"]
