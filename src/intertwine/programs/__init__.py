"""Captured programs of models: what they compute, from which parameters, where in the code; parts can be run again."""

from .calls import Call, Ref, Value
from .capture import capture, capture_examples, capture_paths, gains_as_parameters, union
from .dynamic import capture_dynamic, check_path, first_output, flat_inputs
from .graph import Vertex, Wire, graph
from .part import Part, Replayed
from .program import Program

__all__ = [
    "Call", "Part", "Program", "Ref", "Replayed", "Value", "Vertex", "Wire", "capture", "capture_dynamic",
    "capture_examples", "capture_paths", "check_path", "first_output", "flat_inputs", "gains_as_parameters", "graph",
    "union",
]  # fmt: skip
