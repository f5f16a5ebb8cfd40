"""Work of ``intertwine same``."""

from collections import Counter

from ... import matching
from ..._nested import map_tensors
from ...lab.training import choose_device
from ...matching.judgement.verdict import SAME
from ...symmetry import ShardedState
from .._running import threads_for
from ..commands.same import SameOptions
from ..inputs.adapters import is_adapter
from ..inputs.example import example_input, for_all
from ..inputs.networks import Checkpoint, model_named_by, open_alone, read_checkpoint, symmetry_of
from ..outputs.files import claim_file
from ..outputs.show import print_json, say, tell

_UNLIKE = "A and B must be of one architecture. Got other ones: {}. To compare features, use intertwine compare."


def run(asked: SameOptions) -> None:
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture."""
    claim_file(asked.out, [asked.a, asked.b])
    found = _sharded(asked) if asked.sharded else _opened(asked)
    if found.residual == float("inf"):
        said = found.reason.removeprefix("other architectures: ")
        raise ValueError(_UNLIKE.format(f"{said} ({found.verdict})"))
    if asked.out is not None and found.transformation is not None:
        tell(f"wrote {found.transformation.save(asked.out)}")
    if asked.as_json:
        print_json(found.to_dict())
    else:
        said = found.summary()
        say(said if "residual" in said else f"{said}\nresidual {found.residual:.3g}")


def _sharded(asked: SameOptions) -> matching.Match:
    """Both checkpoints read part by part."""
    sym = symmetry_of(asked.model or model_named_by(asked.a), asked)
    return matching.same_sharded(asked.a, asked.b, sym)


def _opened(asked: SameOptions) -> matching.Match:
    """Both checkpoints in their models."""
    where = choose_device(asked.device)
    left, right = (read_checkpoint(path) for path in (asked.a, asked.b))
    if asked.model is not None:  # one architecture: else the programs are compared
        _check_alike(left, right)
    if asked.out is None and asked.a.resolve() == asked.b.resolve():
        said = f"A and B are one file, {str(asked.a)!r}: nothing was compared"
        return matching.Match(SAME, 0.0, 0.0, "float64", said, moved=False)
    specs = [asked.model or model_named_by(side.path) for side in (left, right)]
    example = example_input(specs[0], asked)
    pair = open_alone(specs[0], left), open_alone(specs[1], right)
    threads_for(weights=sum(p.numel() for model in pair for p in model.parameters()))
    example = for_all(pair, example)
    a, b = (model.to(where) for model in pair)
    return matching.same(a, b, map_tensors(example, lambda x: x.to(where)))


def _check_alike(left: Checkpoint, right: Checkpoint) -> None:
    """Refuse checkpoints of other architectures before their models are built: names may differ, shapes may not."""
    ours, theirs = _shapes(left), _shapes(right)
    if ours is None or theirs is None:
        return
    common, most = (ours & theirs).total(), max(ours.total(), theirs.total())
    if 2 * common < most:
        raise ValueError(_UNLIKE.format(f"of up to {most} tensors in each, only {common} have shapes that both hold"))


def _shapes(side: Checkpoint) -> Counter[tuple[int, ...]] | None:
    """How often each shape occurs among the tensors of a checkpoint; ``None`` where its model must be loaded first."""
    if side.tensors is not None:
        return Counter(tuple(x.shape) for x in side.tensors.values())
    if is_adapter(side.path) or not any(side.path.glob("*.safetensors*")):
        return None
    return Counter(shape for shape, _ in ShardedState(side.path).headers().values())
