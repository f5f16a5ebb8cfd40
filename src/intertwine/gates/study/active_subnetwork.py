"""Active sub-network of one input: its units, its number of paths, and its affine map."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..._result import Result
from ..kernels.path.path_kernel import neural_path_kernel
from ..patterns import fixed_gates, observe, structure
from ..relu_program import ReluProgram, capture_relu


@dataclass(frozen=True, repr=False)
class ActiveSubnetwork(Result):
    """The sub-network of one input: the gates that it opens, and what the network does with these gates.

    Attributes:
        layers: Names of the gates, in the order in which they run.
        gates: For each of them the gates of the input ``(C, *S)``: bool; values for leaky ReLUs and soft gates; for max
            poolings the positions taken.
        weights: Effective linear map ``(outputs, C, *S)``: what each output multiplies the value network's input by.
        offsets: What biases add ``(outputs,)``.
        outputs: ``weights`` applied to the input, plus ``offsets`` ``(outputs,)``: exactly the network's outputs.
        log_overlap: Natural logarithm of the overlap of the input with itself: how many paths to one output are on.
            Where layers share weights between positions, pairs of paths in one bundle are counted.
    """

    layers: tuple[str, ...]
    gates: tuple[Tensor, ...]
    weights: Tensor
    offsets: Tensor
    outputs: Tensor
    log_overlap: float

    def contributions(self, output: int, value: Tensor) -> Tensor:
        """What every entry of the value network's input adds to one output, ``weights * value`` ``(C, *S)``."""
        return self.weights[output] * value.to(self.weights)

    def summary(self) -> str:
        """How many paths and units are on for the input."""
        frame = self.to_frame()
        lines = [f"{r.layer}: {r.on:g} of {r.units} units on ({r.share:.0%})" for r in frame.itertuples()]
        count = f"10^{self.log_overlap / math.log(10):.1f} paths are" if self.log_overlap > -math.inf else "No path is"
        return "\n".join([f"{count} on for this input:", *lines])

    def _rows(self) -> list[dict[str, Any]]:
        """One row per ReLU layer: how many of its units are on; a leaky or soft gate counts by its value."""
        rows = []
        for name, gate in zip(self.layers, self.gates):
            if gate.dtype != torch.long:
                on = float(gate.double().sum())
                rows.append({"layer": name, "units": gate.numel(), "on": on, "share": on / gate.numel()})
        return rows


@in_usual_mode
def active_subnetwork(model: nn.Module, x: Tensor) -> ActiveSubnetwork:
    """Find the sub-network that one input switches on (P2 definition A.3) and the affine map that it computes.

    With its gates held fixed a ReLU network is affine: the second of the two linearities of a gated network, and the
    reason that one input's output can be explained exactly, entry by entry. The map holds as far as no gate changes. Of
    a gated network it is the map of the value network, from ``x`` or from the constant 1 that it is given.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: One input ``(1, C, *S)``.

    Returns:
        The sub-network; tensors are on the CPU, floating-point ones in float64.

    Raises:
        ValueError: If there is more than one input, or the model is not made of gates and linear maps.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> found = active_subnetwork(model, torch.tensor([[1.0, -1.0]]))
        >>> found.gates[0], bool(found.weights[0, 1] == 0)
        (tensor([ True, False]), True)
    """
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != 1:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be one input (1, C, *S). Got {shape}.")
    value, input = structure(model, "x")
    program = capture_relu(value, x)
    gates = observe(model, program, x)
    log = neural_path_kernel(model, x, input="ones", log=True)[0]
    given = (x if input == "x" else torch.ones_like(x)).detach()
    weights, outputs = _affine(program, gates, given)
    offsets = outputs - (weights * given.cpu().double()).flatten(1).sum(1)
    return ActiveSubnetwork(program.names, tuple(g[0].cpu() for g in gates), weights, offsets, outputs, float(log))


def _affine(program: ReluProgram, gates: Sequence[Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian ``(outputs, C, *S)`` and outputs ``(outputs,)`` at fixed gates."""
    z = given.clone().requires_grad_(True)
    with torch.enable_grad():
        (out,) = program.run(z, handlers=fixed_gates(program, gates))
    rows = [torch.autograd.grad(out[0, o], z, retain_graph=True)[0][0] for o in range(out.shape[1])]
    return torch.stack(rows).cpu().double(), out[0].detach().cpu().double()
