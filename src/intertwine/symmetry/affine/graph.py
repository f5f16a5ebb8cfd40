"""Use-def graph of a program, with views of parameters."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor

from ...programs import Call, Program, Ref
from .parameter_updates import MOVES, Obstacle, View, moved_entries


class Graph:
    """The use-def graph of a program: readers and producers of its values, and which are entries of parameters.

    Args:
        program: The run.
        state: Parameters and buffers by name, in float64.
    """

    def __init__(self, program: Program, state: Mapping[str, Tensor]) -> None:
        self.program, self.state = program, dict(state)
        self.live = set(program.ancestors(program.outputs)) | {
            i for i, call in enumerate(program.calls) if not call.outputs
        }
        self.outputs = {ref.id for ref in program.outputs}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Number of every value to the positions of the calls that read it."""
        found: dict[int, list[int]] = {}
        for position in sorted(self.live):
            for number in {ref.id for ref in self.program.calls[position].inputs}:
                found.setdefault(number, []).append(position)
        return found

    @cached_property
    def producers(self) -> dict[int, Call]:
        """Number of every value to the call that made it."""
        calls = (self.program.calls[i] for i in sorted(self.live))
        return {out.id: call for call in calls for out in call.outputs if out is not None}

    @cached_property
    def views(self) -> dict[int, View]:
        """Number of every value that is made of entries of one parameter to these entries."""
        found: dict[int, View] = {}
        for name, ref in self.program.states.items():
            shape = self.program.values[ref.id].shape
            if name in self.state:
                found[ref.id] = View(name, torch.arange(self.state[name].numel()).reshape(shape))
        for position in sorted(self.live):
            call = self.program.calls[position]
            sources = [found.get(ref.id) for ref in call.inputs]
            known = [source for source in sources if source is not None]
            if call.op not in MOVES or not known or len(known) < len(sources):
                continue
            if len({source.parameter for source in known}) > 1:
                continue
            entries = {ref.id: source.entries for ref, source in zip(call.inputs, known)}
            made = moved_entries(call, entries)
            for out, moved in zip([o for o in call.outputs if o is not None], made):
                found[out.id] = View(known[0].parameter, moved)
        return found

    @cached_property
    def uses(self) -> dict[str, list[tuple[View, int]]]:
        """Name of every parameter to its views and the positions of the calls that compute with them."""
        found: dict[str, list[tuple[View, int]]] = {}
        for number, view in self.views.items():
            for position in self.readers.get(number, ()):
                outputs = self.program.calls[position].outputs
                if not any(out is not None and out.id in self.views for out in outputs):
                    found.setdefault(view.parameter, []).append((view, position))
            if number in self.outputs:
                raise Obstacle(f"the model returns {view.parameter}")
        return found

    def origin(self, ref: Ref) -> tuple[Ref, Call | None]:
        """The value behind the casts and views that a value was made by, and the call that made it."""
        *_, source = self._behind(ref)
        return source, self.producers.get(source.id)

    def moved(self, source: Ref, ref: Ref, entries: Tensor) -> Tensor:
        """Other entries at ``source``, moved by the casts and views through which ``ref`` was made of it."""
        *path, _ = self._behind(ref)
        for at in reversed(path):
            call = self.producers[at.id]
            outputs = [out for out in call.outputs if out is not None]
            entries = moved_entries(call, {source.id: entries})[outputs.index(at)]
            source = at
        return entries

    def _behind(self, ref: Ref) -> Iterator[Ref]:
        """A value, the one that it is a view or cast of, and so on back to the origin."""
        yield ref
        while (call := self.producers.get(ref.id)) is not None and call.op in MOVES and len(call.inputs) == 1:
            ref = call.inputs[0]
            yield ref
