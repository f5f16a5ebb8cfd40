"""A program made simpler to read: splits become slices, and what nothing reads is left out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import torch

from ..programs import Call, Program

__all__ = ["simplified"]


def simplified(program: Program, kept: Callable[[Call], bool]) -> Program:
    """The same program with a slice for each part of a split or chunk, and a selection for each of ``unbind``.

    Calls whose results nothing reads are left out (``max_pool1d`` squeezes positions that nobody asked for), except
    those ``kept``: gates run whoever reads them, and are counted when the network runs.
    """
    wanted = {ref.id for ref in program.outputs}
    calls: list[Call] = []
    for call in reversed([part for whole in program.calls for part in _parts(program, whole)]):
        if kept(call) or any(out is not None and out.id in wanted for out in call.outputs):
            wanted.update(ref.id for ref in call.inputs)
            calls.append(call)
    return replace(program, calls=tuple(reversed(calls)))


def _parts(program: Program, call: Call) -> list[Call]:
    if call.op not in ("aten::split", "aten::split_with_sizes", "aten::unbind"):
        return [call]
    dim = call.args["dim"]
    if call.op == "aten::unbind":
        take = torch.ops.aten.select.int
        options = [{"dim": dim, "index": k} for k in range(len(call.outputs))]
    else:
        take = torch.ops.aten.slice.Tensor
        sizes = [0 if out is None else program.values[out.id].shape[dim] for out in call.outputs]
        ends = list(accumulate(sizes))
        options = [{"dim": dim, "start": e - s, "end": e, "step": 1} for s, e in zip(sizes, ends)]
    op = "aten::select" if call.op == "aten::unbind" else "aten::slice"
    return [
        replace(call, op=op, func=take, args={"self": call.args["self"], **option}, outputs=(out,))
        for option, out in zip(options, call.outputs)
        if out is not None
    ]
