"""``intertwine diff``: what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from .._command import FAILED, one_thread
from .._options import ExampleOptions
from .._outputs import tell
from . import Finding, inputs, iw, torch


class Diff(Finding, ExampleOptions):
    """Say what was done to checkpoint A to make B: by symmetry, by conversion and casts, by training.

    First what keeps the function (heads swapped, units permuted or rescaled, gains folded, names and layouts
    converted), then what remains, tensor by tensor: casts, integer grids, pruning, the rank of updates, blocks that
    were frozen or replaced. One of both may have other names and layouts than the model. The exit code is 0 where both
    compute the same function, up to rounding, 1 where something changed, and 2 for bad usage or input.

    Example:
      intertwine diff a.safetensors b.safetensors --model resnet20
      intertwine diff hf:base hf:finetuned --out changes.html
      intertwine diff base/ finetuned/ --model hf:base --sharded --json
    """

    python = "iw.diff(a, b, example_inputs)"

    a: Path
    b: Path
    sharded: bool = False

    def find(self) -> iw.Diff:
        if self.a.resolve() == self.b.resolve():
            tell(f"A and B are the same file, {str(self.a)!r}")
        return self._part_by_part() if self.sharded else self._in_memory()

    def plain(self, found: iw.Diff) -> dict[str, Any]:
        return {**super().plain(found), "blocks": dict(found.blocks)}

    def code(self, found: iw.Diff) -> int:
        return 0 if found.same_function else FAILED

    def _in_memory(self) -> iw.Diff:
        """Both checkpoints in their models; tensors alone where names are those of other code."""
        checkpoints = [inputs.read_checkpoint(path) for path in self.reads]
        specs = [self.model or inputs.model_named_by(*pair) for pair in (self.reads, self.reads[::-1])]
        example = inputs.example_input(specs[1], self)
        sides: list[torch.nn.Module | Mapping[str, torch.Tensor]] = []
        refusals = []
        for spec, checkpoint in zip(specs, checkpoints):
            try:
                sides.append(inputs.open_alone(spec, checkpoint))
            except CheckpointError as refusal:
                if checkpoint.tensors is None:
                    raise
                sides.append(checkpoint.tensors)
                refusals.append(refusal)
        if len(refusals) == 2:
            raise refusals[1]
        models = [side for side in sides if isinstance(side, torch.nn.Module)]
        plain = [x for side in sides if isinstance(side, Mapping) for x in side.values()]
        one_thread(weights=sum(x.numel() for x in [*plain, *(p for model in models for p in model.parameters())]))
        return iw.diff(sides[0], sides[1], inputs.for_all(models, example))

    def _part_by_part(self) -> iw.Diff:
        """Both checkpoints read from disk when tensors are needed; the model is built without weights."""
        from ...provenance.diff import with_configurations

        a, b, sym = inputs.stored(self)
        found = iw.diff(a, b, None, sym)
        if not all((path / "config.json").is_file() for path in self.reads):
            return found
        return with_configurations(found, *map(inputs.configuration, self.reads))
