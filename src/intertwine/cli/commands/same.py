"""``intertwine same``: whether two checkpoints are one network."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .._command import one_thread
from .._options import ExampleOptions, option
from . import Finding, inputs, iw

_UNLIKE = "A and B must be of one architecture. Got other ones: {}. To compare features, use intertwine compare."


class Same(Finding, ExampleOptions):
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture.

    Says "the same network up to symmetry" (a cast to a lower precision is seen through), "related (merged,
    fine-tuned)" with the tensors that differ, "different", or "cannot be told" where operations without a rule leave
    the symmetry open; and the residual after matching. Every verdict has exit code 0, two architectures have exit code
    2. With --sharded a few tensors of each checkpoint are in memory, and the weights alone are compared.

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
    out: Path | None = option("Write the element from A to B (.safetensors).", metavar="FILE")

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
        a, b, sym = inputs.stored(self)
        return iw.same(a, b, None, sym)

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
    """Refuse checkpoints of other architectures before their models are built: names may differ, shapes may not."""
    ours, theirs = _shapes(left), _shapes(right)
    if ours is None or theirs is None:
        return
    common, most = (ours & theirs).total(), max(ours.total(), theirs.total())
    if 2 * common < most:
        raise ValueError(_UNLIKE.format(f"of up to {most} tensors in each, only {common} have shapes that both hold"))


def _shapes(side: inputs.Checkpoint) -> Counter[tuple[int, ...]] | None:
    """How often each shape occurs among the tensors of a checkpoint; ``None`` where its model must be loaded first."""
    if side.tensors is not None:
        return Counter(tuple(x.shape) for x in side.tensors.values())
    if inputs.is_adapter(side.path) or not any(side.path.glob("*.safetensors*")):
        return None
    return Counter(shape for shape, _ in iw.symmetry.StoredState(side.path).headers().values())
