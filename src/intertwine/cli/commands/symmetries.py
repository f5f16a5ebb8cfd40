"""``intertwine symmetries``: the group that an architecture has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..._words import near
from .._options import OF_PAGES, NetworkOptions, option, page_or_data
from .._outputs import claim_file, print_json, say, show, write_one
from . import inputs, iw


@dataclass(frozen=True)
class SymmetriesOptions(NetworkOptions):
    """Find the weight-space symmetries of an architecture, and say what restricts them.

    Prints one line for every hidden space: its size, its group, the generators of scales and signs, and which operation
    takes away the rest. The page draws where in the network each space lives. No weights are needed.

    Example:
      intertwine symmetries resnet20 --out resnet20.html
      intertwine symmetries mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --meta
      intertwine symmetries resnet20 --explain layer1.0.conv1.weight
    """

    suffixes = OF_PAGES

    explain: str | None = option(None, "Say of one parameter why each axis moves or stays.", metavar="NAME")
    out: Path | None = page_or_data()


def run(asked: SymmetriesOptions) -> None:
    """Find the weight-space symmetries of an architecture, and say what restricts them."""
    spec = inputs.model_of(asked.network, asked.model)
    claim_file(asked.out)
    _network, sym = inputs.model_and_symmetry(spec, asked, asked.meta)
    write_one(sym, asked.out)
    if asked.explain is None:
        show(sym, asked.as_json, dim=sym.dim, log_size=sym.log_size)
        return
    axes = sym.layouts[_known(sym, asked.explain)].axes
    lines = [sym.explain(asked.explain, i) for i in range(len(axes))]
    print_json(lines) if asked.as_json else say("\n".join(lines))


def _known(sym: iw.Symmetry, name: str) -> str:
    found = sym.aliases.get(name, name)
    if found not in sym.layouts:
        close = near(name, (*sym.layouts, *sym.aliases)) or f" There are {', '.join(list(sym.layouts)[:6])}, ..."
        raise ValueError(f"--explain must name a parameter. Got {name!r}.{close}")
    return found
