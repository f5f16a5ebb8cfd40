"""Paths of a ReLU network one by one: all of a small network's, or those that contribute most to one output."""

from .enumeration import Paths, paths

__all__ = ["Paths", "paths"]
