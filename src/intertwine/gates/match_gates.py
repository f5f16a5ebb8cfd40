"""Units of two networks matched by when they are on."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .._result import UNSAVED, Result
from ..matching import Gates, align
from ..matching.coordinates.problem import Problem
from ..matching.costs import Costs
from ..matching.solvers.responses import seeing
from ..symmetry import Symmetry, Transformation
from ..symmetry.transformation import identity
from .gated_network import GatedNetwork
from .patterns import gate_patterns

__all__ = ["GateMatch", "SpaceMatch", "match_gates"]


@dataclass(frozen=True)
class SpaceMatch:
    """How the units of one space were matched."""

    space: str  # Name of the space
    layers: tuple[str, ...]  # The ReLUs that switch its units
    agreement: float  # Share of examples (and positions) for which matched units are both on or both off
    before: float  # The same with the units as they come
    # Units whose gates are those of another unit of the same network (above all units that are never on, or always):
    # gates cannot tell them apart
    ambiguous: int


@dataclass(frozen=True, repr=False)
class GateMatch(Result):
    """What ``match_gates`` found.

    Attributes:
        spaces: Space by space.
        unmatched: Spaces that no gate switches, matched by weights alone.
        transformation: Moves A to B: units by gates, scales and signs by weights. It is not part of the saved result:
            use its own ``save``.
    """

    spaces: tuple[SpaceMatch, ...]
    unmatched: tuple[str, ...] = ()
    transformation: Transformation | None = field(default=None, metadata=UNSAVED)

    @property
    def agreement(self) -> float:
        """Mean agreement of the matched spaces."""
        return sum(s.agreement for s in self.spaces) / len(self.spaces)

    def summary(self) -> str:
        """The agreement of gates in every space."""
        lines = [f"{s.space}: {s.agreement:.1%} of gates agree (before {s.before:.1%})" for s in self.spaces]
        lines += [f"{name}: no gates, matched by weights" for name in self.unmatched]
        return "\n".join(lines)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per matched space."""
        return [{**vars(s), "layers": ", ".join(s.layers)} for s in self.spaces]


@in_usual_mode
def match_gates(a: nn.Module, b: nn.Module, x: Tensor, *, sym: Symmetry | None = None) -> GateMatch:
    """Align two networks by their gates: pair units that are on for the same inputs.

    Gates do not change when units are rescaled. In each space that ReLUs switch (several of them, in a residual stream)
    the pairing with the largest number of agreeing gates is found, exactly; weights in balanced coordinates choose
    among pairings that gates leave open, signs in front of batch norms, and units of other spaces, and scales are
    fitted to them. A copy that was permuted and rescaled is recovered exactly where gates or weights tell all units
    apart. Gates of ``|q|`` follow the signs of units and are not looked at.

    Args:
        a: A ReLU network, in evaluation mode.
        b: A network of the same architecture.
        x: Inputs ``(N, C, *S)`` that switch many units: the more, the fewer units look alike.
        sym: The symmetry of both where it is known already.

    Returns:
        The match; ``iw.symmetries(a, x).act(match.transformation, a)`` is A in B's order.

    Raises:
        ValueError: If a network is gated, the architectures differ, or no gate switches any space.

    Examples:
        >>> import torch, intertwine as iw
        >>> _ = torch.manual_seed(0)
        >>> a, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(200, 4)
        >>> sym = iw.symmetries(a, x)
        >>> b = sym.act(sym.random(seed=1), a)
        >>> match = match_gates(a, b, x, sym=sym)
        >>> match.agreement, all(torch.allclose(p, q) for p, q in
        ...                      zip(sym.act(match.transformation, a).parameters(), b.parameters()))
        (1.0, True)
    """
    for model in (a, b):
        if isinstance(model, GatedNetwork):
            kind = "soft gates, which change when units are rescaled" if model.gate != "hard" else "a gated network"
            raise ValueError(
                f"a and b must be ReLU networks, whose gates are their own units'. Got {kind}. Give its .value or "
                ".gating.network, whichever is meant."
            )
    method = Gates(gate_patterns(b, x), gate_patterns(a, x))
    found = align(b, a, x[:2], method=method, sym=sym, chance=False)
    g = found.transformation
    plain, still = Problem.plain(found.symmetry, {}, {}), identity(found.symmetry)
    crosses, ours, theirs = (method.seen(found.symmetry, both) for both in (("a", "b"), ("a", "a"), ("b", "b")))
    cross, one, other = (seeing(plain, seen, 1.0, 0.0) for seen in (crosses, ours, theirs))
    tables = [Costs(*of) for of in ((cross, still), (cross, g), (one, still), (other, still))]
    matched, unmatched = [], []
    for space in found.symmetry.spaces:
        layers = tuple(name for name, seen in crosses.items() if space.name in seen.layout.spaces)
        if not layers:
            unmatched.append(space.name)
            continue
        gains = [gain for table in tables for gain in table.of(space.name).values()]
        before, after, most, _ = (float(gain.diagonal(dim1=-2, dim2=-1).sum()) for gain in gains)
        twins = ((gain == gain.diagonal(dim1=-2, dim2=-1)[..., None]).sum(-1) > 1 for gain in gains[2:])
        alike = max(int(some.sum()) for some in twins)
        end, start = ((1 + agreed / most) / 2 for agreed in (after, before))
        matched.append(SpaceMatch(space.name, layers, end, start, alike))
    return GateMatch(tuple(matched), tuple(unmatched), g)
