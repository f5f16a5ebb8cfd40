"""Enumeration of the paths of a small ReLU network: features, values, activity, bundles. The test of path kernels."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .path_edges import Edges, Linearised, linearise
from .patterns import observe, structure
from .relu_program import ReluProgram, capture_relu


@dataclass(frozen=True)
class Paths:
    """All paths from the input nodes, and from the constant-1 node of the biases, to one output of a network."""

    source: Tensor  # Input node at which each path starts ``(P,)``, a flat index; -1 for the constant-1 node
    # The weights on each path ``(P, slots)`` as flat indices into the tensor that ``slots`` names; -1: none
    weights: Tensor = field(repr=False)
    # For each column of ``weights``, the parameter's name, or whatever else multiplies (a gain, a pooling)
    slots: tuple[str, ...]
    # Product of the weights of each path ``(P,)``, ``v(p)`` (definition 2.1), with average pooling's 1/size
    value: Tensor = field(repr=False)
    activity: Tensor = field(repr=False)  # Product of the gates of each path ``(N, P)``, ``A(x, p)``
    # Value at the path's source ``(N, P)``, times constants of the model along the way
    signal: Tensor = field(repr=False)
    # Number of the bundle that each path belongs to ``(P,)``: paths with the same weights (definition A.3)
    bundle: Tensor = field(repr=False)

    @property
    def count(self) -> int:
        """Number of paths, those of the biases included."""
        return len(self.source)

    @property
    def bundles(self) -> int:
        """Number of bundles."""
        return int(self.bundle.max()) + 1 if self.count else 0

    @property
    def features(self) -> Tensor:
        """Neural path features ``(N, bundles)``: ``phi(x, b)``, sums of signal times activity (definition A.4)."""
        per_path = self.signal * self.activity
        return per_path.new_zeros(len(per_path), self.bundles).index_add_(1, self.bundle, per_path)

    @property
    def values(self) -> Tensor:
        """Neural path values ``(bundles,)``: the product of weights that the paths of a bundle share."""
        shared = torch.zeros(self.bundles, dtype=self.value.dtype, device=self.value.device)
        return shared.scatter_(0, self.bundle, self.value)

    @property
    def outputs(self) -> Tensor:
        """``<phi(x), v>``, the network's output ``(N,)`` (proposition 2.1)."""
        return self.features @ self.values

    @property
    def contributions(self) -> Tensor:
        """Contribution of each path to the output ``(N, P)``."""
        return self.signal * self.activity * self.value

    def kernel(self) -> Tensor:
        """The neural path kernel ``<phi(x), phi(x')>`` ``(N, N)`` (lemma 2.1)."""
        return self.features @ self.features.T

    def overlap(self) -> Tensor:
        """Number of paths that are active for both inputs, by source ``(N, N, sources)`` (definition 2.2).

        Sources are the input nodes in order, with the constant-1 node last.
        """
        sources = int(self.source.max()) + 2 if self.count else 1
        index = torch.where(self.source < 0, sources - 1, self.source)
        both = self.activity[:, None] * self.activity[None]
        return torch.zeros(*both.shape[:2], sources, dtype=both.dtype, device=both.device).index_add_(2, index, both)

    def top(self, k: int = 5, example: int = 0) -> list[tuple[str, float]]:
        """The ``k`` paths that contribute most to the output for one input, in words, with their contributions."""
        contributions = self.contributions[example]
        best = contributions.abs().topk(min(k, self.count)).indices
        return [(self.describe(int(p)), float(contributions[p])) for p in best]

    def describe(self, path: int) -> str:
        """A path in words: its source and the weights on it."""
        start = f"x[{int(self.source[path])}]" if self.source[path] >= 0 else "1"
        steps = [f"{name}[{int(i)}]" for name, i in zip(self.slots, self.weights[path]) if i >= 0]
        return " -> ".join([start, *steps])


@in_usual_mode
def paths(model: nn.Module, x: Tensor, output: int = 0, input: str = "x", max_paths: int = 1_000_000) -> Paths:
    """Enumerate the paths of a small network (P2 definitions 2.1, 2.2, A.1-A.4, section 2.2).

    Beyond the paper, a bias is a path that starts at a constant-1 node; a batch norm's gain ``gamma / sqrt(var + eps)``
    is a weight and its shift a bias; the positions that a max pooling may take are gates; an average pooling's 1/size
    is part of the value (the paper counts it in the activity and in the limit's constant). With these, ``output =
    <phi(x), v>`` holds exactly for every network of linear maps, ReLUs and poolings, and paths with the same weights
    form one bundle. Anything else is refused with a ``ValueError`` that says what and where.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: Inputs ``(N, C, *S)``.
        output: Which output the paths lead to.
        input: ``"x"``, or ``"ones"`` for the features of a value network with constant input 1.
        max_paths: Networks with more paths than this are refused.

    Raises:
        ValueError: If the model holds anything else, or no parameters.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False)).double()
        >>> x = torch.randn(5, 3, dtype=torch.float64)
        >>> found = paths(model, x)
        >>> found.count, torch.allclose(found.outputs, model(x)[:, 0])
        (12, True)
    """
    source = model
    model, input = structure(model, input)
    program = capture_relu(model, x)
    program.check_output(output)
    if not program.weights:
        raise ValueError("model must have parameters as weights. Got constants or buffers alone.")
    linear = linearise(program, x[:1])
    gates = observe(source, program, x)
    table = _enumerate(program, linear, torch.arange(x[0].numel(), device=x.device), max_paths)
    table = table.choose(table.node == output)
    activity = torch.ones(len(x), len(table.node), dtype=torch.float64, device=x.device)
    for slot, (values, call) in enumerate(zip(gates, program.gates)):
        flat, (edges, *_) = values.flatten(1), linear.edges[call]
        if edges.offset is None:
            on_edges = flat[:, edges.src].double()
        else:  # max pooling: positions are counted within each channel
            on_edges = ((flat + edges.offset)[:, edges.dst] == edges.src).double()
        chosen = table.gates[:, slot]
        activity *= torch.where(chosen >= 0, on_edges[:, chosen.clamp(min=0)], 1.0)
    flat = x.flatten(1).double() if input == "x" else torch.ones_like(x.flatten(1), dtype=torch.float64)
    starts = torch.cat([flat, torch.ones_like(flat[:, :1])], 1)  # column -1 is the constant-1 node
    signal = starts[:, table.source] * table.coefficient
    value = torch.ones_like(table.coefficient)
    for slot, values in enumerate(linear.slot_values):
        chosen = table.weights[:, slot]
        value *= torch.where(chosen >= 0, values[chosen.clamp(min=0)], 1.0)
    bundle = torch.unique(table.weights, dim=0, return_inverse=True)[1]
    return Paths(table.source, table.weights, linear.slots, value, activity, signal, bundle)


@dataclass(frozen=True)
class _Partial:
    """Partial paths: where each stands now, where it began, and what it passed."""

    node: Tensor
    source: Tensor
    coefficient: Tensor
    weights: Tensor
    gates: Tensor

    def choose(self, rows: Tensor) -> "_Partial":
        return _Partial(*(column[rows] for column in vars(self).values()))


def _start(nodes: Tensor, source: Tensor, slots: int, gates: int) -> _Partial:
    none = lambda width: torch.full((len(nodes), width), -1, dtype=torch.long, device=nodes.device)
    ones = torch.ones(len(nodes), dtype=torch.float64, device=nodes.device)
    return _Partial(nodes, source, ones, none(slots), none(gates))


def _enumerate(program: ReluProgram, linear: Linearised, nodes: Tensor, max_paths: int) -> _Partial:
    """Carry the table of partial paths through the calls."""
    given = program.inputs[0]
    shape = (len(linear.slots), len(program.gates))
    tables = {given.id: _start(nodes, nodes, *shape)}
    for i, call in enumerate(program.calls):
        if i not in linear.edges:
            continue
        slot = program.gates.index(i) if i in program.gates else None
        parts = []
        for edges in linear.edges[i]:
            one = _start(edges.src.new_zeros(1), edges.src.new_full((1,), -1), *shape)  # at the constant-1 node
            before = one if edges.ref is None else tables[edges.ref]
            parts.append(_step(before, edges, slot, max_paths, call.where))
        out = call.outputs[0]
        if out is not None and not parts:  # all of it is 0
            tables[out.id] = _start(nodes[:0], nodes[:0], *shape)
        elif out is not None:
            tables[out.id] = _Partial(*(torch.cat(columns) for columns in zip(*(vars(p).values() for p in parts))))
    return tables[program.outputs[0].id]


def _step(table: _Partial, edges: Edges, gate_slot: int | None, max_paths: int, where: str) -> _Partial:
    """Extend each partial path by every edge that leaves its node."""
    order = edges.src.argsort(stable=True)
    src = edges.src[order]
    first, last = torch.searchsorted(src, table.node), torch.searchsorted(src, table.node, right=True)
    total = int((last - first).sum())
    if total > max_paths:
        raise ValueError(
            f"the network must have at most max_paths = {max_paths} paths. Got {total} at {where}. Enumeration is for "
            "small networks; iw.gates.neural_path_kernel needs none."
        )
    row = torch.repeat_interleave(last - first)
    within = torch.arange(total, device=row.device) - (last - first).cumsum(0)[row] + (last - first)[row]
    edge = order[first[row] + within]
    weights, gates = table.weights[row], table.gates[row]
    if edges.slot is not None and edges.weight is not None:
        weights[:, edges.slot] = edges.weight[edge]
    if gate_slot is not None:
        gates[:, gate_slot] = edge
    return _Partial(
        edges.dst[edge], table.source[row], table.coefficient[row] * edges.coefficient[edge], weights, gates
    )
