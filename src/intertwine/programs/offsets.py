"""Programs whose norms multiply by ``1 + weight``, read as if the gain itself were the parameter."""

from dataclasses import replace

from .._nested import map_leaves
from .calls import Call, Ref
from .operations import COPIES
from .program import Program


def gains_as_parameters(program: Program) -> tuple[Program, dict[str, float]]:
    """The program in which every parameter that is only read as ``weight + c`` stands for that sum.

    Returns:
        The program, which computes the same from ``weight + c`` in place of ``weight``; and ``c`` by parameter name.
    """
    readers: dict[int, list[Call]] = {}
    for call in program.calls:
        for ref in dict.fromkeys(call.inputs):
            readers.setdefault(ref.id, []).append(call)
    offsets: dict[str, float] = {}
    stands: dict[int, Ref] = {}  # the number of each sum to the parameter that stands for it
    removed: set[int] = set()
    returned = {ref.id for ref in program.outputs}
    for name, ref in program.states.items():
        if program.values[ref.id].kind != "parameter":
            continue
        found = _sums(ref, readers, returned)
        if found and len({constant for _, constant, _ in found}) == 1:
            offsets[name] = found[0][1]
            for number, _, sums in found:
                stands[number] = ref
                removed |= sums
    moved = lambda leaf: stands.get(leaf.id, leaf) if isinstance(leaf, Ref) else leaf
    calls = tuple(replace(c, args=map_leaves(c.args, moved)) for c in program.calls if id(c) not in removed)
    return (replace(program, calls=calls), offsets) if offsets else (program, offsets)


def _sums(ref: Ref, readers: dict[int, list[Call]], returned: set[int]) -> list[tuple[int, float, set[int]]]:
    """Every sum that a parameter is read as, with its constant and the calls that make it; none if it is read else."""
    found: list[tuple[int, float, set[int]]] = []
    waiting: list[tuple[Ref, set[int]]] = [(ref, set())]
    while waiting:
        at, passed = waiting.pop()
        if at.id in returned or not readers.get(at.id):
            return []
        for call in readers[at.id]:
            output = call.outputs[0] if call.outputs else None
            other = call.args.get("other")
            if output is None:
                return []
            if call.op in COPIES:
                waiting.append((output, {*passed, id(call)}))
            elif call.op == "aten::add" and isinstance(other, int | float) and call.args.get("alpha", 1) == 1:
                found.append((output.id, float(other), {*passed, id(call)}))
            else:
                return []
    return found
