"""Neural path kernel of any ReLU network: second moments carried through its calls, tile by tile, within a budget."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..._progress import track
from ...programs import Call, Ref, operations
from ...programs.calls import last_reads
from ...programs.operations import MAX_POOLS, RESHAPES, aten, is_gate
from ...programs.program import run_call
from ..patterns import observe, structure
from ..relu_program import ReluProgram, capture_relu, check_input, reading
from .gate_products import DEFAULT, Budget, check_fits, product_kernel, tiles
from .moments import Layout, Signal, Source, Term, Uncovered, contract, in_channels

_LARGEST_LOG = math.log(torch.finfo(torch.float64).max)
_CACHE = 2**24  # bytes of a tile on a processor: larger tiles take three to six times as long
_LARGEST_TILE = 1024  # examples


@in_usual_mode
def neural_path_kernel(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    input: str = "x",
    log: bool = False,
    output: int = 0,
    budget: Budget = DEFAULT,
    progress: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Neural path kernel ``NPK(x, y) = <phi(x), phi(y)>`` of any ReLU network (P2 lemma 2.1), exactly.

    For differences from the paper see :func:`paths`: biases, batch norms and the constants of poolings.

    Paths with the same weights form one bundle, and values of different bundles are uncorrelated if all weights are
    independent random signs. So ``<phi(x), phi(y)> = E[f(x) f(y)]`` over such weights with the gates held fixed: second
    moments are carried through the captured network. On fully connected networks this is the product of layer Grams
    (theorem 3.1), which :func:`product_kernel` computes; on circular convolutions with global average pooling it is the
    sum over rotations (theorem 3.2), on residual networks the ensemble over 2^b sub-networks in O(b) (theorem 3.3).
    Sums of activations that share more than these rules know (two crops of one map) and operations without a rule are
    refused.

    Cost per layer: ``N M C`` times the number of positions, or times its square where something averages or chooses
    among positions; :func:`neural_path_kernel_cost` counts it. Gates are bool, pairs of examples run in tiles.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: Inputs ``(N, C, *S)``.
        y: Inputs ``(M, C, *S)``; by default ``x`` itself.
        input: ``"x"``, or ``"ones"`` for a value network with constant input 1 (a gated network knows its own).
        log: Return ``(log |K|, sign)`` instead: nothing overflows at any width and depth.
        output: Which output the paths lead to; all are equal if the network ends in a layer of weights.
        budget: Memory and operations that it may take; ``iw.gates.Budget``.
        progress: Whether to show progress.

    Returns:
        The kernel ``(N, M)`` in float64.

    Raises:
        ValueError: If an option or a shape is wrong, the work or memory exceeds its budget, or the result overflows.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> x = torch.randn(4, 3)
        >>> neural_path_kernel(model, x).shape
        torch.Size([4, 4])
    """
    source = model
    model, input = structure(model, input)
    program = capture_relu(model, x)
    program.check_output(output)
    if y is not None:
        check_input(model, y)
        if y.shape[1:] != x.shape[1:]:
            raise ValueError(f"y must have examples of x's shape {tuple(x.shape[1:])}. Got {tuple(y.shape[1:])}.")
    needed, most = _operations(program, len(x), len(x if y is None else y)), budget.max_operations
    if needed > most:
        raise ValueError(
            f"the kernel must need at most max_operations = {most:.1e} multiply-adds. Got {needed:.1e}. Take fewer "
            "examples or smaller images, or raise max_operations."
        )
    # of gates: one byte for each unit, eight for each position that a max pooling takes
    sizes = ((c.op, math.prod(program.shape(c.inputs[0]))) for c in program.gate_calls)
    beside = sum((8 if op in MAX_POOLS else 1) * n for op, n in sizes) * (len(x) + (0 if y is None else len(y)))
    check_fits((len(x), len(x if y is None else y)), 17 if log else 16, x.device, beside)
    biases = fully_connected(program)
    tile = 0 if biases is not None else _tile_size(program, budget.memory, x.device.type == "cpu")
    given = lambda z: z if input == "x" else torch.ones_like(z)
    sides = [[given(z), *observe(source, program, z, budget.batch_size)] for z in ([x] if y is None else [x, y])]
    if biases is not None:  # theorem 3.1, which needs one Gram of each layer and nothing else
        first, other = sides[0], (sides[1][0].flatten(1), sides[1][1:]) if len(sides) > 1 else (None, None)
        return product_kernel(first[0].flatten(1), first[1:], *other, log=log, biases=biases, progress=progress)
    kernel, scale = _tiles(program, sides, tile, output, progress)
    if log:
        sign = kernel.sign().to(torch.int8)
        return kernel.abs_().log_().add_(scale), sign
    largest = max(float(kernel.max()), -float(kernel.min()))
    if scale + math.log(max(largest, 1e-300)) > _LARGEST_LOG:
        raise ValueError(f"the kernel must fit in float64. Got entries near exp({scale:.0f}). Use log=True.")
    return kernel.mul_(math.exp(scale / 2)).mul_(math.exp(scale / 2))  # in place: it may be most of the memory


def neural_path_kernel_cost(model: nn.Module, x: Tensor, y: Tensor | None = None) -> float:
    """Multiply-adds that :func:`neural_path_kernel` needs, without doing them.

    Args:
        model: A ReLU network, in evaluation mode.
        x: Inputs ``(N, C, *S)``.
        y: Inputs ``(M, C, *S)``; by default ``x`` itself.

    Returns:
        The count: for each layer ``N M C P^2`` with all pairs of positions, ``N M C P`` without.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> neural_path_kernel_cost(model, torch.zeros(10, 3))
        6700.0
    """
    return _operations(capture_relu(structure(model, "x")[0], x), len(x), len(x if y is None else y))


def _operations(program: ReluProgram, n: int, m: int) -> float:
    power, total = 2 if needs_pairs(program) else 1, 0.0
    padded = {c.outputs[0]: c.inputs[0] for c in program.calls if c.op in CHOICES | {"aten::constant_pad_nd"}}
    for call in program.calls:
        if call.op in ("aten::addmm", "aten::mm", "aten::convolution"):
            read = next(r for r in call.inputs if r.id in program.varying)
            while read in padded and call.op == "aten::convolution":
                read = padded[read]
            _, channels, *space = program.values[read.id].shape
            total += float(n) * m * channels * math.prod(space) ** power
    return total


def _tile_size(program: ReluProgram, memory: float, cached: bool) -> int:
    """Number of examples on a side of a tile, so that it stays in a processor's cache where there is one."""
    power, most = 2 if needs_pairs(program) else 1, 1.0
    for call in (call for call in reading(program) if call.outputs[0] is not None):
        shapes = [program.shape(r) for r in (call.inputs[0], call.outputs[0])]
        most = max(most, max(math.prod(s[2:]) for s in shapes) ** power)
        if call.op in MAX_POOLS:  # one kernel for each channel
            most = max(most, shapes[1][1] * math.prod(shapes[1][2:]) ** 2)
    bytes_per_pair = 8 * 5 * most
    if memory < bytes_per_pair:
        raise ValueError(
            f"memory must hold one pair of examples, {bytes_per_pair:.1e} bytes for this network. Got {memory:.1e}."
        )
    used = min(memory, _CACHE) if cached else memory
    return min(max(1, int(math.sqrt(used / bytes_per_pair))), _LARGEST_TILE)


def _tiles(
    program: ReluProgram, sides: list[list[Tensor]], tile: int, output: int, progress: bool | None
) -> tuple[Tensor, float]:
    """Every tile of the kernel, one triangle if both sides are the same; and the scale that all tiles share."""
    left, right, same = sides[0], sides[-1], len(sides) == 1
    n, m = len(left[0]), len(right[0])
    kernel, scale = torch.empty(n, m, dtype=torch.float64, device=left[0].device), 0.0
    for i, j in track(list(tiles(n, m, same, tile)), "path kernel", enabled=progress):
        a, b = ([t[rows] for t in side] for side, rows in ((left, i), (right, j)))
        layout = Layout(len(a[0]), len(b[0]), needs_pairs(program), kernel.device)
        part, scale = propagate(Tile(program, a, b, layout), output)  # the scale is the same for all tiles
        kernel[i, j] = part
        if same and i != j:
            kernel[j, i] = part.T
    return kernel, scale


SAME = operations.COPIES | {"aten::dropout"}
CHOICES = aten("slice select index_select flip roll transpose") | operations.GATHERS
"""Each position takes the value of one other, or 0."""
MIXES = operations.INTERPOLATIONS | {"aten::sum"}
"""Fixed sums over positions: their coefficients are not values but stay on the paths."""


def needs_pairs(program: ReluProgram) -> bool:
    """Whether something averages or chooses among positions, so that pairs of positions are needed."""
    for call in program.calls:
        if call.op in operations.AVERAGE_POOLS | MAX_POOLS | MIXES and call.inputs[0].id in program.varying:
            shapes = [program.values[r.id].shape for r in (call.inputs[0], call.outputs[0]) if r is not None]
            if any(math.prod(shape[2:]) > 1 for shape in shapes):
                return True
    return False


def fully_connected(program: ReluProgram) -> tuple[bool, ...] | None:
    """Whether each layer of weights has biases, if these layers and ReLUs in turn are all there is; else ``None``."""
    biases: list[bool] = []
    gated = True  # the input counts as gated units
    for call in reading(program):
        if is_gate(call) and call.op not in MAX_POOLS and not gated:
            gated = True
        elif call.op in ("aten::mm", "aten::addmm") and gated:
            bias = call.args.get("self") if call.op == "aten::addmm" else None
            learnt = [r.id for r in call.inputs if r.id not in program.varying]
            if any(r not in program.weights for r in learnt) or has_factors(call):
                return None
            biases.append(bias is not None)
            gated = False
        elif call.op not in SAME and (call.op not in RESHAPES or biases or program.shape(call.outputs[0])[:1] != (1,)):
            return None
    return None if gated else tuple(biases)


def has_factors(call: Call) -> bool:
    """Whether a linear layer multiplies its product or its bias by a number, as ``torch.addmm(alpha=2)`` does."""
    return any(call.args.get(name, 1) != 1 for name in ("alpha", "beta"))


class Tile:
    """The second moments of a network's values between two groups of examples, each its input and its gates."""

    def __init__(self, program: ReluProgram, left: list[Tensor], right: list[Tensor], layout: Layout) -> None:
        self.program, self.layout, self.shape = program, layout, program.shape
        self.gates = {id(call): (a, b) for call, a, b in zip(program.gate_calls, left[1:], right[1:])}
        self._constants: dict[int, Source] = {}
        given = program.inputs[0]
        _, channels, *space = self.shape(given)
        masks = [side[0].reshape(len(side[0]), channels, -1).double() for side in (left, right)]
        term = Term(self.constant_source(math.prod(space)), *masks)
        self.signals = {given.id: Signal((term,), channels, tuple(space))}

    def is_activation(self, value: Any) -> bool:
        """Whether an argument is a value that depends on the input."""
        return isinstance(value, Ref) and value.id in self.program.varying

    def is_weight(self, value: Any) -> bool:
        """Whether an argument is computed from parameters alone."""
        return isinstance(value, Ref) and value.id in self.program.weights

    def constant_source(self, positions: int) -> Source:
        """The source of what is not random: the input, and constants of the model."""
        return self._constants.setdefault(positions, Source(self.layout.ones(positions), constant=True))

    def masks(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """A constant ``(1, C, P)`` as masks of both sides."""
        return value.expand(self.layout.n, -1, -1), value.expand(self.layout.m, -1, -1)

    def constant(self, call: Call, value: Any, signal: Signal) -> Tensor:
        """A constant argument of a call as ``(1, C, P)``."""
        value = self._known(call, value) if isinstance(value, Ref) else value
        tensor = torch.as_tensor(value, dtype=torch.float64, device=self.layout.device)
        return tensor.expand(self.shape(call.outputs[0])).reshape(1, signal.channels, signal.positions)

    def is_per_channel(self, parameter: Ref, signal: Signal) -> bool:
        """Whether a parameter holds one number for each channel of a signal."""
        shape = self.shape(parameter)
        dims = 2 if signal.flat else 2 + len(signal.space)
        full = (1,) * (dims - len(shape)) + tuple(shape)
        return full[0] == 1 and full[1] == signal.channels and math.prod(full[2:]) == 1

    def position_matrix(self, call: Call, signal: Signal) -> Tensor:
        """The matrix ``(P', P)`` of a map of positions, by applying it to every position."""
        given = self.shape(call.args["self"])
        axes = {d % len(given) for d in call.args["dim"] or (0,)} if call.op in ("aten::sum", "aten::mean") else set()
        if signal.flat or self.shape(call.outputs[0])[:2] != given[:2] or axes & {0, 1}:
            refuse(call, "an operation on other axes than positions")
        eye = torch.eye(signal.positions, dtype=torch.float64, device=self.layout.device)
        x, *others = call.inputs
        tensors = {x.id: eye.view(-1, 1, *signal.space)} | {ref.id: self._known(call, ref) for ref in others}
        kept = {name: value for name, value in call.args.items() if name != "dtype"}
        return run_call(replace(call, args=kept), tensors)[0].reshape(signal.positions, -1).T

    def _known(self, call: Call, ref: Ref) -> Tensor:
        data = self.program.values[ref.id].data
        if data is None:
            refuse(call, "a constant of unknown value")
        return data.to(self.layout.device)


def refuse(call: Call, what: str) -> NoReturn:
    """Raise an error about what no rule covers."""
    raise Uncovered(
        "model must be made of linear and convolutional layers, batch norms, poolings, sums, concatenations of "
        f"channels and ReLUs on (N, C, *S). Got {what}: {call.where} at {call.line}. iw.gates.paths enumerates small "
        "networks of any linear maps."
    )


KernelRule = Callable[[Tile, Call, Signal], Signal]

_RULES: dict[str, KernelRule] = {}


def register_kernel_rule(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Register a rule of the path kernel: decorates a function of the tile, a call and the signal that it reads.

    The rule returns the signal of the call's result. A wrong rule gives a wrong kernel: test it against
    ``iw.gates.paths``.

    Args:
        *ops: Qualified operation names without overload or trailing underscore, such as ``"aten::neg"``.

    Raises:
        ValueError: If a name is not qualified.
    """  # noqa: DOC502 - raised by what it calls
    return operations.registering(_RULES, ops)


def propagate(tile: Tile, output: int) -> tuple[Tensor, float]:
    """The kernel ``(n, m)`` of one output for a tile of examples, up to a factor, and the factor's logarithm."""
    program = tile.program
    for call, done in zip(program.calls, last_reads(program.calls, [program.outputs[0]])):
        read = next((r.id for r in call.inputs if r.id in program.varying), None)
        if read is not None and read not in tile.signals:
            refuse(call, "a result of an operation that no rule of the path kernel covers")
        if read is not None and call.op not in _RULES:
            refuse(call, "an operation that no rule of the path kernel covers")
        if read is not None:
            found = _RULES[call.op](tile, call, tile.signals[read])
            tile.signals.update({out.id: found for out in call.outputs[:1] if out is not None})
        for number in done:
            tile.signals.pop(number, None)
    final = tile.signals[program.outputs[0].id]
    channel, position = divmod(output, final.positions)
    kernel, scale = contract(in_channels(final, [channel], tile.layout), tile.layout)
    return (kernel[:, position, :, position] if tile.layout.pairs else kernel[position]), scale
