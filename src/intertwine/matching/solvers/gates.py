"""Alignment by gates: units that are on for the same inputs are matched."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ...symmetry.action import admissible, tensors_of
from ...symmetry.gauge.batch_norms import fold
from ...symmetry.spaces import Axis, axis_size, spaces_of
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks
from ..costs.likeness import Likeness
from ..element_fit.refit import Fit
from .ascent import ascend, likeness
from .solver import Findings, Solver

_TIES = 0.9  # of all weights together; gates that agree once more count 2


@dataclass(frozen=True, eq=False)
class Gates(Solver):
    """Maximises how often the gates of matched units agree, and among such elements how alike their weights are.

    Pairs of units in spaces that ReLUs switch are the exact optimum; weights choose among pairings that gates leave
    open, and find signs, units of other spaces, and scales.

    Attributes:
        a: Gates of the network that stays, as ``iw.gates.gate_patterns`` gives them.
        b: Gates of the one that moves, on the same inputs.
    """

    name: ClassVar[str] = "gates"
    by_weights: ClassVar[bool] = False
    needs_units: ClassVar[bool] = True

    a: Mapping[str, Tensor] = field(repr=False)
    b: Mapping[str, Tensor] = field(repr=False)

    def search(self, networks: Networks) -> Findings:
        """The element, with the objective after every sweep.

        Raises:
            ValueError: If no ReLU switches the units of a space.
        """
        posed = networks.problem(torch.float64)
        seen = self.seen(posed.sym)
        carried = {name for one in seen.values() for name in one.spaces}
        if not any(s.group.permutes and s.size > 1 for s in networks.sym.spaces if s.name in carried):
            raise ValueError("a must have hidden units that ReLUs switch and a symmetry may permute. Got none.")
        value = likeness(posed, tuple(seen.values()), 1.0, _TIES)
        g, history = ascend(posed, tuple(seen.values()), 1.0, _TIES)

        def finish(g: Transformation) -> Transformation:
            full, state = posed.lift(g), tensors_of(networks.b)
            if "scale" in networks.kinds:
                ours, theirs = fold(networks.sym, tensors_of(networks.a)), fold(networks.sym_b, state)
                fit = Fit(theirs.sym, theirs.state, ours.state, full, ours.spread)
                for _ in range(2):  # the scales of one space depend on those of the next
                    fit.each_space()
                full = fit.g
            return admissible(networks.sym, full, state)

        return Findings(posed.sym, value, (g,), finish, tuple(history))

    def seen(self, sym: Symmetry, both: tuple[str, str] = ("a", "b")) -> dict[str, Likeness]:
        """How often gates agree, by the name of the ReLU; of one network with itself where ``both`` names it twice."""
        one, other = (dict(_switched(sym, getattr(self, side))) for side in both)
        return {name: Likeness.of_gates(axis, sym, on, other[name][1]) for name, (axis, on) in one.items()}


def _switched(sym: Symmetry, gates: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Axis, Tensor]]]:
    """ReLUs whose gates move along one axis alone: that axis, and the gates ``(C, E)`` along it."""
    for name, gate in gates.items():
        axes = sym.gates[name].axes if name in sym.gates else ()
        moving = [d for d, axis in enumerate(axes) if spaces_of([axis])]
        if len(moving) == 1 and axis_size(axes[moving[0]]) == gate.shape[moving[0]]:
            on = gate if gate.dtype == torch.bool else gate == 1  # the slope of a leaky ReLU where it is on
            yield name, (axes[moving[0]], on.movedim(moving[0], 0).flatten(1))
