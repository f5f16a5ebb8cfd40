"""Work of ``intertwine symmetries``."""

from ...._words import near
from ....symmetry import Symmetry
from ...commands.symmetry.symmetries import SymmetriesOptions
from ...inputs.networks import model_and_symmetry, model_of
from ...outputs.files import claim_file
from ...outputs.results import show, write_one
from ...outputs.show import print_json, say


def run(asked: SymmetriesOptions) -> None:
    """Find the weight-space symmetries of an architecture, and say what restricts them."""
    spec = model_of(asked.network, asked.model)
    claim_file(asked.out)
    _network, sym = model_and_symmetry(spec, asked, asked.meta)
    write_one(sym, asked.out)
    if asked.explain is None:
        show(sym, asked.as_json, dim=sym.dim, log_size=sym.log_size)
        return
    axes = sym.layouts[_known(sym, asked.explain)].axes
    lines = [sym.explain(asked.explain, i) for i in range(len(axes))]
    print_json(lines) if asked.as_json else say("\n".join(lines))


def _known(sym: Symmetry, name: str) -> str:
    found = sym.aliases.get(name, name)
    if found not in sym.layouts:
        close = near(name, (*sym.layouts, *sym.aliases)) or f" There are {', '.join(list(sym.layouts)[:6])}, ..."
        raise ValueError(f"--explain must name a parameter. Got {name!r}.{close}")
    return found
