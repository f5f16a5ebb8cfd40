"""Work of ``intertwine symmetries``."""

from typing import Any

import torch

from ... import symmetry
from ..._words import near
from .._models import build_model
from .._networks import model_of
from .._outputs import claim_file
from .._running import threads_for
from .._show import print_json, say, tell
from ..commands.symmetries import SymmetriesOptions
from ..inputs.example import example_input


def run(asked: SymmetriesOptions) -> None:
    """Find the weight-space symmetries of an architecture, and say what restricts them."""
    spec = model_of(asked.network, asked.model)
    if asked.out is not None:
        claim_file(asked.out)
    with torch.device("meta" if asked.meta else "cpu"):
        network = build_model(spec)
    example = example_input(spec, asked, asked.meta)
    threads_for(weights=sum(p.numel() for p in network.parameters()))
    sym = symmetry.symmetries(network, example)
    if asked.out is not None:
        written = sym.to_html(asked.out) if asked.out.suffix in (".html", ".htm") else sym.save(asked.out)
        tell(f"wrote {written}")
    if asked.explain is not None:
        lines = [sym.explain(asked.explain, i) for i in range(len(sym.layouts[_known(sym, asked.explain)].axes))]
        print_json(lines) if asked.as_json else say("\n".join(lines))
    elif asked.as_json:
        print_json({**sym.to_dict(), "dim": sym.dim, "log_size": sym.log_size})
    else:
        say(sym.summary())


def _known(sym: Any, name: str) -> str:
    found = sym.aliases.get(name, name)
    if found not in sym.layouts:
        close = near(name, (*sym.layouts, *sym.aliases)) or f" There are {', '.join(list(sym.layouts)[:6])}, ..."
        raise ValueError(f"--explain must name a parameter. Got {name!r}.{close}")
    return found
