"""Second moments carried through a captured network, call by call, with the rule of each operation."""

from torch import Tensor

from ....programs import Call
from ....programs.liveness import last_reads
from .moments import channel_slice, contract
from .rules import rule_of
from .tile import Tile, refuse


def propagate(tile: Tile, output: int) -> tuple[Tensor, float]:
    """Run the rules over a program for one tile of examples.

    The kernel ``(n, m)`` of one output up to a factor, and the factor's logarithm.
    """
    program = tile.program
    for call, done in zip(program.calls, last_reads(program.calls, [program.outputs[0]])):
        if any(r.id in program.varying for r in call.inputs):
            _step(tile, call)
        for number in done:
            tile.signals.pop(number, None)
    final = tile.signals[program.outputs[0].id]
    channel, position = divmod(output, final.positions)
    kernel, scale = contract(channel_slice(final, channel, channel + 1), tile.layout)
    return (kernel[:, position, :, position] if tile.layout.pairs else kernel[position]), scale


def _step(tile: Tile, call: Call) -> None:
    read = next(r.id for r in call.inputs if r.id in tile.program.varying)
    rule = rule_of(call)
    if read not in tile.signals:
        refuse(call, "a result of an operation that no rule of the path kernel covers")
    if rule is None:
        refuse(call, "an operation that no rule of the path kernel covers")
    found = rule(tile, call, tile.signals[read])
    if call.outputs[0] is not None:
        tile.signals[call.outputs[0].id] = found
