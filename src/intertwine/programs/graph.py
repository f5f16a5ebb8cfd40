"""Graph of a program for drawing: modules that read parameters, and the operations that join their results."""

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from .calls import Call, Ref, reached
from .operations import ATTENTION, PARTS, REARRANGEMENTS, aten
from .program import Program

__all__ = ["Vertex", "Wire", "graph"]

# these change no number, or only the shape
_QUIET = REARRANGEMENTS | PARTS | aten("expand dropout native_dropout as_strided copy index_select")
_NAMES = {
    "addmm": "linear", "mm": "linear", "bmm": "matmul", "convolution": "conv", "native_layer_norm": "layer norm",
    "native_group_norm": "group norm", "native_batch_norm": "batch norm", "_native_batch_norm_legit": "batch norm",
    "_native_batch_norm_legit_no_training": "batch norm", "_fused_rms_norm": "rms norm",
    "_log_softmax": "log softmax", "max_pool2d_with_indices": "max pool", "_adaptive_avg_pool2d": "average pool",
    "avg_pool2d": "average pool",
}  # fmt: skip
_MOST = 3  # names of operations


@dataclass(frozen=True)
class Wire:
    """A tensor that goes from one vertex to another."""

    source: int  # Index of the vertex that it comes from
    spaces: tuple[str, ...] = ()  # Names of the spaces that move its axes
    value: int = -1  # Its number in the program


@dataclass(frozen=True)
class Vertex:
    """One module that ran, or operations between modules that belong together; inputs and outputs of the model."""

    module: str  # Name of the module whose code ran
    text: str  # Names of its operations
    tensors: tuple[str, ...] = ()  # Parameters and buffers that it reads
    inputs: tuple[Wire, ...] = ()  # What it is given
    inner: bool = False  # Whether other modules ran within this one, so that its operations only join them
    mixes: bool = False  # Whether it reads a parameter with more than one axis


def graph(program: Program) -> tuple[Vertex, ...]:
    """The graph of a program's first run, with every vertex after those that it reads.

    Consecutive calls of one module with nothing else between them are one vertex; views, copies and dropout are none.
    """
    calls = _of_the_first_run(program)
    groups, group_of = _groups(program, calls)
    around = {name.rpartition(".")[0] for name in {call.module for call in calls} if name}
    around |= {outer.rpartition(".")[0] for outer in list(around)} | {""}
    found: list[Vertex] = []
    place: dict[int, list[Wire]] = {}  # group -> what stands for it: one wire, or those that it passes on

    def wires(refs: Iterable[Ref], own: int) -> tuple[Wire, ...]:
        given: dict[tuple[int, int], Wire] = {}
        for ref in refs:
            source = group_of.get(ref.id)
            if source is not None and source != own:
                passed = place[source]
                here = [Wire(w.source, value=ref.id if len(passed) == 1 else w.value) for w in passed]
                given.update({(w.source, w.value): w for w in here})
        return tuple(given.values())

    for k, inside in enumerate(groups):
        if not inside:
            found.append(Vertex("", "input"))
            place[k] = [Wire(len(found) - 1)]
            continue
        inputs = wires((ref for call in inside for ref in call.inputs), k)
        names = list(dict.fromkeys(_name(c, program) for c in inside if c.op not in _QUIET))
        tensors = tuple(dict.fromkeys(name for call in inside for name in program.parameters_of(call)))
        if not names and not tensors:
            place[k] = list(inputs)
            continue
        module = inside[0].module
        text = "attention" if "attention" in names else ", ".join([*names[:_MOST], *(["…"] if names[_MOST:] else [])])
        mixes = any(len(program.values[program.states[name].id].shape) > 1 for name in tensors)
        found.append(Vertex(module, text, tensors, inputs, module in around, mixes))
        place[k] = [Wire(len(found) - 1)]
    last = wires(program.outputs, -1)
    return (*found, Vertex("", "output", (), last)) if last else tuple(found)


def _of_the_first_run(program: Program) -> list[Call]:
    """The calls that the outputs of the first run depend on and that depend on an input."""
    first = program.ancestors(program.outputs[:1])
    read = {ref.id for i in first for ref in program.calls[i].inputs}
    here = reached(program.calls, [ref for ref in program.inputs if ref.id in read])
    positions = program.ancestors([ref for ref in program.outputs if ref.id in here])
    return [program.calls[i] for i in positions if any(out.id in here for out in program.calls[i].made)]


def _groups(program: Program, calls: list[Call]) -> tuple[list[list[Call]], dict[int, int]]:
    """Calls of one module that are joined without a detour through others; and the group of every value.

    The phase of a group is one more than the largest among those that it reads; that of the inputs is -1.
    """
    group_of = {ref.id: k for k, ref in enumerate(program.inputs)}
    groups: list[list[Call]] = [[] for _ in program.inputs]
    keys: list[tuple[str, int]] = [("", -1) for _ in program.inputs]
    parent = list(range(len(groups)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for call in calls:
        sources = {root(group_of[ref.id]) for ref in call.inputs if ref.id in group_of}
        read = [keys[k] for k in sources]
        phase = max(own if module == call.module and own >= 0 else own + 1 for module, own in read)
        joined = sorted(k for k in sources if keys[k] == (call.module, phase))
        if joined:
            home = joined[0]
            for other in joined[1:]:
                parent[other] = home
                groups[home] += groups[other]
                groups[other] = []
        else:
            home = len(groups)
            groups.append([])
            keys.append((call.module, phase))
            parent.append(home)
        groups[home].append(call)
        group_of.update({out.id: home for out in call.made})
    return _in_order(groups, {value: root(k) for value, k in group_of.items()})


def _in_order(groups: list[list[Call]], group_of: dict[int, int]) -> tuple[list[list[Call]], dict[int, int]]:
    """Groups after all that they read, otherwise in the order of the run."""
    reads = [
        {group_of[r.id] for call in group for r in call.inputs if r.id in group_of} - {k}
        for k, group in enumerate(groups)
    ]
    waiting = TopologicalSorter({k: reads[k] for k in set(group_of.values())})
    waiting.prepare()
    ready, order = list[int](), list[int]()
    while waiting.is_active():
        for k in waiting.get_ready():
            heappush(ready, k)  # groups are numbered by their first call
        order.append(heappop(ready))
        waiting.done(order[-1])
    new = {k: i for i, k in enumerate(order)}
    return [groups[k] for k in order], {value: new[k] for value, k in group_of.items()}


def _name(call: Call, program: Program) -> str:
    name = call.op.removeprefix("aten::")
    if call.op in ATTENTION:
        return "attention"
    if name in ("mm", "bmm", "matmul") and not program.parameters_of(call):
        return "matmul"
    return _NAMES.get(name, name.strip("_").replace("_", " "))
