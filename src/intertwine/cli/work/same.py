"""Work of ``intertwine same``."""

from __future__ import annotations

from ... import matching
from ..._nested import map_tensors
from ...lab.training import choose_device
from .._networks import named_by, open_alone, read_checkpoint, symmetry_of
from .._outputs import claim_file
from .._running import threads_for
from .._show import print_json, say, tell
from ..commands.same import SameOptions
from ..inputs.example import example_input

__all__ = ["run"]


def run(asked: SameOptions) -> None:
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture."""
    if asked.out is not None:
        if asked.out.suffix != ".safetensors":
            raise ValueError(f"--out must end in .safetensors. Got {str(asked.out)!r}.")
        claim_file(asked.out, [asked.a, asked.b])
    found = _sharded(asked) if asked.sharded else _opened(asked)
    if asked.out is not None and found.transformation is not None:
        tell(f"wrote {found.transformation.save(asked.out)}")
    if asked.as_json:
        print_json(found.to_dict())
    else:
        said = found.summary()
        say(said if "residual" in said else f"{said}\nresidual {found.residual:.3g}")


def _sharded(asked: SameOptions) -> matching.Match:
    """Both checkpoints read part by part."""
    sym = symmetry_of(asked.a, asked, asked.model)
    return matching.same_sharded(asked.a, asked.b, sym)


def _opened(asked: SameOptions) -> matching.Match:
    """Both checkpoints in their models."""
    where = choose_device(asked.device)
    left, right = (read_checkpoint(path) for path in (asked.a, asked.b))
    specs = [asked.model or named_by(side) for side in (left, right)]
    example = example_input(specs[0], asked)
    pair = open_alone(specs[0], left), open_alone(specs[1], right)
    threads_for(weights=sum(p.numel() for model in pair for p in model.parameters()))
    a, b = (model.to(where) for model in pair)
    return matching.same(a, b, map_tensors(example, lambda x: x.to(where)))
