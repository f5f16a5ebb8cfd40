"""``intertwine same`` and ``diff``: whether two checkpoints are the same network, and what changed between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from .._command import FAILED, one_thread
from .._options import ExampleOptions, option
from .._outputs import tell
from . import Finding, inputs, iw, torch

_UNLIKE = "A and B must be of one architecture. Got other ones: {}. To compare features, use intertwine compare."


class Same(Finding, ExampleOptions):
    """Decide whether two checkpoints are the same network, up to the symmetries of its architecture.

    The verdict is "the same network up to symmetry" (a cast to lower precision makes no difference), "related (merged,
    fine-tuned)" with the tensors that differ, "different", or "cannot be told" if operations without a rule leave the
    symmetry open. Also prints the residual after matching. Every verdict has exit code 0; two different architectures
    have exit code 2. With --sharded, only a few tensors are in memory at a time, and only the weights are compared.

    Example:
      intertwine same a.safetensors b.safetensors --model resnet20
      intertwine same a.safetensors b.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000
      intertwine same hf:one_directory hf:another
      intertwine same hf:one_directory b.safetensors --model-b mypackage.nets:decoder
      intertwine same llama_a llama_b --sharded
    """

    python = "iw.same(a, b, example_inputs)"
    suffixes = (".safetensors",)

    a: Path
    b: Path
    model_b: str | None = None
    sharded: bool = False
    device: str = "cpu"
    out: Path | None = option("Write the group element that takes A to B (.safetensors).", metavar="FILE")

    def find(self) -> iw.matching.Match:
        found = self._part_by_part() if self.sharded else self._in_memory()
        if found.residual == float("inf"):
            said = found.reason.removeprefix("other architectures: ")
            raise ValueError(_UNLIKE.format(f"{said} ({found.verdict})"))
        return found

    def write(self, found: iw.matching.Match) -> dict[str, Path]:
        element = found.transformation
        return {} if self.out is None or element is None else {"out": element.save(self.out)}

    def words(self, found: iw.matching.Match) -> str:
        said = found.summary()
        return said if "residual" in said else f"{said}\nresidual {found.residual:.3g}"

    def _part_by_part(self) -> iw.matching.Match:
        if self.model_b is not None:
            raise ValueError("--model-b must be left out with --sharded: weights of one architecture are compared.")
        from ...matching.judgement.configurations import differing_settings
        from ...matching.judgement.verdict import SAME, UNTOLD

        a, b, sym = inputs.stored(self)
        found = iw.same(a, b, None, sym)
        if not all((path / "config.json").is_file() for path in self.reads):
            return found
        before, after = map(inputs.configuration, self.reads)
        told, _ = differing_settings(before, after, ran=False)
        if not told:
            return found
        verdict = UNTOLD if found.verdict == SAME else found.verdict  # no run has shown what the settings change
        return replace(found, verdict=verdict, reason=f"{found.reason}; configurations differ: {told}")

    def _in_memory(self) -> iw.matching.Match:
        from ..._nested import map_tensors
        from ...matching.judgement.verdict import SAME

        where = iw.lab.training.choose_device(self.device)
        sides = [inputs.read_checkpoint(path) for path in self.reads]
        if self.model is not None and self.model_b is None:  # one architecture: else the programs are compared
            _check_alike(*sides)
        if self.out is None and self.a.resolve() == self.b.resolve():
            said = f"A and B are one file, {str(self.a)!r}: nothing was compared"
            return iw.matching.Match(SAME, 0.0, 0.0, "float64", said, moved=False)
        models = self.model, self.model_b or self.model
        specs = [model or inputs.model_named_by(*pair) for model, pair in zip(models, (self.reads, self.reads[::-1]))]
        example = inputs.example_input(specs[0], self)
        pair = [inputs.open_alone(spec, side) for spec, side in zip(specs, sides)]
        one_thread(weights=sum(p.numel() for model in pair for p in model.parameters()))
        example = inputs.for_all(pair, example)
        a, b = (model.to(where) for model in pair)
        return iw.same(a, b, map_tensors(example, lambda x: x.to(where)))


def _check_alike(left: inputs.Checkpoint, right: inputs.Checkpoint) -> None:
    """Refuse checkpoints of different architectures before building models: names may differ, shapes may not."""
    from ..._io.lazy import packed

    ours, theirs = _shapes(left), _shapes(right)
    if ours is None or theirs is None:
        return
    common, most = (ours & theirs).total(), max(ours.total(), theirs.total())
    if 2 * common < most:
        for side in (left, right):
            if found := packed(side.tensors or {}):
                raise ValueError(f"{str(side.path)!r} must hold plain weights. Got {found}: dequantise them first.")
        raise ValueError(_UNLIKE.format(f"of up to {most} tensors in each, only {common} have shapes that both hold"))


def _shapes(side: inputs.Checkpoint) -> Counter[tuple[int, ...]] | None:
    """Number of tensors of each shape in a checkpoint; ``None`` if its model must be loaded first."""
    if side.tensors is not None:
        return Counter(tuple(x.shape) for x in side.tensors.values())
    if inputs.is_adapter(side.path) or not any(side.path.glob("*.safetensors*")):
        return None
    return Counter(shape for shape, _ in iw.symmetry.StoredState(side.path).headers().values())


class Diff(Finding, ExampleOptions):
    """Report what was done to checkpoint A to make B: by symmetry, by conversion and casts, by training.

    First come the changes that keep the function (heads swapped, units permuted or rescaled, gains folded, names and
    layouts converted), then what remains, tensor by tensor: casts, integer grids, pruning, the rank of updates, blocks
    that were frozen or replaced. Names and layouts of one of the two may differ from the model's. The exit code is 0
    if both compute the same function up to rounding, 1 if something changed, and 2 for bad usage or input.

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
        """Compare both checkpoints in their models, or their tensors alone if the names are those of other code."""
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
        """Compare tensors read from disk when they are needed; the model is built without weights."""
        from ...provenance.diff import with_configurations

        a, b, sym = inputs.stored(self)
        found = iw.diff(a, b, None, sym)
        if not all((path / "config.json").is_file() for path in self.reads):
            return found
        return with_configurations(found, *map(inputs.configuration, self.reads))
