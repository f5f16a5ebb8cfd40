"""Find the symmetries of a model: capture its program, walk the engine through it, and describe what moves."""

from dataclasses import replace
from typing import Any

from torch import nn

from .._examples import arguments, each
from .._result import of_networks
from ..programs import Program, capture_paths, union
from .detection.describe import describe
from .detection.engine import Edit, Engine, Restart
from .detection.rules import apply
from .symmetry import Origin, Symmetry


@of_networks("model")
def symmetries(model: nn.Module, example_inputs: Any) -> Symmetry:
    """Find the group of weight-space symmetries that a model's architecture has.

    Every function that the model computes on tensors of the example's shapes stays exactly the same under the group,
    whatever the weights. Where the papers treat chains of layers (v2 3.2, E.4-E.6, E.47; v1 E.26), this reads the
    group off the operations that the model runs: which axes of which parameters must move together, and what each
    operation lets through. Operations without a rule fix what they touch and are listed.

    Args:
        model: Any module; on the meta device nothing is computed, so a model of any size can be read.
        example_inputs: A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or several
            of these as ``Examples``. Axes of size one carry no space, so give a batch of at least two. Where the code
            takes a path that depends on the data (``path_only``), what parameters that no example reads may meet is
            fixed: give ``Examples`` that together read all of them. A few yes-or-no questions are answered both ways.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> [s.name for s in symmetries(model, torch.zeros(2, 4)).spaces]
        ['0.weight[0]']
    """
    programs = [capture_paths(model, *arguments(example)) for example in each(example_inputs)]
    program = union(programs)
    return replace(symmetries_of(program), origin=Origin(model, example_inputs, program))


def symmetries_of(program: Program) -> Symmetry:
    """Find the symmetries of a captured program."""
    found = describe(walked(program))
    if not any((shape := program.values[ref.id].shape) and shape[0] == 1 for ref in program.inputs):
        return found
    note = "the first axis of an input has size one: certified for that size only; give a batch of two or more"
    return replace(found, notes=(*found.notes, note))


def walked(program: Program, kind: type[Engine] = Engine) -> Engine:
    """An engine that has walked through a program until the structure of its spaces stands still."""
    edits: dict[tuple[str, int], list[list[Edit]]] = {}
    for _ in range(1000):
        engine = kind(program, edits)
        try:
            engine.walk(apply)
        except Restart as found:
            edits.setdefault((found.tensor, found.axis), []).append(found.edits)
            continue
        return engine
    raise RuntimeError("the concatenations among the parameters must be finite. Got ever more of them.")
