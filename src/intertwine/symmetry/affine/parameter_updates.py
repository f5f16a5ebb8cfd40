"""Updates of parameter entries required by each reader, and their consistency.

A parameter may be read by several calls (tied embeddings, a module that runs twice). An update of it keeps the function
only if all of its readers require the same one, entry by entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...programs import Call, Program
from ...programs.operations import PARTS, REARRANGEMENTS, REPEATS, aten
from ...programs.steps import float64_handler, run_call

MOVES = REARRANGEMENTS | PARTS | REPEATS | aten("cat stack flip")
"""Operations that put entries elsewhere, or cast them, and compute nothing."""


class Obstacle(Exception):
    """A change that cannot be propagated, with the reason in words.

    Attributes:
        parameter: The parameter whose readers disagree, if that is the reason.
        call: The call at which it stops.
        through_attention: Whether the change had passed attention before.
        centred: Whether a layer norm had removed a part of it before.
    """

    def __init__(self, reason: str, call: Call | None = None, parameter: str = "") -> None:
        super().__init__(reason)
        self.call, self.parameter = call, parameter
        self.through_attention = self.centred = False


@dataclass(frozen=True)
class View:
    """A value made of entries of one parameter: the index of each, int64."""

    parameter: str
    entries: Tensor


def moved_entries(call: Call, tensors: dict[int, Tensor]) -> list[Tensor]:
    """Results of a call of ``MOVES`` for the given tensors; casts keep the numbers as they are."""
    return run_call(call, tensors, float64_handler)


@dataclass(frozen=True)
class _Update:
    """The update that one call requires of the entries of a view: ``new = factor * old + offset``."""

    view: View
    position: int
    factor: Tensor
    offset: Tensor


@dataclass
class Updates:
    """Updates of parameters, collected reader by reader."""

    program: Program  # The recorded run
    state: Mapping[str, Tensor]  # Parameters and buffers by name, in float64
    # Views of every parameter with the positions of the calls that compute with them
    readers: Mapping[str, Sequence[tuple[View, int]]]
    _made: list[_Update] = field(default_factory=list)

    def add(self, view: View, position: int, factor: Tensor | float, offset: Tensor | float) -> None:
        """Add what the call at ``position`` requires of the entries of a view; both broadcast to its shape."""
        numbers = (torch.as_tensor(t, dtype=torch.float64) for t in (factor, offset))
        self._made.append(_Update(view, position, *numbers))

    def __len__(self) -> int:
        return len(self._made)

    def check(self, first: int = 0) -> None:
        """Check that the readers of each parameter agree, for the updates from the one numbered ``first`` on."""
        for name in dict.fromkeys(update.view.parameter for update in self._made[first:]):
            self._new(name)

    def drop(self, first: int) -> None:
        """Forget the updates from the one numbered ``first`` on."""
        del self._made[first:]

    def settled(self) -> dict[str, Tensor]:
        """The parameters that change, changed."""
        names = dict.fromkeys(update.view.parameter for update in self._made)
        new = {name: self._new(name) for name in names}
        return {name: tensor for name, tensor in new.items() if not torch.equal(tensor, self.state[name])}

    def _new(self, name: str) -> Tensor:
        """One parameter with all its updates."""
        old = self.state[name]
        factors = torch.full((old.numel(),), torch.nan, dtype=torch.float64)
        offsets = torch.zeros(old.numel(), dtype=torch.float64)
        updates = [update for update in self._made if update.view.parameter == name]
        heard = {update.position for update in updates}
        one, zero = torch.ones(()).double(), torch.zeros(()).double()
        updates += [_Update(view, at, one, zero) for view, at in self.readers.get(name, ()) if at not in heard]
        for update in updates:
            at = update.view.entries.flatten()
            wanted = [t.expand(update.view.entries.shape).flatten() for t in (update.factor, update.offset)]
            known = ~factors[at].isnan()
            differs = known & ((factors[at] != wanted[0]) | (offsets[at] != wanted[1]))
            factors[at], offsets[at] = wanted
            again = (factors[at] != wanted[0]) | (offsets[at] != wanted[1])  # one entry, two updates
            if bool((differs | again).any()):
                other, wanting = (self.program.calls[c.position] for c in (update, updates[0]))
                raise Obstacle(f"{name} is also read by {other.where}", wanting, name)
        read = torch.zeros(old.numel(), dtype=torch.bool)
        for view, _ in self.readers.get(name, ()):
            read[view.entries.flatten()] = True
        if not bool(read.all()) and bool(((factors != 1) & ~factors.isnan() | (offsets != 0)).any()):
            # a longer input, or another path, reads the rest as it was
            raise Obstacle(f"this run does not read all of {name}: give Examples that do", None, name)
        factors = torch.where(factors.isnan(), 1.0, factors)
        return (old.flatten() * factors + offsets).reshape(old.shape)
