"""``intertwine symmetries``: the group that an architecture has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ._example import InputShape, Tokens, example_input
from ._options import Data, Json, Model
from ._show import say

__all__ = ["symmetries"]


def symmetries(
    model: Model = None,
    data: Data = None,
    input_shape: InputShape = None,
    tokens: Tokens = None,
    meta: Annotated[bool, typer.Option("--meta", help="Build the model without weights: any size fits.")] = False,
    front: Annotated[
        str, typer.Option("--front", help="auto, record, or export (strict: no control flow on data).")
    ] = "auto",
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NAME", help="Say of one parameter why each axis moves or stays.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the page (.html) or data (.json).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the weight-space symmetries of an architecture, and say what restricts them.

    Prints one line for every hidden space: its size, its group, the generators of scales and signs, and which operation
    takes away the rest. The page draws where in the network each space lives. No weights are needed.

    Example:
      intertwine symmetries --model resnet20 --out resnet20.html
      intertwine symmetries --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --meta
      intertwine symmetries --model resnet20 --explain layer1.0.conv1.weight
    """  # noqa: DOC501
    from .. import symmetry
    from ._show import print_json, tell
    from ._threads import threads_for

    if model is None:
        raise ValueError("--model must be given. Got none. Say --model resnet20, for example.")
    if out is not None:
        _check_out(out)
    network, example = _made(model, meta), example_input(model, data, input_shape, tokens, meta)
    threads_for(weights=sum(p.numel() for p in network.parameters()))
    sym = symmetry.symmetries(network, example, front=front)  # type: ignore[arg-type]
    if out is not None:
        written = sym.to_html(out) if out.suffix in (".html", ".htm") else sym.save(out)
        tell(f"wrote {written}")
    if explain is not None:
        lines = [sym.explain(explain, i) for i in range(len(sym.layouts[_known(sym, explain)].axes))]
        print_json(lines) if as_json else say("\n".join(lines))
    elif as_json:
        print_json({**sym.to_dict(), "dim": sym.dim, "log_size": sym.log_size})
    else:
        say(sym.summary())


def _check_out(out: Path) -> None:
    from ._outputs import claim_file

    if not out.is_dir() and out.suffix not in (".html", ".htm", ".json", ".parquet"):
        raise ValueError(f"--out must end in .html, .json or .parquet. Got {str(out)!r}.")
    claim_file(out)


def _made(spec: str, meta: bool) -> Any:
    import torch

    from ._models import build_model

    with torch.device("meta" if meta else "cpu"):
        return build_model(spec)


def _known(sym: Any, name: str) -> str:
    found = sym.aliases.get(name, name)
    if found not in sym.layouts:
        raise ValueError(
            f"--explain must name a parameter. Got {name!r}. There are {', '.join(list(sym.layouts)[:6])}, ..."
        )
    return found
