"""``intertwine same``: whether two checkpoints are one network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._example import InputShape, Tokens, example_input
from ._options import Data, Json, Model
from ._show import say

__all__ = ["same"]


def same(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A checkpoint: safetensors, a torch file of tensors, or hf:DIR.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
    model: Model = None,
    data: Data = None,
    input_shape: InputShape = None,
    tokens: Tokens = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the element from A to B (.safetensors).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide whether two checkpoints are one network, up to the symmetries of its architecture.

    Says "the same network, permuted and rescaled" (a cast to a lower precision is seen through), "related (merged,
    fine-tuned)" with the tensors that differ, "different", or "cannot be told" where operations without a rule leave
    the symmetry open; and the residual after matching. Every verdict has exit code 0.

    Example:
      intertwine same a.safetensors b.safetensors --model resnet20
      intertwine same a.safetensors b.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000
      intertwine same hf:one_directory hf:another
    """  # noqa: DOC501
    from .. import matching
    from ._hugging_face import HF
    from ._networks import named_by, open_alone, read_checkpoint
    from ._outputs import claim_file
    from ._show import print_json, tell
    from ._threads import threads_for

    if out is not None:
        if out.suffix != ".safetensors":
            raise ValueError(f"--out must end in .safetensors. Got {str(out)!r}.")
        claim_file(out, [Path(str(path).removeprefix(HF)) for path in (a, b)])
    left, right = (read_checkpoint(Path(str(path).removeprefix(HF))) for path in (a, b))
    specs = [model or named_by(side) for side in (left, right)]
    example = example_input(specs[0], data, input_shape, tokens)
    pair = open_alone(specs[0], left), open_alone(specs[1], right)
    threads_for(weights=sum(p.numel() for model in pair for p in model.parameters()))
    found = matching.same(*pair, example)
    if out is not None and found.transformation is not None:
        tell(f"wrote {found.transformation.save(out)}")
    if as_json:
        print_json(found.to_dict())
    else:
        said = found.summary()
        say(said if "residual" in said else f"{said}\nresidual {found.residual:.3g}")
