"""``intertwine symmetries``: the group that an architecture has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ._options import Data, Json, Model

__all__ = ["symmetries"]


def symmetries(
    model: Model = None,
    data: Data = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", metavar="N,C,H,W", help="Shape of a random example, batch first.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, help="The example holds token numbers below this, not real numbers."),
    ] = None,
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

    if model is None:
        raise ValueError("--model must be given. Got none. Say --model resnet20, for example.")
    if out is not None:
        _check_out(out)
    network, example = _made(model, meta), _example(model, data, input_shape, tokens, meta)
    sym = symmetry.symmetries(network, example, front=front)  # type: ignore[arg-type]
    if out is not None:
        written = sym.to_html(out) if out.suffix in (".html", ".htm") else sym.save(out)
        tell(f"wrote {written}")
    if explain is not None:
        lines = [sym.explain(explain, i) for i in range(len(sym.layouts[_known(sym, explain)].axes))]
        print_json(lines) if as_json else print("\n".join(lines))
    elif as_json:
        print_json({**sym.to_dict(), "dim": sym.dim, "log_size": sym.log_size})
    else:
        print(sym.summary())


def _check_out(out: Path) -> None:
    from .._io import check_writable

    if check_writable(out).suffix not in (".html", ".htm", ".json", ".parquet"):
        raise ValueError(f"--out must end in .html, .json or .parquet. Got {str(out)!r}.")


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


def _example(spec: str, data: str | None, shape: str | None, tokens: int | None, meta: bool) -> Any:
    """The example that was asked for, or else one of the built-in network's own shape.

    Raises:
        ValueError: If the shape does not read, or nothing says which shape.
    """
    import torch

    from ._models import is_builtin

    device = "meta" if meta else "cpu"
    if shape is not None:
        try:
            sizes = [int(part) for part in shape.split(",")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise ValueError(f"--input-shape must be positive whole numbers joined by commas. Got {shape!r}.")
        generator = torch.Generator().manual_seed(0)
        made = torch.randint(tokens, sizes, generator=generator) if tokens else torch.randn(sizes, generator=generator)
        return made.to(device)
    if data is not None:
        from ..lab.data import load

        return load(data).test.inputs[:2].to(device)
    if is_builtin(spec):
        from ..lab import networks

        return torch.randn(2, *networks.input_shape(spec), generator=torch.Generator().manual_seed(0)).to(device)
    raise ValueError(
        "--input-shape or --data must be given for a model of your own. Got neither. Say --input-shape 2,3,32,32."
    )
