"""Use-def graph of a program, with views of parameters, and updates of their entries that calls require.

A parameter may be read by several calls (tied embeddings, a module that runs twice). An update of it keeps the function
only if all of its readers require the same one, entry by entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..._nested import by_key
from ...programs import Call, Program, Ref
from ...programs.calls import makers
from ...programs.operations import PARTS, REARRANGEMENTS, REPEATS, aten
from ...programs.program import float64_handler, run_call

MOVES = REARRANGEMENTS | PARTS | REPEATS | aten("cat stack flip")
"""Operations that put entries elsewhere, or cast them, and compute nothing."""


class Obstacle(Exception):
    """A change that cannot be propagated, with the reason in words and where it stops."""

    def __init__(self, reason: str, call: Call | None = None, parameter: str = "") -> None:
        super().__init__(reason)
        self.call, self.parameter = call, parameter  # whose readers disagree, if they do
        self.through_attention = self.centred = False  # what it had passed, or lost to a layer norm, before


@dataclass(frozen=True)
class View:
    """A value made of entries of one parameter, or of another source: the index of each, int64."""

    source: str
    entries: Tensor


_Update = tuple[View, int, Tensor, Tensor]  # entries, position of the call, factor and offset


class Graph:
    """The use-def graph of a program: readers and makers of its values, and which are entries of parameters."""

    def __init__(self, program: Program, state: Mapping[str, Tensor]) -> None:
        self.program, self.state = program, dict(state)
        self.outputs = {ref.id for ref in program.outputs}
        self.updates: list[_Update] = []  # that calls require, in the order in which they were found

    def making(self) -> Iterator[tuple[int, Call, Ref]]:
        """Calls that make something, in the order in which they ran: position, call and first output."""
        for position, call in enumerate(self.program.calls):
            if call.outputs and (out := call.outputs[0]) is not None:
                yield position, call, out

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Number of every value to the positions of the calls that read it."""
        return by_key(
            (number, k) for k, call in enumerate(self.program.calls) for number in {r.id for r in call.inputs}
        )

    @cached_property
    def makers(self) -> dict[int, Call]:
        """Number of every value to the call that made it."""
        return makers(self.program.calls)

    def carried(self, start: Mapping[int, View]) -> dict[int, View]:
        """Some values, and all that calls make of the entries of one of them by moving these about."""
        found = dict(start)
        for call in self.program.calls:
            if call.op not in MOVES or not all(ref.id in found for ref in call.inputs):
                continue
            given = {ref.id: found[ref.id] for ref in call.inputs}
            sources = {view.source for view in given.values()}
            if len(sources) == 1:
                (source,) = sources
                moved = run_call(call, {number: view.entries for number, view in given.items()}, float64_handler)
                found |= {out.id: View(source, entries) for out, entries in zip(call.made, moved)}
        return found

    @cached_property
    def views(self) -> dict[int, View]:
        """Number of every value that is made of entries of one parameter to these entries."""
        numbered = {name: torch.arange(tensor.numel()).view_as(tensor) for name, tensor in self.state.items()}
        return self.carried({self.program.states[name].id: View(name, rows) for name, rows in numbered.items()})

    def held(self, view: View) -> Tensor:
        """The numbers of a view, float64."""
        return self.state[view.source].flatten()[view.entries]

    @cached_property
    def uses(self) -> dict[str, list[tuple[View, int]]]:
        """Name of every parameter to its views and the positions of the calls that compute with them; -1: returned."""
        found: dict[str, list[tuple[View, int]]] = {}
        for number, view in self.views.items():
            for position in self.readers.get(number, ()):
                if not any(out.id in self.views for out in self.program.calls[position].made):
                    found.setdefault(view.source, []).append((view, position))
            if number in self.outputs:
                found.setdefault(view.source, []).append((view, -1))
        return found

    def origin(self, ref: Ref) -> tuple[Ref, Call | None]:
        """The value behind the casts and views that a value was made by, and the call that made it."""
        while (call := self.makers.get(ref.id)) is not None and call.op in MOVES and len(call.inputs) == 1:
            ref = call.inputs[0]
        return ref, call

    def require(self, view: View, position: int, factor: Tensor | float, offset: Tensor | float) -> None:
        """Note the update ``new = factor * old + offset`` that a call requires of the entries of a view."""
        wide = lambda number: torch.as_tensor(number, dtype=torch.float64)
        self.updates.append((view, position, wide(factor), wide(offset)))

    def settled(self, first: int = 0) -> dict[str, Tensor]:
        """The parameters that updates, from the one numbered ``first`` on, change; their readers must agree."""
        names = dict.fromkeys(update[0].source for update in self.updates[first:])
        new = {name: self._new(name) for name in names}
        return {name: tensor for name, tensor in new.items() if not torch.equal(tensor, self.state[name])}

    def _new(self, name: str) -> Tensor:
        """One parameter with all its updates."""
        old = self.state[name]
        factors = torch.full((old.numel(),), torch.nan, dtype=torch.float64)
        offsets = torch.zeros(old.numel(), dtype=torch.float64)
        updates = [update for update in self.updates if update[0].source == name]
        heard = {update[1] for update in updates}
        one, zero = torch.ones(()).double(), torch.zeros(()).double()
        updates += [(view, at, one, zero) for view, at in self.uses.get(name, ()) if at not in heard]
        for view, position, *numbers in updates:
            at = view.entries.flatten()
            wanted = [t.expand(view.entries.shape).flatten() for t in numbers]
            known = ~factors[at].isnan()
            differs = known & ((factors[at] != wanted[0]) | (offsets[at] != wanted[1]))
            factors[at], offsets[at] = wanted
            again = (factors[at] != wanted[0]) | (offsets[at] != wanted[1])  # one entry, two updates
            if bool((differs | again).any()):
                other = "whoever calls the model" if position < 0 else self.program.calls[position].where
                raise Obstacle(f"{name} is also read by {other}", self.program.calls[updates[0][1]], name)
        read = torch.zeros(old.numel(), dtype=torch.bool)
        for view, _ in self.uses.get(name, ()):
            read[view.entries.flatten()] = True
        if not bool(read.all()) and bool(((factors != 1) & ~factors.isnan() | (offsets != 0)).any()):
            # a longer input, or another path, reads the rest as it was
            raise Obstacle(f"this run does not read all of {name}: give Examples that do", None, name)
        factors = torch.where(factors.isnan(), 1.0, factors)
        return (old.flatten() * factors + offsets).reshape(old.shape)
