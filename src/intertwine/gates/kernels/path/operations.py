"""Families of operations in the rules of the path kernel, and what a program made of them needs."""

import math

from ....programs import Call
from ....programs.operations import AVERAGE_POOLS, COPIES, GATHERS, INTERPOLATIONS, MAX_POOLS, RESHAPES, aten, is_gate
from ...relu_program import ReluProgram

SAME = COPIES | {"aten::dropout"}
CHOICES = aten("slice select index_select flip roll transpose") | GATHERS
"""Each position takes the value of one other, or 0."""
MIXES = INTERPOLATIONS | {"aten::sum"}
"""Fixed sums over positions: their coefficients are no values but stay on the paths."""


def needs_pairs(program: ReluProgram) -> bool:
    """Whether something averages or chooses among positions, so that pairs of positions are needed."""
    for call in program.calls:
        if call.op in AVERAGE_POOLS | MAX_POOLS | MIXES and call.inputs[0].id in program.varying:
            shapes = [program.values[r.id].shape for r in (call.inputs[0], call.outputs[0]) if r is not None]
            if any(math.prod(shape[2:]) > 1 for shape in shapes):
                return True
    return False


def fully_connected(program: ReluProgram) -> tuple[bool, ...] | None:
    """Whether each layer of weights has biases, where such layers and ReLUs in turns are all there is; else ``None``.

    The input may be flattened first. The last layer must be one of weights, after which all outputs are equal.
    """
    biases: list[bool] = []
    gated = True  # the input stands where gated units do
    for call in program.calls:
        if not any(r.id in program.varying for r in call.inputs):
            continue
        if is_gate(call) and call.op not in MAX_POOLS and not gated:
            gated = True
        elif call.op in ("aten::mm", "aten::addmm") and gated:
            bias = call.args.get("self") if call.op == "aten::addmm" else None
            learnt = [r.id for r in call.inputs if r.id not in program.varying]
            if any(r not in program.weights for r in learnt):
                return None
            biases.append(bias is not None)
            gated = False
        elif call.op not in SAME and not (call.op in RESHAPES and not biases and _keeps_examples(program, call)):
            return None
    return None if gated else tuple(biases)


def _keeps_examples(program: ReluProgram, call: Call) -> bool:
    return call.outputs[0] is not None and program.values[call.outputs[0].id].shape[0] == 1
